"""Optimisers as pure updates of one flat vector, so that they stack, capture and save like any tensor."""

__all__ = ["Adam", "FlatParameters", "OptimisticAdam", "Optimizer", "RMSprop", "as_views"]

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot.errors import InvalidArgument
from torchspot.training.schedules import Constant, Schedule

Vector = Float[Tensor, " parameters"]

_ALIGNED, _KERNEL_DIMS = 64, 4


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
        return _joined(parts, self.parameters)


def as_views(parameters: Sequence[nn.Parameter]) -> Vector:
    """A vector with the values of all parameters, which become views of it.

    Kernels of convolutions begin at multiples of 64 numbers and have their channels last, as fast convolutions on a
    GPU read many at once; what lies between stays 0.
    """
    vector = _joined([p.detach() for p in parameters], parameters)
    start = 0
    for p, gap in zip(parameters, _gaps(parameters), strict=True):
        start += gap
        row = vector[start : start + p.numel()]
        p.data = row.view(_last(p).shape).movedim(-1, 1) if p.ndim == _KERNEL_DIMS else row.view_as(p)
        start += p.numel()
    return vector


def _joined(values: Sequence[Tensor], parameters: Sequence[nn.Parameter]) -> Vector:
    """All values in one row, with gaps before some."""
    parts: list[Tensor] = []
    for value, gap in zip(values, _gaps(parameters), strict=True):
        row = (_last(value) if value.ndim == _KERNEL_DIMS else value).reshape(-1)
        parts += [value.new_zeros(gap), row] if gap else [row]
    return torch.cat(parts)


def _last(kernel: Tensor) -> Tensor:
    """(outputs, inputs, height, width) with the inputs last."""
    return kernel.movedim(1, -1)


def _gaps(parameters: Sequence[nn.Parameter]) -> list[int]:
    """Numbers to leave free before each parameter."""
    gaps, start = [], 0
    for p in parameters:
        gaps.append(-start % _ALIGNED if p.ndim >= _KERNEL_DIMS else 0)
        start += gaps[-1] + p.numel()
    return gaps


class Optimizer(Protocol):
    """A rule that turns gradients into steps."""

    def init(self, vector: Vector) -> dict[str, Tensor]:
        """What the rule remembers, at the start."""

    def numbers(self, t: Float[Tensor, " steps"], progress: Float[Tensor, " steps"]) -> Float[Tensor, "steps numbers"]:
        """What the rule needs to know about steps t = 0, 1, …, with so much of the run done: rates and the like."""

    def move(self, vector: Vector, gradient: Vector, memory: dict[str, Tensor], numbers: Float[Tensor, " n"]) -> None:
        """One step, in place, with the numbers of this step."""


@dataclass(frozen=True)
class Adam:
    """Adam: x ← x − rate · d, d = m̂ / (√v̂ + ε), of the gradient g + weight_decay · x.

    Reference: "Adam: A Method for Stochastic Optimization", D. P. Kingma and J. Ba, 2015.
    """

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: Schedule = field(default_factory=Constant)
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_rate(self.learning_rate)

    def init(self, vector: Vector) -> dict[str, Tensor]:
        return {"mean": torch.zeros_like(vector), "square": torch.zeros_like(vector)}

    def numbers(self, t: Float[Tensor, " steps"], progress: Float[Tensor, " steps"]) -> Float[Tensor, "steps numbers"]:
        return _adam_numbers(self.learning_rate * self.schedule(progress), t, self.betas)

    def move(self, vector: Vector, gradient: Vector, memory: dict[str, Tensor], numbers: Float[Tensor, " n"]) -> None:
        rate, first, second = numbers.unbind()
        gradient = gradient.add(vector, alpha=self.weight_decay) if self.weight_decay else gradient
        d = _adam_direction(gradient, memory, self.betas, (first, second, self.epsilon))
        vector.addcmul_(d, rate, value=-1)


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
        return {name: torch.zeros_like(vector) for name in ("mean", "square", "previous")}

    def numbers(self, t: Float[Tensor, " steps"], progress: Float[Tensor, " steps"]) -> Float[Tensor, "steps numbers"]:
        return _adam_numbers(self.learning_rate * self.schedule(progress), t, self.betas)

    def move(self, vector: Vector, gradient: Vector, memory: dict[str, Tensor], numbers: Float[Tensor, " n"]) -> None:
        rate, first, second = numbers.unbind()
        d = _adam_direction(gradient, memory, self.betas, (first, second, self.epsilon))
        previous = memory["previous"]
        vector.addcmul_(previous.sub_(d, alpha=2), rate)
        previous.copy_(d)


@dataclass(frozen=True)
class RMSprop:
    """x ← x − rate · g / (√v + ε), v ← β₂ v + (1 − β₂) g². The first of Adam's two decays is not used.

    Reference: lecture 6 of "Neural Networks for Machine Learning", G. Hinton, 2012.
    """

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.0, 0.99)
    schedule: Schedule = field(default_factory=Constant)
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _check_rate(self.learning_rate)

    def init(self, vector: Vector) -> dict[str, Tensor]:
        return {"square": torch.zeros_like(vector)}

    def numbers(self, t: Float[Tensor, " steps"], progress: Float[Tensor, " steps"]) -> Float[Tensor, "steps numbers"]:
        return (self.learning_rate * self.schedule(progress))[:, None]

    def move(self, vector: Vector, gradient: Vector, memory: dict[str, Tensor], numbers: Float[Tensor, " n"]) -> None:
        beta = self.betas[1]
        v = memory["square"].mul_(beta).addcmul_(gradient, gradient, value=1 - beta)
        vector.addcmul_(gradient / v.sqrt().add_(self.epsilon), numbers[0], value=-1)


def _adam_numbers(
    rate: Float[Tensor, " steps"], t: Float[Tensor, " steps"], betas: tuple[float, float]
) -> Float[Tensor, "steps 3"]:
    """The rate, 1 / (1 − β₁^(t+1)) and 1 / (1 − β₂^(t+1))."""
    corrections = [1 / (1 - beta ** (t + 1)) for beta in betas]
    return torch.stack([rate, *corrections], dim=1)


def _adam_direction(
    gradient: Vector,
    memory: dict[str, Tensor],
    betas: tuple[float, float],
    corrections: tuple[Tensor, Tensor, float],
) -> Vector:
    """m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², d = m/(1−β₁ᵗ) / (√(v/(1−β₂ᵗ)) + ε)."""
    first, second, epsilon = corrections
    m = memory["mean"].lerp_(gradient, 1 - betas[0])
    v = memory["square"].mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    return (m * first).div_((v * second).sqrt_().add_(epsilon))


def _check_rate(rate: float) -> None:
    if not rate > 0:
        raise InvalidArgument(f"the learning rate must be above 0, and is {rate}.")
