"""Train the paper's two networks, with progress, a validation curve, checkpoints and exact resume."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtree._files import atomic
from headtree._version import __version__
from headtree.errors import HeadtreeError, InvalidTypeError, InvalidValueError
from headtree.progress import progress
from headtree.study.training import checkpoint as disk
from headtree.study.training.datasets import (
    data_folder,
    download_cifar10,
    download_wikitext103,
    read_cifar10,
    read_wikitext,
)
from headtree.study.training.training_config import Training, named_config
from headtree.study.training.training_tasks import ImageTask, TextTask, TrainingTask
from headtree.study.training.training_watch import head_numbers, plot_history

#: Fraction of the steps in which a one-cycle schedule rises.
_RISE = 0.1

#: Typical floating-point operations per second of a data-centre GPU on such networks: a third of its peak.
_GPU_SPEED = 2e14


class DivergedError(HeadtreeError, ArithmeticError):
    """The loss became infinite or nan; the last checkpoint is unchanged."""


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """A training that has finished or stopped."""

    folder: Path
    step: int
    history: tuple[Mapping[str, Any], ...]  #: one row per checkpoint: step, losses, measures of the heads
    test: Mapping[str, float] | None  #: test results; None if the training has not finished


def train(
    network: str,
    config: str | Training = "small",
    *,
    output: str | PathLike[str],
    data: str | PathLike[str] | None = None,
    resume: bool = False,
    device: str | torch.device | None = None,
    steps: int | None = None,
    seed: int | None = None,
    stop_after: int | None = None,
    fast: bool = False,
) -> TrainingRun:
    """Train one of the paper's networks.

    Parameters
    ----------
    network : {"txl", "vit"}
        Transformer-XL on WikiText, or ViT on CIFAR-10.
    config : {"small", "paper"} or Training
        `small` trains in minutes on a GPU from the files in `data`. `paper` has the paper's size and downloads the
        paper's data; it needs a GPU.
    output : path
        Folder for checkpoints, result.json, history.csv and curve.svg.
    data : path, optional
        Folder with the WikiText files or with CIFAR-10, for `small`.
    resume : bool
        Continue from the last checkpoint in `output`, exactly as if there had been no interruption.
    device : optional
        Where to train; by default a GPU if there is one.
    steps, seed : int, optional
        Replace those of the configuration.
    stop_after : int, optional
        Write a checkpoint after this step and stop; `resume` continues from it.
    fast : bool
        Compile the blocks, and on a GPU run the steps of the Transformer-XL as CUDA graphs, which takes less than
        half the time. Gradients are equal up to the rounding of bfloat16.

    Notes
    -----
    On a GPU, matrix products run in bfloat16. All random numbers depend on the seed; the state of torch's global
    generators is restored at the end.
    """
    settings = named_config(network, config) if isinstance(config, str) else config
    if not isinstance(settings, Training):
        raise InvalidTypeError(f"config must be 'small', 'paper' or a Training, got {type(config).__name__}")
    if settings.network != network:
        raise InvalidValueError(f"config is for the network {settings.network!r}, but network is {network!r}")
    settings = replace(
        settings, steps=settings.steps if steps is None else steps, seed=settings.seed if seed is None else seed
    )
    where = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
    if where.type == "cuda" and not torch.cuda.is_available():
        raise InvalidValueError(f"device is {str(where)!r}, but torch sees no GPU; leave device out")
    is_paper = config == "paper"
    if is_paper and where.type != "cuda":
        raise InvalidValueError(_too_slow(settings))
    folder = Path(output)
    _check_output(folder, resume)
    before = _last_checkpoint(folder, settings) if resume else None
    with _own_random_numbers(settings.seed, where), _fast_products():
        task = make_task(settings, data, where, is_paper)
        loop = _TrainingLoop(task, settings, folder, where, fast=fast)
        if before is not None:
            loop.go_back_to(before)
        return loop.run(stop_after)


def make_task(settings: Training, data: Any, device: torch.device, is_paper: bool) -> TrainingTask:
    """Read the data and set up the network."""
    if settings.network == "txl":
        text = download_wikitext103() if is_paper and data is None else read_wikitext(data_folder(data))
        return TextTask(settings, text, device)
    images = download_cifar10() if is_paper and data is None else read_cifar10(data_folder(data))
    return ImageTask(settings, images, device)


def _check_output(folder: Path, resume: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise InvalidValueError(f"output must be a folder, but {folder} is a file; choose another path")
    there = disk.checkpoints(folder) if folder.exists() else {}
    if there and not resume:
        raise InvalidValueError(
            f"output {folder} already holds a training, up to step {max(there)}; pass resume (--resume) to "
            "continue it, or choose another folder"
        )
    if resume and not there:
        raise InvalidValueError(f"output {folder} holds no checkpoint to resume from; leave resume out to start")


def _last_checkpoint(folder: Path, settings: Training) -> disk.Checkpoint:
    path = list(disk.checkpoints(folder).values())[-1]
    found = disk.load(path)
    disk.check_same(path, settings.to_dict(), found.about["settings"])
    return found


class _TrainingLoop:
    """The training loop, with the state that a checkpoint must hold."""

    def __init__(
        self, task: TrainingTask, settings: Training, folder: Path, device: torch.device, fast: bool
    ) -> None:
        self.task, self.settings, self.folder, self.device = task, settings, folder, device
        self.model = task.model
        self.optimizer = _optimizer(self.model, settings, device)
        self.step = 0
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.fast = fast
        is_recorded = fast and task.can_be_recorded and device.type == "cuda"
        self._gradients = (_Recorded if is_recorded else _Gradients)(task, device)

    def run(self, stop_after: int | None) -> TrainingRun:
        """Train to the end, or to the step to stop after."""
        settings = self.settings
        last = settings.steps if stop_after is None else min(stop_after, settings.steps)
        losses: list[Tensor] = []
        self._clock = time.perf_counter()
        if self.step == 0 and not self.history:
            self._evaluate(losses)
        with progress(f"training {settings.network}", settings.steps) as step, _compiled(self.model, self.fast):
            for _ in range(self.step):
                step("")
            while self.step < last:
                losses.append(self._step())
                self.step += 1
                step(self._note())
                if self.step in settings.evaluation_steps or self.step == last:
                    self._evaluate(losses)
                    losses = []
        test = self._test() if self.step == settings.steps else None
        self._write_curve()
        return TrainingRun(self.folder, self.step, tuple(self.history), test)

    def _step(self) -> Tensor:
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.settings, self.step)
        loss, *results = self._gradients(self.task.batch(self.step))
        self.task.keep(*results)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        return loss.clone()

    def _evaluate(self, losses: list[Tensor]) -> None:
        """Validate, measure the heads and write a checkpoint."""
        loss = float(torch.stack(losses).mean()) if losses else None
        if loss is not None and not math.isfinite(loss):
            raise DivergedError(
                f"the training loss is {loss} before step {self.step}; the last checkpoint is unchanged; train "
                "again in a new folder with a smaller learning rate"
            )
        self.model.eval()
        with torch.no_grad(), _mixed_precision(self.device), _not_compiled(self.model):
            valid = self.task.evaluate()
        row: dict[str, Any] = {"step": self.step, "train_loss": loss}
        row.update({f"valid_{name}": value for name, value in valid.items()})
        row.update(self._heads(), learning_rate=learning_rate(self.settings, self.step))
        now = time.perf_counter()
        self.seconds, self._clock = self.seconds + now - self._clock, now
        self.history.append({**row, "seconds": round(self.seconds, 3)})
        self._save()

    def _heads(self) -> dict[str, float]:
        from headtree.models.capture import capture

        with _not_compiled(self.model), _fast_products(False):
            return head_numbers(capture(self.model, inputs=self.task.probe(), kind="scores")[0])

    def _note(self) -> str:
        if not self.history:
            return ""
        row = self.history[-1]
        name = "perplexity" if "valid_perplexity" in row else "accuracy"
        return f"validation {name} {row[f'valid_{name}']:.4g} at step {row['step']}"

    def _test(self) -> dict[str, float]:
        self.model.eval()
        with torch.no_grad():
            test = self.task.test()
        disk.write_json(self.folder / "result.json", {"test": test})
        return test

    def _save(self) -> None:
        state = {f"optimizer.{key}": value for key, value in _optimizer_tensors(self.optimizer).items()}
        state |= {f"task.{key}": value for key, value in self.task.tensors().items()}
        state |= {f"random.{key}": value for key, value in _random_states(self.device).items()}
        about = {
            "headtree": __version__,
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            "settings": self.settings.to_dict(),
            "config": self.task.config(),
            "history": self.history,
            "seconds": self.seconds,
        }
        weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        disk.save(self.folder, disk.Checkpoint(self.step, weights, state, about), keep=self.settings.stage_steps)

    def go_back_to(self, saved: disk.Checkpoint) -> None:
        """Restore the state of a checkpoint."""
        parts = {"optimizer": {}, "task": {}, "random": {}}  # type: dict[str, dict[str, Tensor]]
        for key, value in saved.state.items():
            part, _, name = key.partition(".")
            parts[part][name] = value
        self.model.load_state_dict(dict(saved.weights))
        _load_optimizer(self.optimizer, parts["optimizer"])
        self.task.load_tensors(parts["task"])
        _set_random_states(parts["random"], self.device)
        self.step = saved.step
        self.history = [dict(row) for row in saved.about["history"]]
        self.seconds = float(saved.about["seconds"])

    def _write_curve(self) -> None:
        names = list(self.history[-1])
        with (
            atomic(self.folder / "history.csv") as draft,
            draft.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(self.history)
        with suppress(ImportError):  # matplotlib is optional; history.csv has the numbers
            plot_history(self.history, self.folder / "curve.svg", f"{self.settings.network}, {self.step} steps")


class _Gradients:
    """Compute the gradients of a batch; returns the loss and the other results of the task's loss."""

    def __init__(self, task: TrainingTask, device: torch.device) -> None:
        self.task, self.device = task, device

    def __call__(self, batch: Mapping[str, Tensor]) -> list[Tensor]:
        self.task.model.zero_grad(set_to_none=True)
        with _mixed_precision(self.device):
            loss, *results = self.task.loss(**batch)
        loss.backward()
        return [loss.detach(), *(result.detach() for result in results)]


