"""headtree: how a transformer's attention is organized.

The public names; each is imported when first used, so that importing headtree is instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headtree._version import __version__

if TYPE_CHECKING:
    from headtree.attention.anatomy import register_attention, unregister_attention
    from headtree.attention.capture import capture
    from headtree.attention.files import load_tensor
    from headtree.attention.tensor import AttentionTensor, HeadId
    from headtree.errors import HeadtreeError, HeadtreeWarning
    from headtree.geometry.build import binary_tree, flexible_tree
    from headtree.geometry.diffusion import diffusion_map
    from headtree.geometry.emd import tree_emd
    from headtree.questionnaire.organization import Organization
    from headtree.questionnaire.organize import organize, organize_array
    from headtree.questionnaire.settings import Questionnaire
    from headtree.trees.compare import tree_distance
    from headtree.trees.tree import PartitionTree

_HOME = {
    "AttentionTensor": "attention.tensor",
    "HeadId": "attention.tensor",
    "HeadtreeError": "errors",
    "HeadtreeWarning": "errors",
    "Organization": "questionnaire.organization",
    "PartitionTree": "trees.tree",
    "Questionnaire": "questionnaire.settings",
    "binary_tree": "geometry.build",
    "capture": "attention.capture",
    "diffusion_map": "geometry.diffusion",
    "flexible_tree": "geometry.build",
    "load_tensor": "attention.files",
    "organize": "questionnaire.organize",
    "organize_array": "questionnaire.organize",
    "register_attention": "attention.anatomy",
    "tree_distance": "trees.compare",
    "tree_emd": "geometry.emd",
    "unregister_attention": "attention.anatomy",
}

__all__ = [
    "AttentionTensor",
    "HeadId",
    "HeadtreeError",
    "HeadtreeWarning",
    "Organization",
    "PartitionTree",
    "Questionnaire",
    "__version__",
    "binary_tree",
    "capture",
    "diffusion_map",
    "flexible_tree",
    "load_tensor",
    "organize",
    "organize_array",
    "register_attention",
    "tree_distance",
    "tree_emd",
    "unregister_attention",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'headtree' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"headtree.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
