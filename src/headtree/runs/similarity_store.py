"""`similarity.zarr` of a run: for each similarity of heads, the tree that the inputs agree on and its support."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from headtree.measures.consensus import Consensus
from headtree.measures.families import Growth, Replication
from headtree.tensor.zarr_dataset import Variable, create, finish, open_group, put
from headtree.trees.tree import PartitionTree

FORMAT = "headtree.run.similarity/3"


def write_similarities(folder: Path, found: Mapping[str, Consensus]) -> None:
    """Write one consensus per kind of similarity; the first is the one that families are made of."""
    about = {
        kind: {
            "inputs": each.n_inputs,
            "bootstrap": each.n_bootstrap,
            "replication": None if each.replication is None else list(each.replication),
            "growth": [list(step) for step in each.growth],
        }
        for kind, each in found.items()
    }
    group = create(folder, {"format": FORMAT, "kinds": list(found), "about": json.dumps(about)})
    for kind, each in found.items():
        for name, variable in _variables(kind, each).items():
            put(group, name, variable)
    finish(folder)


def _variables(kind: str, consensus: Consensus) -> dict[str, Variable]:
    prefix, folders = _prefix(kind), (f"{_prefix(kind)}_folder",)
    likeness = {} if consensus.likeness is None else {f"{prefix}_likeness": Variable(folders, consensus.likeness)}
    return {
        f"{prefix}_tree": Variable((f"{prefix}_level", "head"), consensus.tree.labels),
        f"{prefix}_affinity": Variable(("head", "head_2"), consensus.affinity),
        f"{prefix}_node": Variable(folders, consensus.node),
        f"{prefix}_transfer": Variable(folders, consensus.transfer),
        f"{prefix}_support": Variable(folders, consensus.support),
        **likeness,
    }


def _prefix(kind: str) -> str:
    return kind.replace("-", "_")


def read_similarities(path: Path) -> dict[str, Consensus]:
    """What `write_similarities` wrote, in the same order."""
    group = open_group(path, FORMAT)
    about = json.loads(str(group.attrs["about"]))
    found = {}
    for kind in map(str, group.attrs["kinds"]):
        prefix, own = _prefix(kind), about[kind]
        found[kind] = Consensus(
            kind=kind,
            tree=PartitionTree(group[f"{prefix}_tree"][:]),
            affinity=np.asarray(group[f"{prefix}_affinity"][:]),
            transfer=np.asarray(group[f"{prefix}_transfer"][:]),
            support=np.asarray(group[f"{prefix}_support"][:]),
            replication=None if own["replication"] is None else Replication(*own["replication"]),
            growth=tuple(Growth(*step) for step in own["growth"]),
            n_inputs=int(own["inputs"]),
            n_bootstrap=int(own["bootstrap"]),
            likeness=np.asarray(group[f"{prefix}_likeness"][:]) if f"{prefix}_likeness" in group else None,
        )
    return found
