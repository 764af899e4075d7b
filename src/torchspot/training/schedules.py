"""How the learning rate moves during a run."""

__all__ = ["Constant", "Cosine", "Rising", "Schedule"]

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor


class Schedule(Protocol):
    """A factor on the learning rate for each part of the run that may be done, from 0 to 1."""

    def __call__(self, progress: Float[Tensor, " steps"]) -> Float[Tensor, " steps"]: ...


@dataclass(frozen=True)
class Constant:
    """The same rate throughout."""

    def __call__(self, progress: Float[Tensor, " steps"]) -> Float[Tensor, " steps"]:
        return torch.ones_like(progress)


@dataclass(frozen=True)
class Cosine:
    """From 1 down to 0 along half a cosine."""

    def __call__(self, progress: Float[Tensor, " steps"]) -> Float[Tensor, " steps"]:
        return (progress * math.pi).cos().add(1).mul(0.5)


@dataclass(frozen=True)
class Rising:
    """Another schedule, times a factor that rises from 0 to 1 in the first part of the run."""

    part: float
    then: Schedule

    def __call__(self, progress: Float[Tensor, " steps"]) -> Float[Tensor, " steps"]:
        return self.then(progress) * (progress / self.part).clamp(max=1)
