"""How the learning rate moves during a run, computed on the device."""

__all__ = ["Constant", "Cosine", "Schedule"]

import math
from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float
from torch import Tensor


class Schedule(Protocol):
    """A factor on the learning rate, given the part of the run that is done."""

    def __call__(self, progress: Float[Tensor, ""]) -> Float[Tensor, ""]: ...


@dataclass(frozen=True)
class Constant:
    """The same rate throughout."""

    def __call__(self, progress: Float[Tensor, ""]) -> Float[Tensor, ""]:
        return progress.new_ones(())


@dataclass(frozen=True)
class Cosine:
    """From 1 down to 0 along half a cosine."""

    def __call__(self, progress: Float[Tensor, ""]) -> Float[Tensor, ""]:
        return (progress * math.pi).cos().add(1).mul(0.5)
