"""The families of the sweep: those of the tests, and every other model type of transformers at a small size."""

from __future__ import annotations

from tests.models import zoo
from tools.sweep.overrides import OVERRIDES
from tools.sweep.tiny_settings import tiny_settings


def names() -> list[str]:
    """The model types that `AutoModel` knows, by transformers' own names."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


def case(name: str) -> zoo.Case:
    """How to make a family's tiny model: as in the tests if they have it, or else its default made small."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    config_class = CONFIG_MAPPING[name]
    for known in zoo.ALL.values():
        if known.config == config_class.__name__:
            return known
    classes = MODEL_MAPPING_NAMES[name]
    model = classes if isinstance(classes, str) else classes[0]
    settings = tiny_settings(config_class, **OVERRIDES.get(name, {}))
    return zoo.Case(model, config_class.__name__, settings, read=dict)
