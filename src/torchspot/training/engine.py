"""Engines: where and how player steps run. As written, compiled, captured into a CUDA graph; in many processes."""

__all__ = ["Captured", "Compiled", "Distributed", "Eager", "choose_device", "choose_engine"]

import copy
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torchspot.errors import InvalidArgument
from torchspot.training.meeting import launched, local_rank
from torchspot.training.ranks import Ranks
from torchspot.training.steps import Averaged, CapturedStep, CompiledStep, EagerStep, in_precision
from torchspot.types import Engine, Step, Steps


class Eager:
    """Runs every step as it is written.

    Args:
        device: "auto" takes a CUDA device where there is one, else the CPU.
        dtype: of the networks.
        threads: CPU threads while steps run; one is fastest for networks narrower than 128 units.
        autocast: precision of products and convolutions in the losses (torch.bfloat16); None: that of the networks.
            Weights, their updates and the cost stay as they are.
    """

    def __init__(
        self,
        device: str = "auto",
        *,
        dtype: torch.dtype = torch.float32,
        threads: int = 1,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.device = choose_device(device)
        self.dtype, self.threads, self.autocast = dtype, threads, autocast

    @contextmanager
    def running(self) -> Iterator[None]:
        """Sets the number of threads, and puts it back."""
        with _threads(self.threads):
            yield

    def prepare(self, turn: Steps) -> Step:
        """The step itself."""
        return EagerStep(in_precision(turn, self.autocast))

    def __repr__(self) -> str:
        return f"Eager(device={str(self.device)!r}, dtype={self.dtype}, threads={self.threads}{_said(self.autocast)})"


class Captured:
    """Records each player's step once as a CUDA graph and replays it: no launches from the host, no waiting for it.

    The first steps run eagerly, then one is recorded and its result compared with the eager one. A step that cannot
    be recorded (a cost that looks at its values on the host, say) stays eager, with a warning that says why.

    Args:
        device: a CUDA device; "auto" takes the first.
        dtype: of the networks.
        autocast: precision of products and convolutions in the losses (torch.bfloat16); None: that of the networks.
            Weights, their updates and the cost stay as they are.
    """

    def __init__(
        self, device: str = "auto", *, dtype: torch.dtype = torch.float32, autocast: torch.dtype | None = None
    ) -> None:
        self.device = choose_device(device)
        if self.device.type != "cuda":
            raise InvalidArgument(f"steps are captured on CUDA devices only, and this is {self.device}. Use Eager().")
        self.dtype, self.autocast = dtype, autocast
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Works on one stream of its own, as graphs must be recorded off the default one."""
        with _own_stream(self.device):
            yield

    def prepare(self, turn: Steps) -> Step:
        """Captured from the fourth step on."""
        return CapturedStep(in_precision(turn, self.autocast), self._pool, rounding=self.autocast or self.dtype)

    def __repr__(self) -> str:
        return f"Captured(device={str(self.device)!r}, dtype={self.dtype}{_said(self.autocast)})"


class Compiled:
    """Fuses each player's step with torch.compile; on CUDA the fused step is also captured.

    The first steps run eagerly and are timed: a run that would end sooner than the compilation is not compiled, nor
    one on a machine without a compiler; the plan's facts say how it ran and why.

    Args:
        device: "auto" takes a CUDA device where there is one, else the CPU.
        dtype: of the networks.
        threads: CPU threads while steps run.
        backend: of torch.compile.
        outlast: seconds of eager steps that must be left to make compiling worth while.
    """

    def __init__(
        self,
        device: str = "auto",
        *,
        dtype: torch.dtype = torch.float32,
        threads: int = 1,
        backend: str = "inductor",
        outlast: float = 120.0,
    ) -> None:
        self.device = choose_device(device)
        self.dtype, self.threads, self.backend, self.outlast = dtype, threads, backend, outlast
        self._pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Sets the number of threads and, on CUDA, a stream of its own."""
        with _threads(self.threads), _own_stream(self.device):
            yield

    def prepare(self, turn: Steps) -> Step:
        """Compiled once it has shown to be worth it."""
        return CompiledStep(turn, self.backend, self.outlast, self._pool)

    def __repr__(self) -> str:
        return f"Compiled(device={str(self.device)!r}, dtype={self.dtype}, backend={self.backend!r})"


class Distributed:
    """Runs each step in several processes, on one machine or many, and averages their gradients.

    Every process runs the same program, draws batches of its own (`batch_size` samples each) and takes the same step.
    The first one measures, calls callbacks and writes files. Statistics of batch norm are those of a process's own
    batches; plans and checkpoints have those of the first.

        torchrun --nproc-per-node=4 script.py      with SPOT(engine=engines.Distributed()) in it

    Args:
        engine: how steps run in each process; None chooses one for the process's own device. Compiled ones compile at
            once: by their clocks, processes might decide differently.
        backend: of torch.distributed; None takes gloo between CPUs and NCCL between GPUs.
        timeout: seconds that a process waits for the others.
    """

    def __init__(self, engine: Engine | None = None, *, backend: str | None = None, timeout: float = 1800.0) -> None:
        self.engine, self._chosen = copy.copy(engine or choose_engine()), engine is None
        if isinstance(self.engine, Compiled):
            self.engine.outlast = 0.0
        self.device, self.dtype = self.engine.device, self.engine.dtype
        self.ranks = Ranks(self.device, backend, timeout=timeout)

    def suited(self, *, pictures: bool) -> "Distributed":
        """With the usual engine for pictures (or other samples) in each process, where none was given."""
        suited = copy.copy(self)
        suited.engine = choose_engine(pictures=pictures) if self._chosen else self.engine
        return suited

    @contextmanager
    def running(self) -> Iterator[None]:
        """As the engine of this process."""
        with self.engine.running():
            yield

    def prepare(self, turn: Steps) -> Step:
        """The step of this process with the gradient of all, from where the first process stands."""
        self.ranks.share_([*turn.tensors(), *turn.frozen()])
        return self.engine.prepare(Averaged(turn, self.ranks))

    def __repr__(self) -> str:
        return f"Distributed({self.engine!r}, {self.ranks.rank} of {self.ranks.count})"


def engine_for(given: Engine | None, *, pictures: bool = False) -> Engine:
    """The engine that an estimator was given, or the usual one for its samples."""
    if isinstance(given, Distributed):
        return given.suited(pictures=pictures)
    if given is not None:
        return given
    if launched() and int(os.environ["WORLD_SIZE"]) > 1:
        warnings.warn(
            f"this is one of {os.environ['WORLD_SIZE']} processes that were started together, and it trains by itself. "
            "To train together give engine=engines.Distributed(); if each is to fit by itself, engine=engines.Eager().",
            stacklevel=2,
        )
    return choose_engine(pictures=pictures)


def choose_engine(device: str = "auto", *, pictures: bool = False) -> Engine:
    """Captured on CUDA, eager on the CPU. For pictures convolutions are in bfloat16 on CUDA, and on the CPU on half of
    torch's threads: all of them would wait for each other where another process is busy."""
    if choose_device(device).type == "cuda":
        return Captured(device, autocast=torch.bfloat16 if pictures else None)
    return Eager(device, threads=max(1, torch.get_num_threads() // 2) if pictures else 1)


def choose_device(name: str = "auto") -> torch.device:
    """The device of this name, or an error that lists what is there. Processes started together take one GPU each."""
    count = torch.cuda.device_count()
    if name in ("auto", "cuda") and count:
        return torch.device("cuda", local_rank() if launched() else torch.cuda.current_device())
    available = ["cpu", *(f"cuda:{k}" for k in range(count))]
    if name != "auto" and name not in available:
        raise InvalidArgument(f"there is no device {name!r} here. Available: auto, {', '.join(available)}.")
    return torch.device("cpu" if name == "auto" else name)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _own_stream(device: torch.device) -> Iterator[None]:
    """On CUDA: everything within runs on a side stream, after what came before and before what comes after."""
    if device.type != "cuda":
        yield
        return
    outside = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(outside)
    try:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            yield
    finally:
        outside.wait_stream(stream)


def _said(precision: torch.dtype | None) -> str:
    return "" if precision is None else f", autocast={precision}"
