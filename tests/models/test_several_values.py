"""What heads write where several share rows of W_O, write by several projections, or by one for each token."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.errors import InvalidValueError
from tests.models import zoo
from tests.models.test_activation_cache import check_sums, close
from tools.sweep import families


@cache
def family(name):
    """A model of two layers, one input, and what its heads write on it."""
    case = families.case(name)
    case = replace(case, settings={**case.settings, "num_hidden_layers": 2})
    model, read = case.build(), {"input_ids": torch.arange(5, 17)[None]}
    if name == "lilt":
        read["bbox"] = torch.arange(4).expand(1, 12, 4)
    view = ht.ModelView(model)
    return view, read, view.cache(inputs=read)[0]


def by_module(model, paths, read):
    """What enters some modules, and what comes out."""
    found = {}

    def keep(path):
        return lambda _, args, result: found.update({path: [each[0].numpy() for each in (*args[:1], result)]})

    handles = [model.get_submodule(path).register_forward_hook(keep(path)) for path in paths]
    with torch.no_grad():
        model(**read)
    for handle in handles:
        handle.remove()
    return found


def differential_writes(model, read, layer, probs):
    """What each head of a differential layer writes, with the norm of the difference frozen, in plain loops."""
    attention = model.layers[layer].self_attn
    prefix = f"layers.{layer}.self_attn"
    seen = by_module(model, [f"{prefix}.v_proj", f"{prefix}.groupnorm", f"{prefix}.o_proj"], read)
    width, n_heads = attention.head_dim, len(probs)
    n_kv = seen[f"{prefix}.v_proj"][1].shape[-1] // width
    values = [seen[f"{prefix}.v_proj"][1][:, i * width : (i + 1) * width] for i in range(n_kv)]
    lambdas = [
        float(torch.exp((getattr(attention, f"lambda_q{i}") * getattr(attention, f"lambda_k{i}")).sum()).detach())
        for i in (1, 2)
    ]
    factor = lambdas[0] - lambdas[1] + attention.lambda_init
    before, after = seen[f"{prefix}.groupnorm"]
    scale = (after / before)[..., 0]  # (token, pair)
    rows = attention.o_proj.weight.detach().numpy().T
    written = []
    for head in range(n_heads):
        pair = head % (n_heads // 2)
        shared = [(half * (n_kv // 2)) + (head // (n_heads // n_kv)) % (n_kv // 2) for half in (0, 1)]
        both = np.concatenate([probs[head] @ values[each] for each in shared], axis=-1)
        both *= (1.0 if head < n_heads // 2 else -factor) * (1 - attention.lambda_init) * scale[:, pair, None]
        written.append(both @ rows[pair * 2 * width : (pair + 1) * 2 * width])
    return np.stack(written)


def test_heads_of_differential_attention_write_what_their_layer_adds():
    view, read, cache = family("diffllama")
    assert cache.names == ("q", "k", "v", "z", "ov", "writes", "residual", "attention_out", "mlp_out")
    probs = view.capture(inputs=read, kind="probs")[0].values.numpy().reshape(2, 4, 12, 12)
    writes = cache["writes"].values.reshape(2, 4, 12, -1)
    for layer in range(2):
        close(writes[layer], differential_writes(view.model, read, layer, probs[layer]))
    close(writes.sum(axis=1), cache["attention_out"].values)
    check_sums(cache)


@pytest.mark.parametrize("name", ["diffllama", "lilt"])
def test_weighted_attention_counts_all_values_of_a_head(name):
    view, read, cache = family(name)
    probs = view.capture(inputs=read, kind="probs")[0].values.numpy()
    weighted = view.capture(inputs=read, kind="weighted")[0].values.numpy()
    close(weighted, probs * np.linalg.norm(cache["ov"].values, axis=-1)[:, None])


def test_subtracted_heads_have_the_factor_in_what_their_values_write():
    view, _, cache = family("diffllama")
    sizes = np.linalg.norm(cache["ov"].values, axis=(1, 2)) / np.linalg.norm(cache["v"].values, axis=(1, 2))
    assert view.model.layers[0].self_attn.lambda_init < 0.3
    assert sizes[2:4].max() < 0.5 * sizes[:2].min()


def test_heads_of_lilt_write_words_and_layout_side_by_side():
    view, read, cache = family("lilt")
    assert cache.names == ("v", "z", "ov", "writes")
    with pytest.raises(InvalidValueError, match=r"no 'residual'.*several products with values"):
        cache["residual"]
    paths = [f"encoder.layer.1.attention.{name}.dense" for name in ("layout_output", "output")]
    seen = by_module(view.model, paths, read)
    expected = np.concatenate(
        [seen[path][1] - view.model.get_submodule(path).bias.detach().numpy() for path in paths], axis=-1
    )
    close(cache["writes"].groupby("layer").sum("head").values[1], expected)


def test_heads_with_a_projection_for_each_token_write_what_is_missing_without_them():
    view, read, cache = family("jetmoe")
    assert cache.names == ("q", "k", "v", "z", "writes", "residual", "attention_out", "mlp_out")
    check_sums(cache)
    norm = "layers.0.post_attention_layernorm"
    before, added = (cache[array].values[0] for array in ("residual", "attention_out"))
    for head in range(4):
        with view.ablated([(0, head)]):
            without = by_module(view.model, [norm], read)[norm][0] - before
        close(cache["writes"].sel(head=f"L0H{head}").values, added - without, 1e-4)
    (some,) = view.cache(inputs=read, heads=[(1, 3)])
    close(some["writes"].values[0], cache["writes"].sel(head="L1H3").values, 0)


def test_values_do_not_write_the_same_for_every_token_where_tokens_choose_projections():
    view, read, cache = family("jetmoe")
    with pytest.raises(InvalidValueError, match=r"no 'ov': in layers\.0\.self_attention tokens choose by which"):
        cache["ov"]
    with pytest.raises(InvalidValueError, match=r"in layers\.0\.self_attention tokens choose by which output proj"):
        view.capture(inputs=read, kind="weighted")


@pytest.mark.parametrize(
    ("name", "headed"), [("diffllama", "DiffLlamaForCausalLM"), ("jetmoe", "JetMoeForCausalLM")]
)
def test_logits_are_sums_over_heads_without_rows_of_their_own(name, headed):
    import transformers

    view, read, cache = family(name)
    whole = getattr(transformers, headed)(view.model.config).eval()
    whole.model.load_state_dict(view.model.state_dict())
    (found,) = ht.ModelView(whole).logit_attribution(inputs=read)
    norm, end = whole.model.norm, torch.as_tensor(cache["residual"].values[-1, -1])
    scale = float((norm(end) / norm.weight / end)[0].detach())
    direction = (whole.lm_head.weight[found.target] * norm.weight * scale).detach().numpy()
    close(found.heads.values, cache["writes"].values[:, -1] @ direction, 1e-4)


def with_head(model):
    """The model with random logits that are large enough to see errors."""
    import transformers

    whole = transformers.LlamaForCausalLM(model.config).eval()
    whole.model = model
    torch.nn.init.normal_(whole.lm_head.weight, generator=torch.Generator().manual_seed(0))
    return whole


class Adapted(torch.nn.Module):
    """A linear layer with a low-rank term, as adapters add it."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, 2, bias=False)
        self.up = torch.nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def test_heads_with_an_adapter_write_by_it_too():
    case = zoo.ALL["llama"]
    model, read = case.build(), {"input_ids": torch.arange(5, 17)[None]}
    attention = model.layers[1].self_attn
    attention.o_proj = Adapted(attention.o_proj)
    view = ht.ModelView(model)
    (cache,) = view.cache(inputs=read)
    close(cache["writes"].groupby("layer").sum("head").values, cache["attention_out"].values)
    with pytest.raises(InvalidValueError, match=r"no 'ov': .*layers\.1\.self_attn write by 2 projections.*merge"):
        cache["ov"]
    assert "ov" in view.cache(inputs=read, layers=[0])[0]
    (found,) = ht.ModelView(with_head(view.model)).logit_attribution(inputs=read)
    total = float(found.heads.sum() + found.layers.sum()) + found.embedding + found.bias
    assert abs(total - found.logit) < 1e-4 < abs(found.logit)
    with pytest.raises(InvalidValueError, match="write by 2 projections"):
        view.capture(inputs=read, kind="weighted")
    with torch.no_grad(), view.ablated([(1, 2)]):
        without = model(**read).last_hidden_state
        for each in (attention.o_proj.base, attention.o_proj.down):
            each.weight[:, 16:24] = 0
    with torch.no_grad():
        torch.testing.assert_close(without, model(**read).last_hidden_state)