class _Recorded(_Gradients):
    """The same, as one CUDA graph for each batch shape.

    Launching thousands of kernels one by one takes the CPU longer than the GPU takes to run them.
    """

    def __init__(self, task: TrainingTask, device: torch.device) -> None:
        super().__init__(task, device)
        self._weights = list(task.model.parameters())
        self._graphs: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def __call__(self, batch: Mapping[str, Tensor]) -> list[Tensor]:
        key = tuple((name, tensor.shape) for name, tensor in batch.items())
        if key not in self._graphs:
            self._graphs[key] = self._record(batch)
        graph, inputs, results, gradients = self._graphs[key]
        for name, tensor in batch.items():
            inputs[name].copy_(tensor)
        graph.replay()
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = gradient
        return list(results)

    def _record(self, batch: Mapping[str, Tensor]) -> tuple[Any, ...]:
        inputs = {name: tensor.clone() for name, tensor in batch.items()}
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        aside = torch.cuda.Stream(index)
        aside.wait_stream(torch.cuda.current_stream(index))
        with torch.random.fork_rng([index]), torch.cuda.stream(aside):  # compile and warm up first
            for _ in range(3):
                super().__call__(inputs)
        torch.cuda.current_stream(index).wait_stream(aside)
        self.task.model.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            results = super().__call__(inputs)
        return graph, inputs, results, [weight.grad for weight in self._weights]


