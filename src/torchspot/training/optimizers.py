"""Optimisers as pure updates of one flat vector, so that they stack, capture and save like any tensor."""

__all__ = ["Adam", "FlatParameters", "OptimisticAdam", "Optimizer", "as_views"]

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot.errors import InvalidArgument
from torchspot.training.schedules import Constant, Schedule

Vector = Float[Tensor, " parameters"]


class FlatParameters:
    """The parameters of some modules as views of one vector: a step is a few operations, however many layers."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        unique = {id(p): p for module in modules for p in module.parameters() if p.requires_grad}
        self.parameters = list(unique.values())
        if not self.parameters:
            raise InvalidArgument("a player has no parameters to train. Give it a module with trainable weights.")
        self.vector = as_views(self.parameters)

    def gradient(self, loss: Float[Tensor, ""]) -> Vector:
        """∂loss / ∂vector; zero where the loss does not see a parameter."""
        parts = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts])


def as_views(parameters: Sequence[nn.Parameter]) -> Vector:
    """A vector with the values of all parameters, which become views of it."""
    vector = torch.cat([p.detach().reshape(-1) for p in parameters])
    parts = torch.split(vector, [p.numel() for p in parameters])
    for p, part in zip(parameters, parts, strict=True):
        p.data = part.view_as(p)
    return vector


class Optimizer(Protocol):
    """A rule that turns gradients into steps."""

    @property
    def learning_rate(self) -> float:
        """At the start."""

    @property
    def schedule(self) -> Schedule:
        """How the rate moves."""

    def init(self, vector: Vector) -> dict[str, Tensor]:
        """What the rule remembers, at the start."""

    def direction(self, gradient: Vector, memory: dict[str, Tensor]) -> Vector:
        """What to subtract, before the learning rate; updates `memory` in place."""


@dataclass(frozen=True)
class Adam:
    """Adam: d = m̂ / (√v̂ + ε).

    Reference: "Adam: A Method for Stochastic Optimization", D. P. Kingma and J. Ba, 2015.
    """

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: Schedule = field(default_factory=Constant)
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _check_rate(self.learning_rate)

    def init(self, vector: Vector) -> dict[str, Tensor]:
        return _moments(vector, self.betas)

    def direction(self, gradient: Vector, memory: dict[str, Tensor]) -> Vector:
        return _adam_direction(gradient, memory, self.betas, self.epsilon)


@dataclass(frozen=True)
class OptimisticAdam:
    """Adam that steps along 2 d_t − d_{t−1}: the extrapolation that turns the cycles of a game into convergence.

    Reference: "Training GANs with Optimism", C. Daskalakis, A. Ilyas, V. Syrgkanis and H. Zeng, 2018.
    """

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: Schedule = field(default_factory=Constant)
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _check_rate(self.learning_rate)

    def init(self, vector: Vector) -> dict[str, Tensor]:
        return _moments(vector, self.betas) | {"previous": torch.zeros_like(vector)}

    def direction(self, gradient: Vector, memory: dict[str, Tensor]) -> Vector:
        d = _adam_direction(gradient, memory, self.betas, self.epsilon)
        optimistic = 2 * d - memory["previous"]
        memory["previous"].copy_(d)
        return optimistic


def _moments(vector: Vector, betas: tuple[float, float]) -> dict[str, Tensor]:
    return {
        "mean": torch.zeros_like(vector),
        "square": torch.zeros_like(vector),
        "betas": vector.new_tensor(betas, dtype=torch.float64),
        "left": vector.new_ones(2, dtype=torch.float64),
    }


def _adam_direction(gradient: Vector, memory: dict[str, Tensor], betas: tuple[float, float], epsilon: float) -> Vector:
    """m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², d = m/(1−β₁ᵗ) / (√(v/(1−β₂ᵗ)) + ε); `left` holds (β₁ᵗ, β₂ᵗ)."""
    beta1, beta2 = betas
    first, second = (1 - memory["left"].mul_(memory["betas"])).to(gradient.dtype).unbind()
    m = memory["mean"].lerp_(gradient, 1 - beta1)
    v = memory["square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    return (m / first) / ((v / second).sqrt_().add_(epsilon))


def _check_rate(rate: float) -> None:
    if not rate > 0:
        raise InvalidArgument(f"the learning rate must be above 0, and is {rate}.")
