"""Short cuts to a `ModelView` that is used once: `capture`, `head_weights` and `attention_relevance`."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import torch
from torch import nn

from headtree.models.given_model import as_view, view_and_options
from headtree.models.graph.head_weights import HeadWeights
from headtree.models.relevance import Relevance, Target
from headtree.models.view import ModelView
from headtree.models.watching.collect import Store
from headtree.models.watching.query_choice import Queries
from headtree.models.watching.select import Window
from headtree.tensor.attention_tensor import AttentionTensor, CapturedKind


def capture(
    model: str | PathLike[str] | nn.Module | ModelView,
    *,
    texts: Sequence[str] | None = None,
    images: Sequence[Any] | None = None,
    inputs: Any = None,
    kind: CapturedKind = "scores",
    part: str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | Sequence[tuple[int, int]] | None = None,
    tokens: int | None = None,
    window: Window | None = None,
    queries: Queries | None = None,
    generate: int | None = None,
    targets: Sequence[str] | None = None,
    tokenizer: Any = None,
    processor: Any = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    batch_size: int | None = None,
    dtype: str | None = None,
    device: str | torch.device | None = None,
    model_dtype: str | None = None,
    store: Store = "dense",
    memory_limit: float | None = None,
) -> list[AttentionTensor]:
    """Run a model and capture the attention of its heads, one tensor per input.

    A shortcut for ``ModelView(model).capture(...)``. To measure one model in several ways, make the view once.

    Parameters
    ----------
    model : str, path, torch.nn.Module or ModelView
        A hub id, a folder or file, a loaded module, or a view; see `ModelView`.
    texts : list of str, optional
        Tokenized with the model's tokenizer. Give exactly one of `texts`, `images` and `inputs`.
    images : list, optional
        Files, PIL images or uint8 arrays, which go through the model's image processor; or float arrays
        (channel, row, column), which are used unchanged.
    inputs : list, mapping or tensor, optional
        Arguments of the model's forward, with a batch axis: mappings by name, or tensors for the first argument.
        A batch of n gives n inputs.
    kind : {"scores", "probs", "weighted"}
        The input of softmax without the mask, or its output; or value-weighted attention, the norm ‖a·v·W_O‖ of
        what each key contributes to each query: its probability times the norm of its value after the head's
        output projection (Kobayashi et al. 2020).
    part : str, optional
        Which attention to capture if the model has several kinds: "encoder", "decoder", "cross", or the name of a
        tower.
    layers : list of int, optional
        Layers to capture, counted from 0 in the order of their calls; all by default.
    heads : list of int or of (layer, head), optional
        Heads to capture, in every layer or as (layer, head) pairs; all by default.
    tokens : int, optional
        Tokens per input, special tokens included. Longer texts are cut into several inputs and the remainder is
        dropped; shorter texts are an error.
    window : (start, stop), optional
        Range of queries and keys to capture; the model still reads the whole input. Pass two such pairs to give
        queries and keys different ranges.
    queries : list of int or str, optional
        Queries to capture, with all their keys: positions, negative ones from the end, or tokens, with or without
        the tokenizer's mark of a new word. ``queries=[-1]`` is the last token, whose logits predict the next.
    generate : int, optional
        Let the model write that many tokens after each text, the likeliest one each time and past any end of
        text, and capture its attention while it writes, with its cache. The queries are then the tokens it writes,
        the keys all tokens before them and themselves. The model needs its language-model head.
    targets : list of str, optional
        Texts that the decoder of an encoder-decoder reads; by default the input text, shifted by one token.
    tokenizer, processor, revision, trust_remote_code, device, model_dtype
        As in `ModelView`.
    batch_size : int, optional
        Number of inputs of equal shape to run together; by default chosen from their length.
    dtype : {"float16", "float32", "float64"}, optional
        Type of the captured values; by default float32, or float64 for models with float64 weights.
    store : {"dense", "factors"}
        What a tensor holds: all values, or the queries and keys of each layer, grouped keys once. Factors are
        multiplied out block by block when values are read, so inputs can be longer than memory would allow. Where
        a model shows only the product of queries and keys, the tensors are dense, and a warning says so.
    memory_limit : float, optional
        Bytes that the capture may use in addition to the model; by default 80 % of the free memory. A capture that
        would need more is refused before it runs.

    Returns
    -------
    list of AttentionTensor
        In the order of the inputs. Heads are in layer order.

    Notes
    -----
    Attention is captured through transformers' attention registry where a model uses it, and verified: the softmax
    of the captured scores times the values must equal the output of the attention module. In other models, calls of
    softmax, `scaled_dot_product_attention` and `torch.nn.MultiheadAttention` are watched and compared with the
    attentions that the model returns. If these are not the softmax of any watched scores, only `probs` are
    available. Fused kernels (flash, flex) never compute scores, so sdpa runs instead; torch's fused encoder layer
    runs unfused. Both agree with the original up to rounding.

    The model is left as it was: what a forward pass changes in it is undone, and a key-value cache among the inputs
    is copied for each pass. The provenance has the module of every captured layer and its number among all layers.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("txl")
    >>> atts = ht.capture(network.model, inputs=network.inputs[:2], tokenizer=network.tokenizer, layers=[0, 1])
    >>> len(atts), atts[0].shape, atts[0].kind
    (2, (16, 256, 256), 'scores')
    """
    view = as_view(
        model,
        tokenizer=tokenizer,
        processor=processor,
        revision=revision,
        trust_remote_code=trust_remote_code,
        device=device,
        model_dtype=model_dtype,
    )
    return view.capture(
        texts=texts,
        images=images,
        inputs=inputs,
        kind=kind,
        part=part,
        layers=layers,
        heads=heads,
        tokens=tokens,
        window=window,
        queries=queries,
        generate=generate,
        targets=targets,
        batch_size=batch_size,
        dtype=dtype,
        store=store,
        memory_limit=memory_limit,
    )


def head_weights(
    model: Any,
    *,
    texts: Any = None,
    images: Any = None,
    inputs: Any = None,
    part: str | None = None,
    **options: Any,
) -> list[HeadWeights]:
    """W_Q, W_K, W_V and W_O of every head of a model, one `HeadWeights` per layer.

    A shortcut for ``ModelView(model).weights(...)``. The model runs once on the first input, and each head's
    features are followed through the operations it runs. This works for separate, fused, grouped, interleaved and
    transposed projections alike.

    Parameters
    ----------
    model, texts, images, inputs, part, **options
        As in `headtree.capture`.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> first = ht.head_weights(network.model, inputs=network.inputs[0])[0]
    >>> first.query.shape, first.qk.shape
    (torch.Size([12, 192, 16]), torch.Size([12, 192, 192]))
    """
    view, others = view_and_options(model, options)
    return view.weights(texts=texts, images=images, inputs=inputs, part=part, **others)


def attention_relevance(
    model: Any,
    *,
    texts: Any = None,
    images: Any = None,
    inputs: Any = None,
    target: Target = None,
    part: str | None = None,
    **options: Any,
) -> list[Relevance]:
    """Relevance of tokens and heads for one output, one result per input (Chefer et al. 2021).

    A shortcut for ``ModelView(model).relevance(...)``. Starting from ``R = I``, each layer updates ``R ← R + Ā R``,
    where ``Ā`` is the mean over heads of ``(∇A ⊙ A)⁺``. A head's share is the sum of its ``(∇A ⊙ A)⁺`` divided by
    the sum over all heads.

    Parameters
    ----------
    model, texts, images, inputs, part, **options
        As in `headtree.capture`. The model runs with eager attention and gradients, and is restored afterwards.
    target : int or function, optional
        The output to explain: the index of a class or word among the logits (of the last token, if every token has
        logits), or a function that maps the model's output to a scalar. By default the largest logit.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> (found,) = ht.attention_relevance(network.model, inputs=network.inputs[0])
    >>> found.tokens.shape, found.share.shape, round(float(found.share.sum()), 6)
    ((197, 197), (144,), 1.0)
    """
    view, others = view_and_options(model, options)
    return view.relevance(texts=texts, images=images, inputs=inputs, target=target, part=part, **others)
