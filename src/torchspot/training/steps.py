"""How a player's step is run: as written, compiled, as a CUDA graph; in low precision, with other processes."""

__all__ = ["Averaged", "CapturedStep", "CompiledStep", "EagerStep", "in_precision"]

import importlib.util
import math
import os
import shutil
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchspot.training.ranks import Ranks
from torchspot.types import Parts, Step, Steps

_WARM_UP = 3
_TIMED = 20


class EagerStep:
    """The step as it is written, or with compiled parts."""

    def __init__(self, turn: Steps, parts: Parts | None = None) -> None:
        self.turn, self.parts = turn, parts
        self.how = "eager" if parts is None else "compiled"

    def __call__(self) -> None:
        self.turn.advance()
        self.turn.update(self.parts)


class CapturedStep:
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
        reason = self._agreed(self._record())
        if reason is None:
            self._graph.replay()
            reason = self._agreed(_difference(self.turn, loss, before[0], after[0], self._rounding))
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

    def _agreed(self, reason: str | None) -> str | None:
        """Why it cannot be, here or in another process that steps with this one."""
        agreed = self.turn.agree(reason is None)
        return reason if agreed or reason is not None else "another process could not be recorded"

    def _update(self) -> None:
        self.turn.update(self.parts)


class CompiledStep:
    """Eager and timed for a few steps, then compiled if enough of the run is left, and captured on CUDA either way."""

    def __init__(self, turn: Steps, backend: str, outlast: float, pool: Any) -> None:
        self.turn, self.backend, self.outlast = turn, backend, outlast
        self._pool, self._why = pool, f", not compiled, as the run ended within {_TIMED} steps"
        self._step: Step = EagerStep(turn)
        self._left, self._started = _TIMED if outlast > 0 else 1, 0.0
        missing = _missing_compiler(turn.generator.device) if backend == "inductor" else None
        if not turn.agree(missing is None):
            self._go_without(missing or "another process has no compiler")

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
        parts = Parts(*(self._compiled(part) for part in self.turn.parts()))
        failed = self._tried(parts)
        if self.turn.agree(failed is None):
            self._why, self._step = "", self._captured_or(EagerStep(self.turn, parts), parts)
        else:
            self._go_without(failed or "compiling failed in another process")
            warnings.warn(f"steps of the {self.turn.name} run {self.how}.", stacklevel=3)

    def _tried(self, parts: Parts) -> str | None:
        """Compiles, by a step that is undone and of which no other process hears; why that failed, if it did."""
        before = _clones(self.turn.tensors())
        try:
            self.turn.alone().update(parts)
        except Exception as error:  # a compiler has many ways to fail
            return f"compiling failed ({_in_short(error)})"
        finally:
            _put_back(self.turn, before)
        return None

    def _compiled(self, part: Any) -> Any:
        return torch.compile(part, backend=self.backend, dynamic=False)

    def _go_without(self, reason: str) -> None:
        self._left, self._why = -1, f", not compiled, as {reason}"
        self._step = self._captured_or(EagerStep(self.turn), None)

    def _captured_or(self, step: Step, parts: Parts | None) -> Step:
        dtype = self.turn.tensors()[0].dtype
        return step if self._pool is None else CapturedStep(self.turn, self._pool, parts, rounding=dtype)


class Averaged:
    """A player's steps with loss and gradient averaged over processes: one message a step."""

    def __init__(self, turn: Steps, ranks: Ranks) -> None:
        self._turn, self._ranks = turn, ranks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._turn, name)

    def alone(self) -> Steps:
        """The steps without the others."""
        return self._turn

    def agree(self, well: bool) -> bool:
        """Whether all is well in all processes."""
        return all(self._ranks.gather(well))

    def update(self, parts: Parts | None = None) -> None:
        """The step on the device."""
        loss, move = parts or self._turn.parts()

        def move_together(value: Tensor, gradient: Tensor, numbers: Tensor) -> None:
            message = torch.cat((gradient, value.to(gradient).reshape(1)))
            self._ranks.average_(message)
            move(message[-1], message[:-1], numbers)

        self._turn.update(Parts(loss, move_together))


def in_precision(turn: Steps, precision: torch.dtype | None) -> Steps:
    """The steps with their losses in this precision; as they are for None."""
    return turn if precision is None else _InPrecision(turn, precision)


class _InPrecision:
    """A player's steps with products and convolutions of its loss in a lower precision; all else as it is.

    The region is left at the end of each loss: what is cast is cast again in the next, from weights that moved.
    """

    def __init__(self, turn: Steps, precision: torch.dtype) -> None:
        self._turn, self._precision = turn, precision

    def __getattr__(self, name: str) -> Any:
        return getattr(self._turn, name)

    def alone(self) -> Steps:
        """The steps without other processes."""
        return _InPrecision(self._turn.alone(), self._precision)

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