def learning_rate(settings: Training, step: int) -> float:
    """The learning rate of a step: constant, or half a cosine down to 0, after a linear rise for one-cycle."""
    if settings.schedule == "constant":
        return settings.learning_rate
    done = step / settings.steps
    rise = _RISE if settings.schedule == "one-cycle" else 0.0
    if done < rise:
        return settings.learning_rate * max(done / rise, 1e-3)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * (done - rise) / (1 - rise)))


def _optimizer(model: nn.Module, settings: Training, device: torch.device) -> torch.optim.Optimizer:
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    rate, fused = settings.learning_rate, device.type == "cuda"
    if settings.optimizer == "adam":
        return torch.optim.Adam(groups, lr=rate, fused=fused)
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=fused)


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    entries = optimizer.state_dict()["state"]
    return {f"{i}.{name}": value for i, entry in entries.items() for name, value in entry.items()}


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    entries: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        i, _, name = key.partition(".")
        entries.setdefault(int(i), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": entries})


@contextmanager
def _own_random_numbers(seed: int, device: torch.device) -> Iterator[None]:
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


@contextmanager
def _fast_products(fast: bool = True) -> Iterator[None]:
    """Allow or forbid TF32 in the remaining float32 matrix products while the block runs."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if fast else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _random_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    return {**states, "cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else states


def _set_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


@contextmanager
def _mixed_precision(device: torch.device) -> Iterator[None]:
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        yield


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The identical layers of the network; compiled one by one, they share the compiled code."""
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max((list(stack) for stack in stacks), key=len, default=[])


@contextmanager
def _compiled(model: nn.Module, wanted: bool) -> Iterator[None]:
    if wanted:
        for block in _blocks(model):
            block.compile(dynamic=False)
    try:
        yield
    finally:
        for block in _blocks(model):
            block._compiled_call_impl = None


@contextmanager
def _not_compiled(model: nn.Module) -> Iterator[None]:
    """Use the plain modules while the block runs, so capture can look inside them."""
    before = [(block, block._compiled_call_impl) for block in _blocks(model)]
    try:
        for block, _ in before:
            block._compiled_call_impl = None
        yield
    finally:
        for block, call in before:
            block._compiled_call_impl = call


def _too_slow(settings: Training) -> str:
    """Why the paper's configuration is refused without a GPU, with the time it would take."""
    speed, work = _measured_speed(), operations(settings)
    return (
        f"config 'paper' needs a GPU: its training is about {work:.0e} operations, {_span(work / speed)} at the "
        f"{speed / 1e9:.0f} billion per second measured on this CPU, about {_span(work / _GPU_SPEED)} "
        "on one data-centre GPU; train 'small', or run this where torch sees a GPU"
    )


def operations(settings: Training) -> float:
    """Floating-point operations of a training, within a few percent: six per weight and token, plus attention."""
    if settings.network == "txl":
        s = {
            "n_layers": 16,
            "n_heads": 8,
            "width": 128,
            "head_size": 16,
            "inner": 512,
            "embedding": 64,
            "memory": 150,
            **settings.sizes,
        }
        words = 267_735 if s["width"] > 200 else 33_278
        inner = s["n_heads"] * s["head_size"]
        layer = 5 * s["width"] * inner + 2 * s["width"] * s["inner"]
        pairs = 3 * inner * (settings.context + s["memory"])
        tokens = settings.batch * settings.context
        return float(6 * settings.steps * tokens * (s["n_layers"] * (layer + pairs) + words * s["embedding"]))
    s = {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072, **settings.sizes}
    width = s["hidden_size"]
    layer = 4 * width * width + 2 * width * s["intermediate_size"] + 2 * width * 197
    return float(6 * settings.steps * settings.batch * 197 * s["num_hidden_layers"] * layer)


def _measured_speed() -> float:
    """Floating-point operations per second of a matrix product on this CPU."""
    a = torch.ones(768, 768)
    a @ a
    start, n = time.perf_counter(), 0
    while time.perf_counter() - start < 0.2:
        a @ a
        n += 1
    return 2 * 768**3 * n / (time.perf_counter() - start)


def _span(seconds: float) -> str:
    for name, length in (("years", 365.25 * 86400), ("days", 86400.0), ("hours", 3600.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {name}"
    return f"{max(1, seconds / 60):.0f} minutes"
