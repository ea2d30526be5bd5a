"""Run the later blocks of a model alone: the blocks before them return what they returned in an earlier pass.

An intervention in layer l changes nothing before it, so a pass that measures it need not compute the blocks before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only


def block_paths(names: Sequence[str]) -> list[str] | None:
    """Paths of the blocks that hold some attention modules, one block for each; None if they do not have their own.

    Examples
    --------
    >>> block_paths(["encoder.layer.0.attention.self", "encoder.layer.1.attention.self"])
    ['encoder.layer.0', 'encoder.layer.1']
    >>> block_paths(["layer.attention", "layer.attention"])  # one module, called twice
    """
    paths = [name.split(".") for name in names]
    for depth in range(min(map(len, paths))):
        components = [path[depth] for path in paths]
        if len(set(components)) > 1:
            is_numbered = all(component.isdigit() for component in components)
            is_distinct = len(set(components)) == len(components)
            return [".".join(path[: depth + 1]) for path in paths] if is_numbered and is_distinct else None
    return None


class SharedPrefix:
    """The outputs of a model's blocks in one forward pass, from which later passes can resume.

    Parameters
    ----------
    model : module
        Its blocks must be functions of their arguments alone.
    paths : list of str, optional
        Paths of the blocks, in the order in which they run; None: nothing is shared.
    """

    def __init__(self, model: nn.Module, paths: Sequence[str] | None) -> None:
        self.blocks = [] if paths is None else [model.get_submodule(path) for path in paths]
        self._outputs: dict[int, Any] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Keep the outputs of all blocks while the block of code runs."""
        self._outputs.clear()

        def keep(index: int) -> Any:
            def hook(_: nn.Module, __: Any, output: Any) -> None:
                self._outputs[index] = _copied(output)

            return hook

        handles = [block.register_forward_hook(keep(i)) for i, block in enumerate(self.blocks)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def from_block(self, first: int) -> Iterator[None]:
        """Let the blocks before `first` return what they returned while recording."""
        skipped = [(block, self._outputs[i]) for i, block in enumerate(self.blocks[:first]) if i in self._outputs]
        before: list[tuple[Any, Any]] = [(block, vars(block).get("forward")) for block, _ in skipped]
        try:
            for block, output in skipped:
                block.forward = lambda *_, output=output, **__: _copied(output)
            yield
        finally:
            for block, own_forward in before:
                if own_forward is None:
                    del block.forward
                else:
                    block.forward = own_forward

    def forget(self) -> None:
        """Free the outputs."""
        self._outputs.clear()


def _copied(output: Any) -> Any:
    """A copy whose tensors may be changed in place."""
    return tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), output)
