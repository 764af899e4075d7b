"""Players: what each draws and minimises, and the running state of its turn."""

__all__ = ["Average", "Draw", "Loss", "Player", "Stream", "Turn", "nothing"]

import copy
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot.random import Key, generator
from torchspot.training.optimizers import FlatParameters, Optimizer
from torchspot.training.streams import let_go
from torchspot.types import Parts, ReadsAhead

_BLOCK = 1024
"""Steps whose numbers (rates and the like) are written to the device at once."""
_AHEAD = 2
"""Batches that are read while another is used."""

Loss = Callable[[tuple[Tensor, ...]], Tensor]
"""One number from a batch, differentiable and without randomness of its own."""


class Stream(NamedTuple):
    """Batches of one sampler: how many samples each, and of what type they are to be."""

    sampler: Any
    size: int
    dtype: torch.dtype


class Draw:
    """One batch of each stream, in order; batch k is a function of (seed, role, rank, k) alone.

    `advance` goes on to the next batch and puts what comes from elsewhere (from the host, for a run on a GPU) into
    buffers that stay; the call itself never leaves the device, so that it can be recorded once and replayed. Samplers
    that are slow (mapped files, DataLoaders with workers) are read by threads, two batches ahead; which samples these
    are is drawn here.

    Args:
        key: of the random numbers.
        streams: where each part of the batch comes from.
        device: where the batch is needed.
        replicas: so many independent batches, in a leading dimension; None gives one batch without it.
    """

    def __init__(self, key: Key, *streams: Stream, device: torch.device, replicas: int | None = None) -> None:
        self.key, self.streams, self.device, self.replicas = key, streams, device, replicas
        self.k = 0
        self.generator = generator(key, device)
        places = [getattr(stream.sampler, "device", device) for stream in streams]
        slow = [_is_slow(stream.sampler) for stream in streams]
        self._fetched = [j for j, place in enumerate(places) if place != device or (any(slow) and place.type == "cpu")]
        self._generators = {place: generator(key, place) for place in places}
        self._readers = _Readers(sum(slow))
        self._coming: deque[tuple[int, dict[int, Callable[[], Tensor]]]] = deque()
        self._buffers: dict[int, Tensor] = {}

    def advance(self) -> None:
        """Goes on to the next batch."""
        self.k += 1
        self.seed()
        if self._fetched:
            self._fetch()

    def seed(self) -> None:
        """Puts the generator at the start of this batch."""
        self.generator.manual_seed(self.key.at(self.k - 1))

    def __call__(self) -> tuple[Tensor, ...]:
        parts = (
            self._buffers[j] if j in self._buffers else self._ready(stream, self.generator)()
            for j, stream in enumerate(self.streams)
        )
        return tuple(part if self.replicas is None else part.view(self.replicas, -1, *part.shape[1:]) for part in parts)

    def close(self) -> None:
        """Lets go of what is read ahead and of who reads it; another `advance` begins again."""
        self._coming.clear()
        self._readers.close()
        let_go(*(stream.sampler for stream in self.streams))

    def state_dict(self) -> dict[str, Any]:
        return {"k": self.k}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.k = state["k"]
        self._coming.clear()

    def _fetch(self) -> None:
        """Puts this batch into the buffers, and has the next ones read where that takes time."""
        if not self._coming:
            self._begin(self.k - 1)
        while self._readers and len(self._coming) <= _AHEAD:
            self._begin(self._coming[-1][0] + 1)
        for index, wait in self._coming.popleft()[1].items():
            batch = wait()
            if index not in self._buffers:
                self._buffers[index] = torch.empty_like(batch, device=self.device)
            batch = batch.pin_memory() if batch.device.type == "cpu" and self.device.type == "cuda" else batch
            self._buffers[index].copy_(batch, non_blocking=True)

    def _begin(self, k: int) -> None:
        """Draws what is fetched for batch k, in order."""
        for rng in self._generators.values():
            rng.manual_seed(self.key.at(k))
        ready = {}
        for j in self._fetched:
            sampler = self.streams[j].sampler
            ready[j] = self._ready(self.streams[j], self._generators[getattr(sampler, "device", self.device)])
        self._coming.append((k, ready))

    def _ready(self, stream: Stream, rng: torch.Generator) -> Callable[[], Tensor]:
        """Draws, or has it read what it drew; gives what waits for the batch.

        What comes in its own order, without the generator, is taken when its batch is due and not before.
        """
        sampler, size = stream.sampler, stream.size * (self.replicas or 1)
        if _is_slow(sampler):
            return self._readers.start(sampler.later(size, rng), stream.dtype)
        if not getattr(sampler, "repeatable", True):
            return lambda: sampler.draw(size, rng).to(stream.dtype)
        drawn = sampler.draw(size, rng).to(stream.dtype)
        return lambda: drawn


