"""Chemical reactions as text for rxnmapper, made by rules: no data set of reactions comes with headtree.

Each rule writes the reactants and the product of a common reaction around two groups of atoms. All strings are
valid reaction SMILES; nobody claims that each reaction has been run.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from headtree.errors import InvalidValueError, MissingPackageError

#: What people should know about where the inputs of rxnmapper come from.
ORIGIN = "reaction SMILES made by 12 rules from 24 groups of atoms (no data set)"

#: Reactants and product; {a} and {b} are groups that begin with the atom by which they are bound. Rings of groups
#: have the numbers 1 and 2, rings around groups 3.
RULES = (
    "O=C(O){a}.OC{b}>>O=C(OC{b}){a}",  # esterification
    "O=C(O){a}.NC{b}>>O=C(NC{b}){a}",  # amide coupling
    "O=C(Cl){a}.NC{b}.CCN(CC)CC>>O=C(NC{b}){a}",  # acylation with a base
    "OB(O)c3ccc({a})cc3.Brc3ccc({b})cc3>>c3cc({a})ccc3-c3ccc({b})cc3",  # Suzuki coupling
    "BrC{a}.OC{b}.[Na]>>C(OC{b}){a}",  # Williamson ether synthesis
    "O=C({a})C{b}.[BH4-].[Na+]>>OC({a})C{b}",  # reduction of a ketone
    "O=C{a}.NC{b}.[BH3-]C#N.[Na+]>>C(NC{b}){a}",  # reductive amination
    "O=[N+]([O-])c3ccc({a})c({b})c3.[H][H].[Pd]>>Nc3ccc({a})c({b})c3",  # reduction of a nitro group
    "COC(=O)C({a})C{b}.[OH-].[Na+].O>>OC(=O)C({a})C{b}",  # hydrolysis of an ester
    "O=S(=O)(Cl){a}.NC{b}.c1ccncc1>>O=S(=O)(NC{b}){a}",  # sulfonamide formation
    "CC(C)(C)OC(=O)NC({a})C{b}.OC(=O)C(F)(F)F>>NC({a})C{b}",  # removal of a Boc group
    "ClC{a}.[N-]=[N+]=[N-].[Na+].OC{b}>>[N-]=[N+]=NC{a}",  # azide formation in an alcohol
)

GROUPS = (
    "C",
    "CC",
    "CCC",
    "C(C)C",
    "CC(C)C",
    "C1CC1",
    "C1CCCC1",
    "C1CCCCC1",
    "c1ccccc1",
    "c1ccc(F)cc1",
    "c1ccc(Cl)cc1",
    "c1ccc(OC)cc1",
    "c1ccc(C#N)cc1",
    "c1cccc(C)c1",
    "c1ccncc1",
    "c1ccco1",
    "c1cccs1",
    "Cc1ccccc1",
    "CCc1ccccc1",
    "CCOC",
    "CC(F)(F)F",
    "C1CCOCC1",
    "c1cnn(C)c1",
    "c1ccc2ccccc2c1",
)


def reactions(n: int, seed: int) -> list[str]:
    """Different reactions in a random order; the rules take turns, so each has about the same share."""
    most = len(RULES) * len(GROUPS) ** 2
    if not 1 <= n <= most:
        raise InvalidValueError(f"n must be 1 to {most}, the number of different reactions, got {n}")
    rng = np.random.default_rng(seed)
    pairs = [rng.permutation(len(GROUPS) ** 2) for _ in RULES]
    found = []
    for i in range(n):
        rule, turn = i % len(RULES), i // len(RULES)
        a, b = divmod(int(pairs[rule][turn]), len(GROUPS))
        found.append(RULES[rule].format(a=GROUPS[a], b=GROUPS[b]))
    return [found[i] for i in rng.permutation(n)]


def rxnmapper_folder() -> Path:
    """The folder of the weights in the package rxnmapper, whose own code needs an older transformers."""
    spec = find_spec("rxnmapper")
    if spec is None or spec.origin is None:
        raise MissingPackageError(
            "the network rxnmapper needs rxnmapper, which is not installed: pip install --no-deps rxnmapper==0.4.3"
        )
    return next((Path(spec.origin).parent / "models" / "transformers").iterdir())


def reaction_tokenizer(folder: Path) -> Any:
    """One token per atom or bond, as rxnmapper reads reactions; its files hold only the words."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {word: i for i, word in enumerate(words) if word}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\[[^\]]+\]|Br?|Cl?|>>|[A-Za-z0-9]|\S"), "isolated")
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "mask", "pad")}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)
