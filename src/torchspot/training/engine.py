"""Engines: where and how player steps run. As written, compiled, captured into a CUDA graph; in many processes."""

__all__ = ["Captured", "Compiled", "Distributed", "Eager", "choose_device", "choose_engine"]

import copy
import importlib.util
import math
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torchspot.errors import InvalidArgument
from torchspot.training.ranks import Ranks, launched, local_rank
from torchspot.types import Engine, Parts, Step, Steps

_WARM_UP = 3
_TIMED = 20


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
        return _EagerStep(_in_precision(turn, self.autocast))

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
        return _CapturedStep(_in_precision(turn, self.autocast), self._pool, rounding=self.autocast or self.dtype)

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
        return _CompiledStep(turn, self.backend, self.outlast, self._pool)

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
        self.ranks = Ranks(backend, timeout=timeout)
        self.engine = copy.copy(choose_engine() if engine is None else engine)
        if isinstance(self.engine, Compiled):
            self.engine.outlast = 0.0
        self.device, self.dtype = self.engine.device, self.engine.dtype

    @contextmanager
    def running(self) -> Iterator[None]:
        """As the engine of this process."""
        with self.engine.running():
            yield

    def prepare(self, turn: Steps) -> Step:
        """The step of this process with the gradient of all, from where the first process stands."""
        self.ranks.share_([*turn.tensors(), *turn.frozen()])
        return self.engine.prepare(_Averaged(turn, self.ranks))

    def __repr__(self) -> str:
        return f"Distributed({self.engine!r}, {self.ranks.rank} of {self.ranks.count})"


class _Averaged:
    """A player's steps with loss and gradient averaged over processes: one message a step."""

    def __init__(self, turn: Steps, ranks: Ranks) -> None:
        self._turn, self._ranks = turn, ranks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._turn, name)

    def update(self, parts: Parts | None = None) -> None:
        """The step on the device."""
        loss, move = parts or self._turn.parts()

        def move_together(value: Tensor, gradient: Tensor, numbers: Tensor) -> None:
            message = torch.cat((gradient, value.to(gradient).reshape(1)))
            self._ranks.average_(message)
            move(message[-1], message[:-1], numbers)

        self._turn.update(Parts(loss, move_together))


def _in_precision(turn: Steps, precision: torch.dtype | None) -> Steps:
    return turn if precision is None else _InPrecision(turn, precision)


def _said(precision: torch.dtype | None) -> str:
    return "" if precision is None else f", autocast={precision}"


class _InPrecision:
    """A player's steps with products and convolutions of its loss in a lower precision; all else as it is.

    The region is left at the end of each loss: what is cast is cast again in the next, from weights that moved.
    """

    def __init__(self, turn: Steps, precision: torch.dtype) -> None:
        self._turn, self._precision = turn, precision

    def __getattr__(self, name: str) -> Any:
        return getattr(self._turn, name)

    def parts(self) -> Parts:
        """What the player does, its loss in this precision."""
        loss, move = self._turn.parts()

        def lowered(batch: tuple[Tensor, ...]) -> Tensor:
            with torch.autocast(self._turn.generator.device.type, self._precision):
                return loss(batch)

        return Parts(lowered, move)

    def update(self, parts: Parts | None = None) -> None:
        """The step on the device."""
        self._turn.update(parts or self.parts())


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


class _EagerStep:
    """The step as it is written, or with compiled parts."""

    def __init__(self, turn: Steps, parts: Parts | None = None) -> None:
        self.turn, self.parts = turn, parts
        self.how = "eager" if parts is None else "compiled"

    def __call__(self) -> None:
        self.turn.advance()
        self.turn.update(self.parts)


class _CapturedStep:
    """Eager for a few steps, then recorded, then replayed; with compiled parts where given."""

    def __init__(
        self, turn: Steps, pool: Any, parts: Parts | None = None, *, rounding: torch.dtype = torch.float32
    ) -> None:
        self.turn, self.parts = turn, parts
        self._rounding = torch.finfo(rounding).eps
        self.how = "eager"
        self._pool, self._graph = pool, torch.cuda.CUDAGraph()
        self._run: Callable[[], None] = self._warm_up
        self._left = _WARM_UP

    def __call__(self) -> None:
        self.turn.advance()
        self._run()

    def _warm_up(self) -> None:
        self.turn.update(self.parts)
        self._left -= 1
        if self._left == 0:
            self._run = self._capture

    def _capture(self) -> None:
        """Records the step, and keeps the recording if it does what the step itself does."""
        before = _clones(self.turn.tensors())
        self.turn.update(self.parts)
        after = _clones(self.turn.tensors())
        loss = float(self.turn.loss)
        _put_back(self.turn, before)
        reason = self._record()
        if reason is None:
            self._graph.replay()
            reason = _difference(self.turn, loss, before[0], after[0], self._rounding)
        if reason is None:
            self._run, self.how = self._graph.replay, f"captured{' and compiled' if self.parts else ''}"
            return
        _put_back(self.turn, after)
        self._run, self.how = self._update, f"eager, as {reason}"
        warnings.warn(f"steps of the {self.turn.name} run without a CUDA graph, as {reason}.", stacklevel=2)

    def _record(self) -> str | None:
        """None, or in words why it failed."""
        self._graph.register_generator_state(self.turn.generator)
        try:
            with torch.cuda.graph(self._graph, pool=self._pool, stream=torch.cuda.current_stream()):
                self.turn.update(self.parts)
        except Exception as error:  # whatever the user's own code raises when its values cannot be read
            _end_failed_capture(self.turn.generator)
            return f"recording failed ({_in_short(error)}): is a value read on the host, in the cost or a network?"
        finally:
            self.turn.seed()
        return None

    def _update(self) -> None:
        self.turn.update(self.parts)