def _is_slow(sampler: Any) -> bool:
    return isinstance(sampler, ReadsAhead) and sampler.slow


class _Readers:
    """Threads that read batches, started when they are first needed."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ThreadPoolExecutor | None = None

    def __bool__(self) -> bool:
        return self._count > 0

    def start(self, read: Callable[[], Tensor], dtype: torch.dtype) -> Callable[[], Tensor]:
        """Begins to read; gives what waits for it."""
        self._pool = self._pool or ThreadPoolExecutor(self._count, thread_name_prefix="torchspot reads")
        return self._pool.submit(lambda: read().to(dtype)).result

    def close(self) -> None:
        """Ends the threads once they have read what they are at, without waiting for that."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def nothing() -> None:
    """For players with nothing to do after a step."""


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
    loss: Loss
    repeats: Callable[[int], int] = lambda step: 1
    after_step: Callable[[], None] = nothing
    averaging: float | None = None
    """Decay of an exponential average of the parameters; None keeps none."""


class Average:
    """An exponential average of a player's parameters; buffers, and what is not trained, are those of the player.

    The weight of the newest iterate is max(1 − decay, 1 / t), so that the start is forgotten.
    """

    def __init__(self, modules: tuple[nn.Module, ...], decay: float) -> None:
        self.decay, self._originals = decay, modules
        self._modules = copy.deepcopy(modules)
        self.vector = FlatParameters(self._modules).vector
        for module in self._modules:
            module.requires_grad_(False).eval()

    def weights(self, t: Float[Tensor, " steps"]) -> Float[Tensor, " steps"]:
        """Of the newest iterate, after steps t = 0, 1, …"""
        return (1 / (t + 1)).clamp(min=1 - self.decay)

    @torch.no_grad()
    def modules(self) -> tuple[nn.Module, ...]:
        """Copies of the player's modules with the averaged parameters."""
        for mine, original in zip(self._modules, self._originals, strict=True):
            for buffer, newest in zip(mine.buffers(), original.buffers(), strict=True):
                buffer.copy_(newest)
            for parameter, newest in zip(mine.parameters(), original.parameters(), strict=True):
                if not newest.requires_grad:
                    parameter.copy_(newest)
        return self._modules


