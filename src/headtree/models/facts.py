"""Facts about a model: context length, image size, attention window, special tokens and embeddings.

The one module that knows the names of architectures and of the fields in their configurations.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn


def select_tower(model: nn.Module, modality: str) -> nn.Module:
    """The tower of a text-and-image model (CLIP) that reads this kind of input; any other model itself."""
    if not (hasattr(model, "get_text_features") and hasattr(model, "get_image_features")):
        return model
    tower = getattr(model, {"texts": "text_model", "images": "vision_model"}.get(modality, ""), None)
    return tower if isinstance(tower, nn.Module) else model


def config_of(model: nn.Module) -> Any:
    """The model's transformers configuration; None if it has none."""
    config = getattr(model, "config", None)
    return config if hasattr(config, "model_type") else None


def text_config(config: Any) -> Any:
    """The sub-configuration of the text model; of an encoder-decoder, that of the encoder."""
    try:
        return config.get_text_config(encoder=True) if config.is_encoder_decoder else config.get_text_config()
    except (AttributeError, ValueError, TypeError):
        return config


def context_length(model: nn.Module) -> int | None:
    """Largest number of tokens the model accepts; None if its positions are relative and unbounded."""
    config = config_of(model)
    if config is None:
        return None
    config = text_config(config)
    if getattr(config, "alibi", False) or getattr(config, "position_embedding_type", "") == "relative_key":
        return None
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int) or length < 1:
        return None
    # RoBERTa and its relatives number positions from padding_idx + 1 on, which leaves fewer for tokens
    for name, module in model.named_modules():
        is_table = isinstance(module, nn.Embedding) and name.endswith("position_embeddings")
        padding = getattr(module, "padding_idx", None)
        if is_table and isinstance(padding, int) and module.num_embeddings == length:
            return length - padding - 1
    return length


def _image_config(model: nn.Module) -> Any:
    """The configuration of the part that reads images; the model's own if it has no such part."""
    config = config_of(model)
    inner = [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    reading = [part for part in inner if hasattr(part, "patch_size")]
    return getattr(config, "vision_config", None) or (reading[0] if reading else config)


def image_shape(model: nn.Module) -> tuple[int, int, int] | None:
    """Channels, height and width of the images a vision model expects; None if its configuration does not say."""
    config = _image_config(model)
    size = getattr(config, "image_size", None)
    if size is None:
        return None
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return int(getattr(config, "num_channels", 3)), int(height), int(width)


def takes_any_image_size(model: nn.Module) -> bool:
    """Whether a vision model interpolates its position embeddings to images of any size."""
    any_size = ("dinov2", "dinov2_with_registers", "dinov3_vit")
    return getattr(config_of(model), "model_type", "") in any_size


def attention_window(module: nn.Module) -> Any:
    """Size of an attention module's sliding or local window; None if it attends to everything."""
    return getattr(module, "sliding_window", getattr(module, "local_attention", None))


def patch_labels(model: nn.Module, pixels: tuple[int, int], n_tokens: int) -> list[str]:
    """Labels of an image's tokens: "class", "register0", … first, then patches by row and column, "r3c5"."""
    config = _image_config(model)
    patch = getattr(config, "patch_size", None)
    sides = tuple(patch) if isinstance(patch, list | tuple) else (patch, patch)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        return [str(i) for i in range(n_tokens)]  # no patches, or of another size in each stage
    rows, columns = pixels[0] // sides[0], pixels[1] // sides[1]
    n_extra = n_tokens - rows * columns
    if n_extra < 0 or rows * columns == 0:
        return [str(i) for i in range(n_tokens)]
    second = ["distillation"] if getattr(config, "model_type", "") == "deit" and n_extra > 1 else []
    extra = (["class", *second] + [f"register{i}" for i in range(n_extra)])[:n_extra]
    return extra + [f"r{row}c{column}" for row in range(rows) for column in range(columns)]


def accepts(model: nn.Module, argument: str) -> bool:
    """Whether the model's forward accepts this argument."""
    parameters = inspect.signature(model.forward).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return argument in parameters or (takes_any and config_of(model) is not None)


def can_keep_a_cache(model: nn.Module) -> bool:
    """Whether the model has the option `use_cache`.

    Its forward must name it: among further arguments, which a model hands down, it may collide with the model's own
    choice.
    """
    return hasattr(config_of(model), "use_cache") and "use_cache" in inspect.signature(model.forward).parameters


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether the model is a complete encoder-decoder, which reads one sequence and writes another."""
    return bool(getattr(config_of(model), "is_encoder_decoder", False)) and accepts(model, "decoder_input_ids")


def decoder_start(model: nn.Module) -> int:
    """Id of the token that the decoder starts from."""
    config = config_of(model)
    for source in (config, getattr(model, "generation_config", None), text_config(config)):
        for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
            token = getattr(source, name, None)
            if isinstance(token, int):
                return token
    return 0


def token_embedding(model: nn.Module) -> nn.Embedding | None:
    """The token embedding: the one that transformers reports, or else the largest embedding in the model."""
    if config_of(model) is not None and getattr(model, "main_input_name", "input_ids") != "input_ids":
        return None
    table = _method_result(model, "get_input_embeddings")
    if isinstance(table, nn.Embedding):
        return table
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    return max(tables, key=lambda table: table.num_embeddings, default=None)


def vocabulary_size(model: nn.Module) -> int | None:
    """Number of tokens that a model of transformers knows; None if it does not say, as other models."""
    table = None if config_of(model) is None else _method_result(model, "get_input_embeddings")
    return table.num_embeddings if type(table) is nn.Embedding else None


def _method_result(model: nn.Module, method: str) -> Any:
    """The result of a method that transformers models have; None if this model lacks or does not implement it."""
    function: Any = getattr(model, method, None)
    try:
        return function() if callable(function) else None
    except (NotImplementedError, AttributeError):
        return None


def special_tokens(model: nn.Module) -> set[int]:
    """Ids of the special tokens that the configuration names."""
    config = text_config(config_of(model))
    names = [name for name in dir(config) if name.endswith("_token_id")]
    return {value for name in names if isinstance(value := getattr(config, name, None), int)}


def unembedding(model: nn.Module) -> Tensor | None:
    """The matrix (word, width) that maps the final hidden states to logits; None if it is unknown.

    For a model loaded without its language-model head this is the token embedding, if the configuration ties the
    two.
    """
    if isinstance(own := getattr(model, "unembedding", None), Tensor):
        return own.detach()
    if isinstance(weight := getattr(_method_result(model, "get_output_embeddings"), "weight", None), Tensor):
        return weight.detach()
    table = token_embedding(model)
    if table is not None and getattr(text_config(config_of(model)), "tie_word_embeddings", False):
        return table.weight.detach()
    return None