class _CompiledStep:
    """Eager and timed for a few steps, then compiled if enough of the run is left, and captured on CUDA either way."""

    def __init__(self, turn: Steps, backend: str, outlast: float, pool: Any) -> None:
        self.turn, self.backend, self.outlast = turn, backend, outlast
        self._pool, self._why = pool, f", not compiled, as the run ended within {_TIMED} steps"
        self._step: Step = _EagerStep(turn)
        self._left, self._started = _TIMED if outlast > 0 else 1, 0.0
        missing = _missing_compiler(turn.generator.device) if backend == "inductor" else None
        if missing is not None:
            self._go_without(missing)

    @property
    def how(self) -> str:
        return self._step.how + self._why

    def __call__(self) -> None:
        if self._left == 0:
            self._decide()
        self._left -= 1
        self._started = self._started or time.perf_counter()
        self._step()

    def _decide(self) -> None:
        """Compiles, or says why not."""
        each = (time.perf_counter() - self._started) / _TIMED
        left = (self.turn.total - self.turn.count) * each
        if left < self.outlast:
            self._go_without(f"only about {left:.0f} s of steps were left (outlast={self.outlast:g})")
            return
        before = _clones(self.turn.tensors())
        parts = Parts(*(self._compiled(part) for part in self.turn.parts()))
        try:
            self.turn.update(parts)
        except Exception as error:  # a compiler has many ways to fail
            self._go_without(f"compiling failed ({_in_short(error)})")
            warnings.warn(f"steps of the {self.turn.name} run {self.how}.", stacklevel=3)
        else:
            self._why, self._step = "", self._captured_or(_EagerStep(self.turn, parts), parts)
        _put_back(self.turn, before)

    def _compiled(self, part: Any) -> Any:
        return torch.compile(part, backend=self.backend, dynamic=False)

    def _go_without(self, reason: str) -> None:
        self._left, self._why = -1, f", not compiled, as {reason}"
        self._step = self._captured_or(_EagerStep(self.turn), None)

    def _captured_or(self, step: Step, parts: Parts | None) -> Step:
        dtype = self.turn.tensors()[0].dtype
        return step if self._pool is None else _CapturedStep(self.turn, self._pool, parts, rounding=dtype)


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


def _clones(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


@torch.no_grad()
def _put_back(turn: Steps, values: list[Tensor]) -> None:
    """State and random numbers as they were before the step."""
    for tensor, value in zip(turn.tensors(), values, strict=True):
        tensor.copy_(value)
    turn.seed()


def _difference(turn: Steps, loss: float, before: Tensor, after: Tensor, rounding: float) -> str | None:
    """None where the step just done has the same loss up to rounding and moves the parameters alike.

    Rounding may differ from one call of a kernel to the next, and an optimiser that divides by the gradient's size
    makes much of it where a gradient is 0: so parameters are compared as a whole.
    """
    close = rounding**0.6
    same_loss = math.isclose(float(turn.loss), loss, rel_tol=close, abs_tol=close) or not math.isfinite(loss)
    moved_apart = float((turn.tensors()[0] - after).norm()) > max(0.1, 5 * close) * float((after - before).norm())
    if same_loss and not moved_apart:
        return None
    return "the recorded step gives other numbers: do the cost or the networks draw their own or keep a state?"


def _end_failed_capture(generator: torch.Generator) -> None:
    """A failed recording leaves random generators in recording mode; one that succeeds ends it."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        torch.zeros(1, device=generator.device)


def _missing_compiler(device: torch.device) -> str | None:
    """What torch.compile's own backend would need and does not find."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    named = os.environ.get("CC" if device.type == "cuda" else "CXX")
    usual = ("gcc", "clang", "cc") if device.type == "cuda" else ("g++", "clang++", "c++", "cl")
    if any(shutil.which(name) for name in ([named] if named else usual)):
        return None
    return f"no C{'' if device.type == 'cuda' else '++'} compiler was found (tried {', '.join(usual)})"


def _in_short(error: BaseException) -> str:
    """What went wrong first, in its first line (or two, where that one only announces the next)."""
    while error.__context__ is not None:
        error = error.__context__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])