class Turn:
    """A player's running state and its step: what the host does before (`advance`), then the device (`update`).

    Args:
        player: whose turn it is.
        total: steps of its own that it will take.
        buffers: those of all players' modules.
    """

    def __init__(self, player: Player, total: int, buffers: Sequence[Tensor]) -> None:
        self.player, self.name, self.total = player, player.name, total
        self.generator = player.draw.generator
        self.flat = FlatParameters(player.modules)
        self.memory = player.optimizer.init(self.flat.vector)
        self.average = None if player.averaging is None else Average(player.modules, player.averaging)
        self.buffers = buffers
        self.count = 0
        self._left = 0
        self.winding: tuple[int, int] | None = None
        """From which step of its own on, and in how many, what is left of the schedule is run."""
        self._table = self._numbers().to(self.flat.vector)
        self._row = self.flat.vector.new_zeros(1, dtype=torch.int64)
        self._healthy = self.flat.vector.new_ones((), dtype=torch.bool)
        self._good = self.flat.vector.new_zeros((), dtype=torch.int64)
        self.loss = self.flat.vector.new_zeros((), dtype=torch.float64)

    def advance(self) -> None:
        """Gets the next batch ready, and now and then the numbers of the next steps."""
        self.player.draw.advance()
        if self._left == 0:
            self._table.copy_(self._numbers())
            self._row.zero_()
            self._left = _BLOCK
        self._left -= 1
        self.count += 1

    def seed(self) -> None:
        """Puts the random numbers back to the start of this step."""
        self.player.draw.seed()

    def alone(self) -> "Turn":
        """The steps without other processes: these."""
        return self

    def agree(self, well: bool) -> bool:
        """Whether all is well in all processes that take this step: in this one."""
        return well

    def parts(self) -> Parts:
        """Loss and move, as they are written."""
        return Parts(self.player.loss, self._move)

    def update(self, parts: Parts | None = None) -> None:
        """One step, without a look from the host."""
        parts = parts or self.parts()
        value = parts.loss(self.player.draw())
        with torch.no_grad():
            self.loss.copy_(value)
            numbers = self._table.index_select(0, self._row)[0]
            self._row.add_(1)
            parts.move(value.detach(), self.flat.gradient(value), numbers[:-1])
            self.player.after_step()
            if self.average is not None:
                self.average.vector.lerp_(self.flat.vector, numbers[-1])

    def _move(self, loss: Tensor, gradient: Tensor, numbers: Tensor) -> None:
        """Counts the steps in which all was finite so far, and moves the parameters."""
        self._healthy.logical_and_((gradient.sum() + loss) * 0 == 0)  # false for nan and ±inf
        self._good.add_(self._healthy)
        self.player.optimizer.move(self.flat.vector, gradient, self.memory, numbers)

    def wind_down(self, steps: int) -> None:
        """Runs what is left of the schedule in so many steps of its own, from the next one on."""
        self.wind((self.count, steps))

    def wind(self, winding: Sequence[int] | None) -> None:
        """Sets from which of its own steps on, and in how many, what is left of the schedule is run."""
        new = None if winding is None else (winding[0], winding[1])
        if new != self.winding:
            self.winding, self._left = new, 0

    def first_bad(self) -> int | None:
        """The first step whose loss or gradient was not finite. Reads from the device."""
        return None if bool(self._healthy) else int(self._good)

    def tensors(self) -> list[Tensor]:
        """All that a step may change on the device; batch norm changes buffers wherever it is passed through."""
        average = [] if self.average is None else [self.average.vector]
        own = [*self.memory.values(), self._row, self._healthy, self._good, self.loss]
        return [self.flat.vector, *own, *average, *self.buffers]

    def frozen(self) -> list[Tensor]:
        """Parameters that no step changes."""
        return [p for module in self.player.modules for p in module.parameters() if not p.requires_grad]

    def game_step(self, k: int) -> int:
        """The step of the game in which this player takes its own k-th step."""
        taken = itertools.accumulate(map(self.player.repeats, itertools.count()))
        return next(step for step, total in enumerate(taken) if total > k)

    def state_dict(self) -> dict[str, Any]:
        return {
            "vector": self.flat.vector,
            "memory": self.memory,
            "average": {} if self.average is None else {"vector": self.average.vector},
            "count": self.count,
            "buffers": [dict(module.named_buffers()) for module in self.player.modules],
            "draw": self.player.draw.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.flat.vector.copy_(state["vector"])
        for name, tensor in self.memory.items():
            tensor.copy_(state["memory"][name])
        if self.average is not None:
            self.average.vector.copy_(state["average"]["vector"])
        for module, buffers in zip(self.player.modules, state["buffers"], strict=True):
            for name, buffer in module.named_buffers():
                buffer.copy_(buffers[name])
        self.count, self._left = state["count"], 0
        self._good.fill_(self.count)
        self.player.draw.load_state_dict(state["draw"])

    def _numbers(self) -> Float[Tensor, "steps numbers"]:
        """What the optimiser needs to know about the next steps, and in the last column the weight of the average."""
        t = torch.arange(self.count, self.count + _BLOCK, dtype=torch.float64)
        weights = torch.zeros_like(t) if self.average is None else self.average.weights(t)
        start, steps = self.winding or (0, self.total)
        progress = (start + (t - start) * ((self.total - start) / steps)) / self.total
        return torch.cat((self.player.optimizer.numbers(t, progress), weights[:, None]), dim=1)
