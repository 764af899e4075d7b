"""Shape aliases, and the small protocols that outside objects may fit."""

__all__ = [
    "Callback",
    "Cost",
    "Engine",
    "Estimate",
    "Parts",
    "Plan",
    "Reading",
    "ReadsAhead",
    "Record",
    "Sampler",
    "Samples",
    "Shape",
    "Step",
    "Steps",
    "Values",
]

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

Shape = tuple[int, ...]
"""The shape of one sample: (dim,) for vectors, (channels, height, width) for images."""

Samples = tuple[Float[Tensor, "batch *shape"], ...]
"""One batch of each marginal; row k of all of them together is one joint sample."""

Values = Float[Tensor, " batch"]
"""One number for each row."""

Record = dict[str, Any]
"""What is measured at one logged step: names and plain numbers."""


@dataclass(frozen=True)
class Estimate:
    """A Monte-Carlo estimate of an expected cost, in the units of the cost."""

    value: float
    monte_carlo_error: float
    """Standard error of `value` over the draws of the plan; it says nothing about how good the plan is."""

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Reading:
    """A discrepancy between a plan and data, beside what two samples of the data themselves show."""

    value: float
    floor: float
    """The noise floor: its mean over pairs of samples of the same data."""
    spread: float
    """Standard deviation of the noise."""

    @classmethod
    def beside(cls, value: float, equal: Sequence[float]) -> "Reading":
        """The value, and what equal laws gave."""
        return cls(value, statistics.fmean(equal), statistics.stdev(equal))

    @property
    def excess(self) -> float:
        """How many standard deviations the value lies above its floor."""
        above = self.value - self.floor
        return above / self.spread if self.spread > 0 else math.copysign(math.inf, above) if above else 0.0

    def __float__(self) -> float:
        return self.value


@runtime_checkable
class Sampler(Protocol):
    """An endless supply of samples."""

    shape: Shape
    device: torch.device

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch *shape"]:
        """`size` samples; the same generator state gives the same samples where `repeatable`."""

    @property
    def repeatable(self) -> bool:
        """Whether `draw` depends on the generator alone, so that a resumed run is equal bit for bit."""


@runtime_checkable
class ReadsAhead(Protocol):
    """A sampler whose samples may have to be waited for, as they lie on a disk or with other processes."""

    @property
    def slow(self) -> bool:
        """Whether they do: then `later` is called ahead of time, and what it gives in another thread."""

    def later(self, size: int, generator: torch.Generator) -> Callable[[], Tensor]:
        """Draws which samples are meant, and gives what reads them."""

    def close(self) -> None:
        """Lets go of what it reads by; the next draw begins again."""


class Cost(Protocol):
    """A transport cost: one batch of each marginal in, one number a row out, differentiable."""

    def __call__(self, *xs: Float[Tensor, "batch *shape"]) -> Values: ...


class Plan(Protocol):
    """A coupling one can draw from: what every solver returns and every judge takes."""

    @property
    def cost(self) -> Cost:
        """What it costs to move one joint sample."""

    def sample(self, n: int, seed: int | None = None) -> Samples: ...

    def expected_cost(self, n: int = ...) -> Estimate: ...


class Parts(NamedTuple):
    """The parts of a player's step on the device, each of which may be compiled."""

    loss: Callable[[tuple[Tensor, ...]], Float[Tensor, ""]]
    """Batch in, one number out."""
    move: Callable[[Tensor, Tensor, Tensor], None]
    """Loss, gradient and the numbers of this step in; moves the parameters."""


class Steps(Protocol):
    """A player's steps, as an engine sees them: the host's part, the device's part, and what the latter changes."""

    name: str
    total: int
    count: int
    generator: torch.Generator
    loss: Float[Tensor, ""]
    """Of the latest step."""

    def advance(self) -> None:
        """Gets the next batch ready, on the host."""

    def seed(self) -> None:
        """Puts the random numbers back to the start of this step."""

    def parts(self) -> Parts:
        """What `update` does, as it is written."""

    def update(self, parts: Parts | None = None) -> None:
        """The step on the device; an engine may give faster versions of its parts."""

    def alone(self) -> "Steps":
        """The same without the other processes that it may be taken with."""

    def agree(self, well: bool) -> bool:
        """Whether all is well in all of these processes, which have to ask together."""

    def tensors(self) -> list[Tensor]:
        """All that `update` may change; the parameters first."""

    def frozen(self) -> list[Tensor]:
        """Parameters that it does not change."""


class Step(Protocol):
    """A step that is ready to be run many times."""

    @property
    def how(self) -> str:
        """In words: "eager", "captured", and why not where that was asked for."""

    def __call__(self) -> None: ...


class Engine(Protocol):
    """Where and how player steps run."""

    device: torch.device
    dtype: torch.dtype

    def running(self) -> AbstractContextManager[None]:
        """Holds while steps run (number of threads and the like)."""

    def prepare(self, turn: Steps) -> Step:
        """The player's step, made ready to be run many times."""


class Callback(Protocol):
    """Called at logged steps, of several processes by the first one, or by all where it has `everywhere = True`.

    It may also have `begin(run)`, called before the first step (`run.plan()` is the plan as it stands),
    `interrupted(training)`, `close()`, `state_dict()` and `load_state_dict(state)`.
    """

    def __call__(self, training: Any, record: Record) -> None: ...
