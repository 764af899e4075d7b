"""The one loop: players take turns, each stepping its own parameters down its own loss."""

__all__ = ["Averaging", "Draw", "Player", "Stream", "Training", "train"]

import copy
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from torchspot.errors import InvalidArgument
from torchspot.random import Key, generator
from torchspot.training.optimizers import FlatParameters, Optimizer, as_views
from torchspot.types import Callback, Engine, Record

M = TypeVar("M", bound=nn.Module)


class Stream:
    """Batches of a sampler, batch k a function of (seed, role, rank, k) alone."""

    def __init__(self, sampler: Any, size: int, key: Key, *, device: torch.device, dtype: torch.dtype) -> None:
        self.sampler, self.size, self.key, self.device, self.dtype = sampler, size, key, device, dtype
        self.k = 0
        self._generator = generator(key, getattr(sampler, "device", device))

    def __call__(self) -> Tensor:
        self._generator.manual_seed(self.key.at(self.k))
        self.k += 1
        return self.sampler.draw(self.size, self._generator).to(self.device, self.dtype, non_blocking=True)


class Draw:
    """One batch of each stream, in order; remembers how many were drawn."""

    def __init__(self, *streams: Stream) -> None:
        self.streams = streams

    def __call__(self) -> tuple[Tensor, ...]:
        return tuple(stream() for stream in self.streams)

    def state_dict(self) -> dict[str, Any]:
        return {"k": [stream.k for stream in self.streams]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for stream, k in zip(self.streams, state["k"], strict=True):
            stream.k = k


class Averaging(Generic[M]):
    """An exponential average of a module's parameters, taken after each step; buffers are copied.

    The weight of the newest iterate is max(1 − decay, 1 / t), so that the start is forgotten.
    """

    def __init__(self, module: M, decay: float) -> None:
        self.source, self.decay = module, decay
        self.module = copy.deepcopy(module).requires_grad_(False)
        self._vector = as_views(list(self.module.parameters()))
        self._count = self._vector.new_zeros(())

    @torch.no_grad()
    def __call__(self) -> None:
        self._count += 1
        newest = torch.cat([p.reshape(-1) for p in self.source.parameters()])
        self._vector.lerp_(newest, (1 / self._count).clamp_(min=1 - self.decay))
        for mine, buffer in zip(self.module.buffers(), self.source.buffers(), strict=True):
            mine.copy_(buffer)

    def state_dict(self) -> dict[str, Any]:
        return {"vector": self._vector, "count": self._count, "buffers": dict(self.module.named_buffers())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._vector.copy_(state["vector"])
        self._count.copy_(state["count"])
        for name, buffer in self.module.named_buffers():
            buffer.copy_(state["buffers"][name])


@dataclass(frozen=True)
class Player:
    """One side of a game.

    In its turn it does `repeats(step)` times: batch = draw(); its parameters move down the gradient of loss(batch);
    after_step(). All randomness is in `draw`.
    """

    name: str
    modules: tuple[nn.Module, ...]
    optimizer: Optimizer
    draw: Draw
    loss: Callable[[tuple[Tensor, ...]], Tensor]
    repeats: Callable[[int], int]
    after_step: Callable[[], None]


class _Turn:
    """A player's running state, and the step that moves it."""

    def __init__(self, player: Player, total: int) -> None:
        self.player = player
        self.flat = FlatParameters(player.modules)
        self.memory = player.optimizer.init(self.flat.vector)
        self.count = self.flat.vector.new_zeros((), dtype=torch.float64)
        self.first_bad = self.count - 1
        self.total = total

    def step(self) -> None:
        """One step, without a look from the host."""
        player = self.player
        loss = player.loss(player.draw())
        with torch.no_grad():
            gradient = self.flat.gradient(loss)
            self._watch(gradient, loss)
            rate = player.optimizer.schedule(self.count / self.total) * player.optimizer.learning_rate
            direction = player.optimizer.direction(gradient, self.memory)
            self.flat.vector.sub_(direction.mul_(rate.to(direction.dtype)))
            self.count += 1
            player.after_step()

    def _watch(self, gradient: Tensor, loss: Tensor) -> None:
        """Notes the first step whose loss or gradient is not finite."""
        bad = ~torch.isfinite(gradient.sum() + loss)
        self.first_bad = torch.where((self.first_bad < 0) & bad, self.count, self.first_bad)

    def game_step(self, k: int) -> int:
        """The step of the game in which this player takes its own k-th step."""
        taken = itertools.accumulate(map(self.player.repeats, itertools.count()))
        return next(step for step, total in enumerate(taken) if total > k)

    def state_dict(self) -> dict[str, Any]:
        after = self.player.after_step
        return {
            "vector": self.flat.vector,
            "memory": self.memory,
            "count": self.count,
            "buffers": [dict(module.named_buffers()) for module in self.player.modules],
            "draw": self.player.draw.state_dict(),
            "after_step": after.state_dict() if hasattr(after, "state_dict") else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.flat.vector.copy_(state["vector"])
        for name, tensor in self.memory.items():
            tensor.copy_(state["memory"][name])
        self.count.copy_(state["count"])
        for module, buffers in zip(self.player.modules, state["buffers"], strict=True):
            for name, buffer in module.named_buffers():
                buffer.copy_(buffers[name])
        self.player.draw.load_state_dict(state["draw"])
        if hasattr(self.player.after_step, "load_state_dict"):
            self.player.after_step.load_state_dict(state["after_step"])


class Training:
    """A game under way: what callbacks see and checkpoints hold."""

    def __init__(self, players: Sequence[Player], steps: int) -> None:
        _check_disjoint(players)
        self.steps = steps
        self.step = 0
        self.logged = -1
        self.seconds = 0.0
        self.stop_reason: str | None = None
        self.turns = [_Turn(p, sum(map(p.repeats, range(steps)))) for p in players]

    def stop(self, reason: str) -> None:
        """Asks for an end after this logged step."""
        self.stop_reason = reason

    def first_bad_step(self) -> tuple[int, str] | None:
        """The step at which a number was first not finite, and whose it was. Reads from the device."""
        found = [(turn.game_step(k), turn.player.name) for turn in self.turns if (k := int(turn.first_bad)) >= 0]
        return min(found, default=None)

    def state_dict(self) -> dict[str, Any]:
        turns = {turn.player.name: turn.state_dict() for turn in self.turns}
        reason = self.stop_reason
        facts = {"step": self.step, "steps": self.steps, "logged": self.logged, "seconds": self.seconds}
        return facts | {"stop_reason": reason, "turns": turns}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["steps"] != self.steps:
            raise InvalidArgument(
                f"the run to resume was planned for {state['steps']} steps, and this call asks for {self.steps}. "
                f"Resume with steps={state['steps']}, or start a new run."
            )
        self.step, self.logged, self.seconds = state["step"], state["logged"], state["seconds"]
        self.stop_reason = state["stop_reason"]
        for turn in self.turns:
            turn.load_state_dict(state["turns"][turn.player.name])


def train(
    training: Training,
    *,
    engine: Engine,
    callbacks: Sequence[Callback] = (),
    measure: Callable[[], Record] = dict,
    log_every: int = 100,
) -> None:
    """Runs the game to its end, from wherever it stands; measures and calls back every `log_every` steps, 0 included.

    Ctrl-C ends it between two steps: callbacks may save, then KeyboardInterrupt is raised. A second one is not held up.
    """
    turns = [(turn.player.repeats, engine.prepare(turn.step)) for turn in training.turns]
    started = time.perf_counter() - training.seconds
    try:
        with engine.running(), _interruptible() as interrupted:
            while True:
                if training.step > training.logged and (
                    training.step % log_every == 0 or training.step == training.steps
                ):
                    training.seconds = time.perf_counter() - started
                    training.logged = training.step
                    _log(training, callbacks, measure)
                if training.step >= training.steps or training.stop_reason:
                    return
                if interrupted():
                    training.seconds = time.perf_counter() - started
                    _interrupt(training, callbacks)
                for repeats, step in turns:
                    for _ in range(repeats(training.step)):
                        step()
                training.step += 1
    finally:
        for callback in callbacks:
            if hasattr(callback, "close"):
                callback.close()


def _log(training: Training, callbacks: Sequence[Callback], measure: Callable[[], Record]) -> None:
    record = {"step": training.step, "seconds": round(training.seconds, 3), **measure()}
    for callback in callbacks:
        callback(training, record)


def _interrupt(training: Training, callbacks: Sequence[Callback]) -> None:
    for callback in callbacks:
        if hasattr(callback, "interrupted"):
            callback.interrupted(training)
    raise KeyboardInterrupt(f"stopped at step {training.step} of {training.steps}")


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Turns the first Ctrl-C into a flag, so that it falls between steps. Only the main thread may do so."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return

    def note(number: int, frame: FrameType | None) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _check_disjoint(players: Sequence[Player]) -> None:
    owner: dict[int, str] = {}
    for player in players:
        for parameter in {id(p) for module in player.modules for p in module.parameters()}:
            if parameter in owner:
                raise InvalidArgument(
                    f"players {owner[parameter]!r} and {player.name!r} share a parameter. Give it to one of them."
                )
            owner[parameter] = player.name
