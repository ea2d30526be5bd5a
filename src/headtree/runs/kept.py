"""Finished pieces of a step, such as one input of several, kept in the run folder until all are there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headtree._files import atomic
from headtree.errors import InvalidValueError
from headtree.questionnaire.organization import Organization
from headtree.runs.organization_store import write_part
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.store import open_tensor, write_attention


@dataclass(frozen=True)
class KeptPiece:
    """Where to keep a piece; it can be sent to workers that see the run folder."""

    part: Path
    drafts: Path  #: folder for unfinished files

    def attention(self, att: AttentionTensor, identity: str, like: Path) -> AttentionTensor:
        """Write a tensor, in the chunks of another piece if it is there; returns it as it is on disk."""
        with self._written() as draft:
            write_attention(draft, [att], identity, like=like if like.exists() else None)
        return open_tensor(self.part, 0)

    def organization(self, org: Organization) -> None:
        """Write an organization."""
        with self._written() as draft:
            write_part(draft, org)

    @contextmanager
    def _written(self) -> Iterator[Path]:
        """A path to write at; a worker that is late must not make the folder of a run again that was removed."""
        if not self.part.parent.is_dir():
            raise InvalidValueError(
                f"{self.part.parent} is gone: the run was removed, or another one took its place"
            )
        with atomic(self.part, drafts=self.drafts) as draft:
            yield draft
