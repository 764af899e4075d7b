"""Three ways to keep a critic's layers 1-Lipschitz: orthogonal weights, spectral norm, clipping.

Each control is a frozen dataclass that makes linear layers. What a layer does to its weight is a pure function
weight → weight, so that it differentiates, stacks and captures like any other arithmetic.
"""

__all__ = [
    "Clipping",
    "Control",
    "GroupSort",
    "Layer",
    "Orthogonal",
    "SpectralNorm",
    "operator_norm",
    "orthogonalise",
]

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from torchspot.errors import InvalidArgument
from torchspot.networks.mlp import LEAK, linear

Weight = Float[Tensor, "outputs inputs"]


class Layer(nn.Module, ABC):
    """A linear layer under a control: what its forward pass uses as weight, and what it does after each step."""

    weight: Tensor
    bias: Tensor

    @abstractmethod
    def effective_weight(self) -> Weight:
        """The matrix that the layer multiplies by."""

    @abstractmethod
    def after_step(self) -> None:
        """Called after each step of the weights."""

    def forward(self, h: Float[Tensor, "batch inputs"]) -> Float[Tensor, "batch outputs"]:
        """h Wᵀ + b with the effective weight W."""
        return functional.linear(h, self.effective_weight(), self.bias)


class Control(Protocol):
    """A way to keep layers 1-Lipschitz."""

    def layer(self, inputs: int, outputs: int, rng: torch.Generator) -> Layer:
        """A linear layer under this control."""

    def activation(self) -> nn.Module:
        """The non-linearity that goes with it, 1-Lipschitz too."""


@dataclass(frozen=True)
class Orthogonal:
    """Weights made (nearly) orthogonal by Björck's iteration; GroupSort between them. The default.

    All singular values are at most 1 after any number of iterations; more of them only bring all closer to 1.
    """

    iterations: int = 2

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise InvalidArgument(f"Orthogonal needs at least one iteration, and got {self.iterations}.")

    def layer(self, inputs: int, outputs: int, rng: torch.Generator) -> Layer:
        return _OrthogonalLinear(inputs, outputs, self.iterations, rng)

    def activation(self) -> nn.Module:
        return GroupSort()


@dataclass(frozen=True)
class SpectralNorm:
    """Weights divided by their largest singular value, followed by one power iteration a step. As in the paper."""

    def layer(self, inputs: int, outputs: int, rng: torch.Generator) -> Layer:
        return _SpectralLinear(inputs, outputs, rng)

    def activation(self) -> nn.Module:
        return nn.LeakyReLU(LEAK)


@dataclass(frozen=True)
class Clipping:
    """All entries held within ±bound after each step. As in the authors' scripts; it does not give constant 1."""

    bound: float = 0.01

    def __post_init__(self) -> None:
        if not self.bound > 0:
            raise InvalidArgument(f"Clipping needs a bound above 0, and got {self.bound}.")

    def layer(self, inputs: int, outputs: int, rng: torch.Generator) -> Layer:
        return _ClippedLinear(inputs, outputs, self.bound, rng)

    def activation(self) -> nn.Module:
        return nn.LeakyReLU(LEAK)


class GroupSort(nn.Module):
    """Sorts pairs of units: (a, b) ↦ (max, min), unit k with unit k + half. 1-Lipschitz, keeps the gradient's norm."""

    def forward(self, h: Float[Tensor, "batch units"]) -> Float[Tensor, "batch units"]:
        a, b = h.chunk(2, dim=-1)
        excess = torch.relu(a - b)
        return torch.cat((b + excess, a - excess), dim=-1)


def orthogonalise(weight: Weight, iterations: int) -> Weight:
    """The weight with all singular values brought near 1, never above.

    First W ← W / max(1, b / 2), where b = ‖(WWᵀ)²‖_F^(1/4) (the Schatten 8-norm) is at least the largest singular
    value; then W ← 1.5 W − .5 W WᵀW, which maps singular values in [0, 2] into [0, 1] up to sign, and those near 1
    closer to 1.

    Reference: "An iterative algorithm for computing the best estimate of an orthogonal matrix",
    Å. Björck and C. Bowie, 1971.
    """
    tall = weight.shape[-2] > weight.shape[-1]
    w = weight.mT if tall else weight
    gram = w @ w.mT
    bound = torch.linalg.matrix_norm(gram @ gram).sqrt().sqrt()[..., None, None]
    shrink = (bound / 2).clamp(min=1)
    w, gram = w / shrink, gram / shrink.square()
    for k in range(iterations):
        if k > 0:
            gram = w @ w.mT
        w = torch.add(1.5 * w, gram @ w, alpha=-0.5)
    return w.mT if tall else w


def operator_norm(weight: Weight) -> float:
    """The largest singular value, measured in float64."""
    return float(torch.linalg.matrix_norm(weight.detach().double(), ord=2))


class _OrthogonalLinear(Layer):
    def __init__(self, inputs: int, outputs: int, iterations: int, rng: torch.Generator) -> None:
        super().__init__()
        self.iterations = iterations
        layer = linear(inputs, outputs, rng)
        self.weight, self.bias = layer.weight, layer.bias
        with torch.no_grad():
            self.weight.copy_(_orthonormal(torch.randn(outputs, inputs, generator=rng)))

    def effective_weight(self) -> Weight:
        return self.weight

    @torch.no_grad()
    def after_step(self) -> None:
        """Brings the weight back to the orthogonal matrices."""
        self.weight.copy_(orthogonalise(self.weight, self.iterations))


class _SpectralLinear(Layer):
    u: Tensor
    v: Tensor

    def __init__(self, inputs: int, outputs: int, rng: torch.Generator) -> None:
        super().__init__()
        layer = linear(inputs, outputs, rng)
        self.weight, self.bias = layer.weight, layer.bias
        self.register_buffer("u", functional.normalize(torch.randn(outputs, generator=rng), dim=0))
        self.register_buffer("v", functional.normalize(torch.randn(inputs, generator=rng), dim=0))
        for _ in range(15):
            self.after_step()

    def effective_weight(self) -> Weight:
        sigma = torch.vdot(self.u, torch.mv(self.weight, self.v))
        return self.weight / sigma

    @torch.no_grad()
    def after_step(self) -> None:
        """One power iteration, so that the next pass divides by an up-to-date singular value."""
        self.v.copy_(functional.normalize(torch.mv(self.weight.mT, self.u), dim=0))
        self.u.copy_(functional.normalize(torch.mv(self.weight, self.v), dim=0))


class _ClippedLinear(Layer):
    def __init__(self, inputs: int, outputs: int, bound: float, rng: torch.Generator) -> None:
        super().__init__()
        self.bound = bound
        layer = linear(inputs, outputs, rng)
        self.weight, self.bias = layer.weight, layer.bias
        self.after_step()

    def effective_weight(self) -> Weight:
        return self.weight

    @torch.no_grad()
    def after_step(self) -> None:
        """Puts every entry back into ±bound."""
        self.weight.clamp_(-self.bound, self.bound)
        self.bias.clamp_(-self.bound, self.bound)


def _orthonormal(weight: Weight) -> Weight:
    """The nearest matrix whose singular values are all 1."""
    u, _, vh = torch.linalg.svd(weight.double(), full_matrices=False)
    return (u @ vh).to(weight.dtype)
