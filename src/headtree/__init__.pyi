from ._version import __version__
from .bases.haar import HaarBasis
from .bases.paraproduct import Paraproduct, paraproduct
from .bases.tensor_haar import TensorHaarBasis
from .comparison.compare_networks import Comparison, compare
from .depth.frozen_network import FrozenNetwork
from .depth.paths import PathLengths, frozen_networks, path_lengths
from .depth.residual import RankResidual, rank_residual
from .errors import HeadtreeError, HeadtreeWarning
from .geometry.diffusion import diffusion_map
from .geometry.emd import tree_emd
from .geometry.grow_tree import binary_tree, flexible_tree
from .measures.agreement import TreeAgreement, tree_agreement
from .measures.conditioning import TreeConditioning, tree_conditioning
from .measures.consensus import Consensus, consensus
from .measures.entropy import Entropy, head_entropy, network_entropy
from .measures.heads.diagnostics import Diagnostics, diagnostics
from .measures.heads.effects import HeadEffects, head_effects
from .measures.heads.induction import Induction, induction
from .measures.heads.interactions import Interactions, interactions
from .measures.heads.normalization import doubly_normalized
from .measures.heads.roles import Roles, head_roles
from .measures.heads.rollout import attention_rollout
from .measures.invariance import SoftmaxInvariance, softmax_invariance
from .measures.overlap import overlap
from .measures.perturbation import PerturbationTest, perturbation_test, token_relevance
from .measures.regularity import HolderExponent, Regularity, holder_exponent, regularity
from .measures.similarity import head_similarity
from .measures.sparsity import (
    CompressionCurve,
    Sparsity,
    compress,
    compression_curve,
    denoise,
    denoising_errors,
    sparsity,
)
from .measures.stability import Stability, stability
from .models.activation_cache import ActivationCache
from .models.bundled.bundle import BundledNetwork, load_bundled
from .models.capture import attention_relevance, capture, head_weights
from .models.graph.head_weights import HeadWeights
from .models.logit_attribution import LogitAttribution
from .models.pruned_files import load_pruned, save_pruned
from .models.register import register_attention, unregister_attention
from .models.relevance import Relevance
from .models.token_tensor import TokenTensor
from .models.view import ModelView
from .prune.cost import ModelCost, model_cost
from .prune.curve import PruneCurve, prune_curve
from .prune.importance import HeadImportance, head_importance
from .prune.surgery import prune_heads
from .questionnaire.organization import Organization
from .questionnaire.organize import organize, organize_array
from .questionnaire.settings import Questionnaire
from .report.comparison_page import write_comparison
from .report.page.document import show, write_report
from .report.words.folder_words import describe_folders
from .runs.run import Run, open_run
from .section import Section
from .similarity.head_similarity import HeadSimilarity
from .tensor.attention_tensor import AttentionTensor, HeadId
from .tensor.load import load_tensor
from .trees.compare import tree_distance
from .trees.tree import PartitionTree

__all__ = [
    "ActivationCache",
    "AttentionTensor",
    "BundledNetwork",
    "Comparison",
    "CompressionCurve",
    "Consensus",
    "Diagnostics",
    "Entropy",
    "FrozenNetwork",
    "HaarBasis",
    "HeadEffects",
    "HeadId",
    "HeadImportance",
    "HeadSimilarity",
    "HeadWeights",
    "HeadtreeError",
    "HeadtreeWarning",
    "HolderExponent",
    "Induction",
    "Interactions",
    "LogitAttribution",
    "ModelCost",
    "ModelView",
    "Organization",
    "Paraproduct",
    "PartitionTree",
    "PathLengths",
    "PerturbationTest",
    "PruneCurve",
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
    "TokenTensor",
    "TreeAgreement",
    "TreeConditioning",
    "__version__",
    "attention_relevance",
    "attention_rollout",
    "binary_tree",
    "capture",
    "compare",
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
    "head_effects",
    "head_entropy",
    "head_importance",
    "head_roles",
    "head_similarity",
    "head_weights",
    "holder_exponent",
    "induction",
    "interactions",
    "load_bundled",
    "load_pruned",
    "load_tensor",
    "model_cost",
    "network_entropy",
    "open_run",
    "organize",
    "organize_array",
    "overlap",
    "paraproduct",
    "path_lengths",
    "perturbation_test",
    "prune_curve",
    "prune_heads",
    "rank_residual",
    "register_attention",
    "regularity",
    "save_pruned",
    "show",
    "softmax_invariance",
    "sparsity",
    "stability",
    "token_relevance",
    "tree_agreement",
    "tree_conditioning",
    "tree_distance",
    "tree_emd",
    "unregister_attention",
    "write_comparison",
    "write_report",
]
