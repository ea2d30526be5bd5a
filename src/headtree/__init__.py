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
    from headtree.attention.weights import HeadWeights, head_weights
    from headtree.bases.haar import HaarBasis
    from headtree.bases.paraproduct import Paraproduct, paraproduct
    from headtree.bases.tensor_haar import TensorHaarBasis
    from headtree.depth.network import FrozenNetwork
    from headtree.depth.paths import PathLengths, frozen_networks, path_lengths
    from headtree.depth.residual import RankResidual, rank_residual
    from headtree.errors import HeadtreeError, HeadtreeWarning
    from headtree.geometry.build import binary_tree, flexible_tree
    from headtree.geometry.diffusion import diffusion_map
    from headtree.geometry.emd import tree_emd
    from headtree.measures.agreement import TreeAgreement, tree_agreement
    from headtree.measures.consensus import Consensus, consensus
    from headtree.measures.diagnostics import Diagnostics, diagnostics
    from headtree.measures.entropy import Entropy, head_entropy, network_entropy
    from headtree.measures.folders import describe_folders
    from headtree.measures.induction import Induction, induction
    from headtree.measures.invariance import SoftmaxInvariance, softmax_invariance
    from headtree.measures.normalization import doubly_normalized
    from headtree.measures.overlap import overlap
    from headtree.measures.regularity import HolderExponent, Regularity, holder_exponent, regularity
    from headtree.measures.relevance import Relevance, attention_relevance
    from headtree.measures.roles import Roles, head_roles
    from headtree.measures.rollout import attention_rollout
    from headtree.measures.sparsity import (
        CompressionCurve,
        Sparsity,
        compress,
        compression_curve,
        denoise,
        denoising_errors,
        sparsity,
    )
    from headtree.measures.stability import Stability, stability
    from headtree.networks.load import BundledNetwork, load_bundled
    from headtree.questionnaire.organization import Organization
    from headtree.questionnaire.organize import organize, organize_array
    from headtree.questionnaire.settings import Questionnaire
    from headtree.report.page import show, write_report
    from headtree.runs.run import Run, open_run
    from headtree.runs.section import Section
    from headtree.trees.compare import tree_distance
    from headtree.trees.tree import PartitionTree

_HOME = {
    "AttentionTensor": "attention.tensor",
    "BundledNetwork": "networks.load",
    "CompressionCurve": "measures.sparsity",
    "Consensus": "measures.consensus",
    "Diagnostics": "measures.diagnostics",
    "Entropy": "measures.entropy",
    "FrozenNetwork": "depth.network",
    "HaarBasis": "bases.haar",
    "HeadId": "attention.tensor",
    "HeadWeights": "attention.weights",
    "HeadtreeError": "errors",
    "HeadtreeWarning": "errors",
    "HolderExponent": "measures.regularity",
    "Induction": "measures.induction",
    "Organization": "questionnaire.organization",
    "Paraproduct": "bases.paraproduct",
    "PartitionTree": "trees.tree",
    "PathLengths": "depth.paths",
    "Questionnaire": "questionnaire.settings",
    "RankResidual": "depth.residual",
    "Regularity": "measures.regularity",
    "Relevance": "measures.relevance",
    "Roles": "measures.roles",
    "Run": "runs.run",
    "Section": "runs.section",
    "SoftmaxInvariance": "measures.invariance",
    "Sparsity": "measures.sparsity",
    "Stability": "measures.stability",
    "TensorHaarBasis": "bases.tensor_haar",
    "TreeAgreement": "measures.agreement",
    "attention_relevance": "measures.relevance",
    "attention_rollout": "measures.rollout",
    "binary_tree": "geometry.build",
    "capture": "attention.capture",
    "compress": "measures.sparsity",
    "compression_curve": "measures.sparsity",
    "consensus": "measures.consensus",
    "denoise": "measures.sparsity",
    "denoising_errors": "measures.sparsity",
    "describe_folders": "measures.folders",
    "diagnostics": "measures.diagnostics",
    "diffusion_map": "geometry.diffusion",
    "doubly_normalized": "measures.normalization",
    "flexible_tree": "geometry.build",
    "frozen_networks": "depth.paths",
    "head_entropy": "measures.entropy",
    "head_roles": "measures.roles",
    "head_weights": "attention.weights",
    "holder_exponent": "measures.regularity",
    "induction": "measures.induction",
    "load_bundled": "networks.load",
    "load_tensor": "attention.files",
    "network_entropy": "measures.entropy",
    "open_run": "runs.run",
    "organize": "questionnaire.organize",
    "organize_array": "questionnaire.organize",
    "overlap": "measures.overlap",
    "paraproduct": "bases.paraproduct",
    "path_lengths": "depth.paths",
    "rank_residual": "depth.residual",
    "register_attention": "attention.anatomy",
    "regularity": "measures.regularity",
    "show": "report.page",
    "softmax_invariance": "measures.invariance",
    "sparsity": "measures.sparsity",
    "stability": "measures.stability",
    "tree_agreement": "measures.agreement",
    "tree_distance": "trees.compare",
    "tree_emd": "geometry.emd",
    "unregister_attention": "attention.anatomy",
    "write_report": "report.page",
}

__all__ = [
    "AttentionTensor",
    "BundledNetwork",
    "CompressionCurve",
    "Consensus",
    "Diagnostics",
    "Entropy",
    "FrozenNetwork",
    "HaarBasis",
    "HeadId",
    "HeadWeights",
    "HeadtreeError",
    "HeadtreeWarning",
    "HolderExponent",
    "Induction",
    "Organization",
    "Paraproduct",
    "PartitionTree",
    "PathLengths",
    "Questionnaire",
    "RankResidual",
    "Regularity",
    "Relevance",
    "Roles",
    "Run",
    "Section",
    "SoftmaxInvariance",
    "Sparsity",
    "Stability",
    "TensorHaarBasis",
    "TreeAgreement",
    "__version__",
    "attention_relevance",
    "attention_rollout",
    "binary_tree",
    "capture",
    "compress",
    "compression_curve",
    "consensus",
    "denoise",
    "denoising_errors",
    "describe_folders",
    "diagnostics",
    "diffusion_map",
    "doubly_normalized",
    "flexible_tree",
    "frozen_networks",
    "head_entropy",
    "head_roles",
    "head_weights",
    "holder_exponent",
    "induction",
    "load_bundled",
    "load_tensor",
    "network_entropy",
    "open_run",
    "organize",
    "organize_array",
    "overlap",
    "paraproduct",
    "path_lengths",
    "rank_residual",
    "register_attention",
    "regularity",
    "show",
    "softmax_invariance",
    "sparsity",
    "stability",
    "tree_agreement",
    "tree_distance",
    "tree_emd",
    "unregister_attention",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'headtree' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"headtree.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
