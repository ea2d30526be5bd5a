"""Every public name: the page of the reference that has it, what it implements, and what to look at beside it."""

from typing import NamedTuple


class Entry(NamedTuple):
    """What the reference adds to a docstring."""

    implements: str  #: equation or section, in reStructuredText; empty for what implements none
    see_also: str  #: other public names


class Group(NamedTuple):
    """One page of the reference."""

    title: str
    about: str
    names: dict[str, Entry]


_METHOD = "section {} of :doc:`the method </method>`"


def _section(number: int, more: str = "") -> str:
    return _METHOD.format(number) + (f"; {more}" if more else "")


_DIAGNOSTICS = ":doc:`/diagnostics`"
_CIRCUITS = r"Elhage et al. 2021: :math:`W_Q W_K^T` says where a head looks, :math:`W_V W_O` what it writes"
_DEPTH = _section(8, "[RC]; :doc:`/depth`")

GROUPS = {
    "capture": Group(
        "Models and attention",
        "Run a model and collect every head; read tensors that other programs wrote.",
        {
            "capture": Entry(_section(1), "ModelView AttentionTensor register_attention"),
            "ModelView": Entry(_section(1), "capture head_effects ActivationCache"),
            "AttentionTensor": Entry(_section(1), "capture load_tensor organize"),
            "HeadId": Entry("", "AttentionTensor"),
            "load_tensor": Entry(_section(1), "AttentionTensor capture"),
            "load_bundled": Entry("", "BundledNetwork capture"),
            "BundledNetwork": Entry("", "load_bundled"),
            "register_attention": Entry("", "unregister_attention capture"),
            "unregister_attention": Entry("", "register_attention"),
            "head_weights": Entry(_CIRCUITS, "HeadWeights ModelView"),
            "HeadWeights": Entry(_CIRCUITS, "head_weights"),
            "ActivationCache": Entry(
                r"Elhage et al. 2021: head h writes :math:`A_h V_h W_O^h` into the residual stream",
                "ModelView LogitAttribution",
            ),
            "LogitAttribution": Entry(
                "Elhage et al. 2021; the logit is the sum of what embedding, heads, MLPs and biases contribute",
                "ModelView ActivationCache",
            ),
        },
    ),
    "organize": Group(
        "Trees and the questionnaire",
        "Find the order of all axes of an array together.",
        {
            "organize": Entry(_section(5, "algorithm 1 of [OA]"), "organize_array Questionnaire Organization"),
            "organize_array": Entry(_section(5, "algorithm 1 of [OA]"), "organize Questionnaire Organization"),
            "Questionnaire": Entry(_section(5, "algorithm 1 of [OA]"), "organize organize_array"),
            "Organization": Entry(_section(5), "organize TensorHaarBasis PartitionTree"),
            "PartitionTree": Entry(_section(2), "tree_distance HaarBasis flexible_tree"),
            "flexible_tree": Entry(_section(3, "“bottom up flexible tree” of [OA]"), "binary_tree diffusion_map"),
            "binary_tree": Entry(_section(3), "flexible_tree diffusion_map"),
            "diffusion_map": Entry(
                _section(3, "Coifman and Lafon 2006")
                + r". :math:`\psi_i(x)\,\lambda_i^t` with :math:`S = P / (s s^T)`, :math:`P = G / (r r^T)`",
                "flexible_tree tree_emd",
            ),
            "tree_emd": Entry(_section(4, "eq. (15) and (16) of [OA]"), "organize diffusion_map"),
            "tree_distance": Entry("the equation above", "PartitionTree tree_agreement"),
            "tree_conditioning": Entry(_section(3), "TreeConditioning tree_distance organize"),
            "TreeConditioning": Entry(_section(3), "tree_conditioning"),
            "tree_agreement": Entry(
                "adjusted mutual information, Vinh, Epps and Bailey 2010; " + _DIAGNOSTICS,
                "TreeAgreement tree_distance describe_folders",
            ),
            "TreeAgreement": Entry("Vinh, Epps and Bailey 2010", "tree_agreement"),
        },
    ),
    "families": Group(
        "Families of heads",
        "Which heads are alike, and which groups of them other inputs show again.",
        {
            "head_similarity": Entry(
                _section(5, ":doc:`/similarities`"),
                "HeadSimilarity consensus ModelView",
            ),
            "HeadSimilarity": Entry(_section(5), "head_similarity consensus"),
            "consensus": Entry(
                _section(5, "Lemoine et al. 2018"),
                "Consensus head_similarity describe_folders",
            ),
            "Consensus": Entry(_section(5), "consensus"),
            "describe_folders": Entry(_DIAGNOSTICS, "consensus head_roles"),
        },
    ),
    "bases": Group(
        "Bases, entropies and regularity",
        "Haar functions on trees, and what they measure.",
        {
            "HaarBasis": Entry(_section(6, "section 2.4 of [OA]"), "TensorHaarBasis PartitionTree"),
            "TensorHaarBasis": Entry(_section(6, "section 2.4 of [OA]"), "HaarBasis compress"),
            "head_entropy": Entry(
                _section(6, r"eq. (21) of [OA]: :math:`\sum |\beta|` over the coarsest query-key functions"),
                "network_entropy Entropy stability overlap",
            ),
            "network_entropy": Entry(_section(6, "appendix B.2 of [OA]"), "head_entropy Entropy"),
            "Entropy": Entry(_section(6), "head_entropy network_entropy"),
            "stability": Entry("table 1 of [OA]", "Stability head_entropy"),
            "Stability": Entry("table 1 of [OA]", "stability"),
            "sparsity": Entry(_section(6, "sections 2.4 and 3.2 of [OA]"), "Sparsity compression_curve"),
            "Sparsity": Entry(_section(6), "sparsity"),
            "compression_curve": Entry(_section(6), "CompressionCurve compress sparsity"),
            "CompressionCurve": Entry(_section(6), "compression_curve"),
            "compress": Entry(_section(6), "compression_curve TensorHaarBasis denoise"),
            "denoise": Entry(_section(6), "denoising_errors compress"),
            "denoising_errors": Entry(_section(6), "denoise sparsity"),
            "paraproduct": Entry(
                _section(7, "theorems 1 and 2, eq. (12) of [OA]"), "Paraproduct holder_exponent softmax_invariance"
            ),
            "Paraproduct": Entry(_section(7), "paraproduct"),
            "holder_exponent": Entry(
                _section(7)
                + r". :math:`\mathrm{rms}(dd') \approx c\,2^{-\alpha(j + j')}`, fitted over :math:`j + j' \ge 2`",
                "HolderExponent regularity paraproduct",
            ),
            "HolderExponent": Entry(_section(7), "holder_exponent"),
            "regularity": Entry(_section(7, "figure 1 of [OA]"), "Regularity holder_exponent"),
            "Regularity": Entry(_section(7), "regularity"),
            "softmax_invariance": Entry(
                _section(7, "theorem 2 and corollary 1, eq. (17) and (18) of [OA]"), "SoftmaxInvariance paraproduct"
            ),
            "SoftmaxInvariance": Entry(_section(7), "softmax_invariance"),
        },
    ),
    "heads": Group(
        "What heads do",
        "Measures and roles of single heads. The :doc:`glossary <glossary>` explains every column.",
        {
            "diagnostics": Entry(_DIAGNOSTICS, "Diagnostics head_roles overlap"),
            "Diagnostics": Entry(_DIAGNOSTICS, "diagnostics"),
            "head_roles": Entry(
                _DIAGNOSTICS
                + r". Excess: :math:`(\mathrm{share} - \mathrm{chance}) / (1 - \mathrm{chance})`;"
                + " Clark et al. 2019, Voita et al. 2019",
                "Roles diagnostics describe_folders",
            ),
            "Roles": Entry(_DIAGNOSTICS, "head_roles"),
            "induction": Entry("Olsson et al. 2022; " + _DIAGNOSTICS, "Induction head_roles"),
            "Induction": Entry("Olsson et al. 2022", "induction"),
            "doubly_normalized": Entry("Ding et al. 2020; " + _DIAGNOSTICS, "AttentionTensor"),
            "attention_rollout": Entry(
                "Abnar and Zuidema 2020. "
                + r":math:`R_l = \tfrac12 (I + \bar A_l) R_{l-1}`, with :math:`\bar A_l` the mean head of layer l",
                "attention_relevance",
            ),
            "attention_relevance": Entry(
                r"Chefer et al. 2021: :math:`(\nabla A \odot A)^+`, through the layers",
                "Relevance attention_rollout",
            ),
            "Relevance": Entry("Chefer et al. 2021", "attention_relevance"),
            "overlap": Entry(_DIAGNOSTICS + "; Spearman's rank correlation", "diagnostics head_entropy"),
        },
    ),
    "effects": Group(
        "What happens without a head",
        "Ablation: the change of loss, and how heads replace each other.",
        {
            "head_effects": Entry(
                "Michel et al. 2019, with a control variate: "
                + r":math:`\Delta_h = L_{\setminus h} - L`, estimated by the mean of :math:`\Delta + g` where heads"
                + r" were ablated, minus the mean of the first-order term :math:`g` over many more inputs",
                "HeadEffects interactions ModelView",
            ),
            "HeadEffects": Entry("Michel et al. 2019", "head_effects"),
            "interactions": Entry("the equation above", "Interactions head_effects"),
            "Interactions": Entry(r":math:`I_g = \Delta_g - \sum_{h \in g} \Delta_h`", "interactions"),
        },
    ),
    "pruning": Group(
        "Pruning",
        "Rank heads, remove them, and measure what is lost.",
        {
            "head_importance": Entry(":doc:`/pruning`", "HeadImportance prune_curve head_effects"),
            "HeadImportance": Entry(":doc:`/pruning`", "head_importance"),
            "prune_heads": Entry(
                ":doc:`/pruning`. With ``refit``:"
                + r" :math:`\min_{W, b} \tfrac1n \|ZW + b - (X^{whole} - X)\|^2 + \lambda \|W - W_O\|^2`",
                "head_importance save_pruned model_cost",
            ),
            "prune_curve": Entry(":doc:`/pruning`", "PruneCurve head_importance"),
            "PruneCurve": Entry(":doc:`/pruning`", "prune_curve"),
            "model_cost": Entry(":doc:`/pruning`", "ModelCost prune_heads"),
            "ModelCost": Entry(":doc:`/pruning`", "model_cost"),
            "save_pruned": Entry(":doc:`/pruning`", "load_pruned prune_heads"),
            "load_pruned": Entry(":doc:`/pruning`", "save_pruned"),
        },
    ),
    "depth": Group(
        "Depth",
        "How fast tokens become alike, and what paths through the layers carry.",
        {
            "rank_residual": Entry(
                _DEPTH
                + r". :math:`\|X - \mathbf{1}\bar x^T\| / \|X\|` in the norm"
                + r" :math:`\|\cdot\| = \sqrt{\|\cdot\|_1\|\cdot\|_\infty}`",
                "RankResidual path_lengths",
            ),
            "RankResidual": Entry(_DEPTH, "rank_residual"),
            "path_lengths": Entry(_DEPTH, "PathLengths frozen_networks"),
            "PathLengths": Entry(_DEPTH, "path_lengths"),
            "frozen_networks": Entry(_DEPTH, "FrozenNetwork path_lengths"),
            "FrozenNetwork": Entry(_DEPTH, "frozen_networks"),
        },
    ),
    "comparison": Group(
        "Comparing networks",
        "In what networks differ, and whether other inputs would make as large a difference.",
        {
            "compare": Entry(
                ":doc:`/comparison`; Gromov-Wasserstein distance, Mémoli 2011", "Comparison write_comparison"
            ),
            "Comparison": Entry(":doc:`/comparison`", "compare"),
            "write_comparison": Entry(":doc:`/comparison`", "compare write_report"),
        },
    ),
    "tokens": Group(
        "Tokens through the network",
        "What of the residual stream comes from each token, and which method knows which tokens matter.",
        {
            "TokenTensor": Entry(":doc:`/token_tensor`", "ModelView token_relevance"),
            "token_relevance": Entry(":doc:`/token_tensor`", "perturbation_test attention_relevance"),
            "perturbation_test": Entry(":doc:`/token_tensor`", "PerturbationTest token_relevance"),
            "PerturbationTest": Entry(":doc:`/token_tensor`", "perturbation_test"),
        },
    ),
    "runs": Group(
        "Runs, pages and errors",
        "What the command line writes, read in Python. See also :doc:`run_folder`.",
        {
            "open_run": Entry("", "Run show write_report"),
            "Run": Entry("", "open_run"),
            "show": Entry("", "write_report open_run"),
            "write_report": Entry("", "show open_run"),
            "Section": Entry("", "Run"),
            "HeadtreeError": Entry("", "HeadtreeWarning"),
            "HeadtreeWarning": Entry("", "HeadtreeError"),
            "__version__": Entry("", ""),
        },
    ),
}
