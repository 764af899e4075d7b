"""Ways to keep a critic's layers 1-Lipschitz: orthogonal weights, spectral norms, clipping. And none at all.

Each control is a frozen dataclass that makes linear layers and convolutions. What a layer does to its weight is a
pure function weight → weight, so that it differentiates, stacks and captures like any other arithmetic.
"""

__all__ = [
    "Clipping",
    "Control",
    "Free",
    "HalfAbsolute",
    "Layer",
    "OperatorNorm",
    "Orthogonal",
    "SpectralNorm",
    "operator_norm",
    "orthogonalise",
]

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from torchspot.errors import InvalidArgument
from torchspot.networks.convolutions import (
    Convolution,
    KernelNormConvolution,
    OperatorNormConvolution,
    OrthogonalConvolution,
    PlainConvolution,
    Window,
)
from torchspot.networks.mlp import filled_up, leaky, parallel

Weight = Float[Tensor, "stack outputs inputs"]


class Layer(nn.Module, ABC):
    """Linear layers side by side under a control: what the forward pass uses as weight, for each marginal."""

    weight: Tensor
    bias: Tensor | None

    @abstractmethod
    def effective_weight(self) -> Float[Tensor, "marginals outputs inputs"]:
        """The matrices that the layer multiplies by."""

    def forward(self, h: Float[Tensor, "marginals inputs batch"]) -> Float[Tensor, "marginals outputs batch"]:
        """W_i h_i + b_i with the effective weights W_i; samples are columns."""
        if self.bias is None:
            return torch.bmm(self.effective_weight(), h)
        return torch.baddbmm(self.bias, self.effective_weight(), h)


class Control(Protocol):
    """A way to keep layers 1-Lipschitz."""

    def layer(self, inputs: Sequence[int], outputs: int, rng: torch.Generator) -> Layer:
        """Linear layers under this control, one for each number of inputs."""

    def convolution(self, window: Window, rng: torch.Generator, *, bias: bool = True) -> Convolution:
        """A convolution under this control."""

    def activation(self, inputs: Sequence[int], units: int, rng: torch.Generator) -> nn.Module:
        """The non-linearity that goes with it, 1-Lipschitz too, after a layer of these sizes."""

    def picture_activation(self) -> nn.Module:
        """The same after a convolution."""

    def after_step(self, layers: Sequence[Any]) -> None:
        """What is done to the layers after each step of their weights."""


@dataclass(frozen=True)
class Orthogonal:
    """Weights brought back to (nearly) orthogonal matrices after each step, |·| on half of the units. The default.

    All singular values are at most 1 after any number of Björck's iterations; more only bring all closer to 1.
    """

    iterations: int = 1

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise InvalidArgument(f"Orthogonal needs at least one iteration, and got {self.iterations}.")

    def layer(self, inputs: Sequence[int], outputs: int, rng: torch.Generator) -> Layer:
        return _OrthogonalLinear(inputs, outputs, rng)

    def convolution(self, window: Window, rng: torch.Generator, *, bias: bool = True) -> Convolution:
        return OrthogonalConvolution(window, rng, bias=bias)

    def activation(self, inputs: Sequence[int], units: int, rng: torch.Generator) -> nn.Module:
        return HalfAbsolute(inputs, units, rng)

    def picture_activation(self) -> nn.Module:
        return HalfAbsoluteMaps()

    @torch.no_grad()
    def after_step(self, layers: Sequence[Layer | Convolution]) -> None:
        """Brings the weights back; matrices of one shape together."""
        for weights in _by_shape(layer.weight for layer in layers):
            together = orthogonalise(torch.cat(weights), self.iterations)
            for weight, new in zip(weights, together.chunk(len(weights)), strict=True):
                weight.copy_(new)


class _PowerIterated(ABC):
    """What the two spectral norms share."""

    def layer(self, inputs: Sequence[int], outputs: int, rng: torch.Generator) -> Layer:
        return _SpectralLinear(inputs, outputs, rng)

    @abstractmethod
    def convolution(self, window: Window, rng: torch.Generator, *, bias: bool = True) -> Convolution:
        """A convolution under this control."""

    def activation(self, inputs: Sequence[int], units: int, rng: torch.Generator) -> nn.Module:
        return leaky()

    def picture_activation(self) -> nn.Module:
        return leaky()

    def after_step(self, layers: Sequence[Any]) -> None:
        """One power iteration, so that the next pass divides by an up-to-date singular value."""
        for layer in layers:
            layer.iterate()


@dataclass(frozen=True)
class SpectralNorm(_PowerIterated):
    """Weights divided by their largest singular value, followed by one power iteration a step. As in the paper.

    Kernels of convolutions are taken as matrices, which does not bound the convolution: see `OperatorNorm`.
    """

    def convolution(self, window: Window, rng: torch.Generator, *, bias: bool = True) -> Convolution:
        return KernelNormConvolution(window, rng, bias=bias)


@dataclass(frozen=True)
class OperatorNorm(_PowerIterated):
    """Spectral norm that holds for convolutions: power iteration runs on pictures, not on kernels."""

    def convolution(self, window: Window, rng: torch.Generator, *, bias: bool = True) -> Convolution:
        return OperatorNormConvolution(window, rng, bias=bias)


@dataclass(frozen=True)
class Clipping:
    """All entries held within ±bound after each step. As in the authors' scripts; it does not give constant 1."""

    bound: float = 0.01

    def __post_init__(self) -> None:
        if not self.bound > 0:
            raise InvalidArgument(f"Clipping needs a bound above 0, and got {self.bound}.")

    def layer(self, inputs: Sequence[int], outputs: int, rng: torch.Generator) -> Layer:
        layer = _PlainLinear(inputs, outputs, rng)
        self.after_step([layer])
        return layer

    def convolution(self, window: Window, rng: torch.Generator, *, bias: bool = True) -> Convolution:
        layer = PlainConvolution(window, rng, bias=bias)
        self.after_step([layer])
        return layer

    def activation(self, inputs: Sequence[int], units: int, rng: torch.Generator) -> nn.Module:
        return leaky()

    def picture_activation(self) -> nn.Module:
        return leaky()

    @torch.no_grad()
    def after_step(self, layers: Sequence[Layer | Convolution]) -> None:
        """Puts every entry back into ±bound."""
        for layer in layers:
            for tensor in (layer.weight, *(() if layer.bias is None else (layer.bias,))):
                tensor.copy_(tensor.clamp(-self.bound, self.bound))


@dataclass(frozen=True)
class Free:
    """No control: smooth potentials of any steepness. For anchored plans, where the penalty needs no bound."""

    def layer(self, inputs: Sequence[int], outputs: int, rng: torch.Generator) -> Layer:
        return _PlainLinear(inputs, outputs, rng)

    def convolution(self, window: Window, rng: torch.Generator, *, bias: bool = True) -> Convolution:
        return PlainConvolution(window, rng, bias=bias)

    def activation(self, inputs: Sequence[int], units: int, rng: torch.Generator) -> nn.Module:
        return nn.SiLU()

    def picture_activation(self) -> nn.Module:
        return leaky()

    def after_step(self, layers: Sequence[Layer]) -> None:
        """Nothing."""


class HalfAbsolute(nn.Module):
    """(a, b) ↦ (|a + β|, b), half of the units each. 1-Lipschitz, keeps the gradient's norm.

    This is GroupSort, which sorts pairs of units, seen from coordinates turned by 45 degrees: (max, min) of a pair are
    (s + |d|, s − |d|) / √2 for s, d = sum and difference over √2. Orthogonal layers before and after turn either into
    the other, so that the functions one can write are the same; this form takes a third of the operations. The bias β
    is here and not in the layer before, as b needs none: what it would add, the next β adds. It starts uniform on
    ±1/√inputs, as a linear layer's would.

    Reference: "Sorting out Lipschitz function approximation", C. Anil, J. Lucas and R. Grosse, 2019.
    """

    def __init__(self, inputs: Sequence[int], units: int, rng: torch.Generator) -> None:
        super().__init__()
        bounds = torch.tensor(inputs).rsqrt()[:, None, None]
        self.bias = nn.Parameter(bounds * torch.empty(len(inputs), units // 2, 1).uniform_(-1, 1, generator=rng))

    def forward(self, h: Float[Tensor, "marginals units batch"]) -> Float[Tensor, "marginals units batch"]:
        a, b = h.chunk(2, dim=-2)
        return torch.cat(((a + self.bias).abs(), b), dim=-2)


class HalfAbsoluteMaps(nn.Module):
    """(a, b) ↦ (|a|, b), half of the channels each: `HalfAbsolute` for pictures, whose bias is the convolution's."""

    def forward(self, h: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
        a, b = h.chunk(2, dim=1)
        return torch.cat((a.abs(), b), dim=1)


def orthogonalise(weight: Weight, iterations: int) -> Weight:
    """The weights with all singular values brought near 1, never above.

    First W ← W / max(1, √b / 2), where b, the largest absolute row sum of WWᵀ, is at least the square of the largest
    singular value; then W ← 1.5 W − .5 W WᵀW, which maps singular values in [0, 2] into [0, 1] up to sign, and those
    near 1 closer to 1. A single row is divided by its norm.

    Reference: "An iterative algorithm for computing the best estimate of an orthogonal matrix",
    Å. Björck and C. Bowie, 1971.
    """
    tall = weight.shape[-2] > weight.shape[-1]
    w = weight.mT if tall else weight
    if w.shape[-2] == 1:
        return functional.normalize(weight, dim=-2 if tall else -1)
    gram = w @ w.mT
    bound = gram.abs().sum(-1).amax(-1)[..., None, None]
    squared = 4 / bound.clamp(min=4)
    w, gram = w * squared.sqrt(), gram * squared
    for k in range(iterations):
        if k > 0:
            gram = w @ w.mT
        w = torch.baddbmm(w, gram, w, beta=1.5, alpha=-0.5)
    return w.mT if tall else w


def operator_norm(weight: Weight) -> Float[Tensor, " stack"]:
    """The largest singular value, measured in float64."""
    return torch.linalg.matrix_norm(weight.detach().double(), ord=2)


class _OrthogonalLinear(Layer):
    bias = None

    def __init__(self, inputs: Sequence[int], outputs: int, rng: torch.Generator) -> None:
        super().__init__()
        first = [_orthonormal(torch.randn(outputs, size, generator=rng)) for size in inputs]
        self.weight = nn.Parameter(torch.stack([filled_up(weight, outputs, max(inputs)) for weight in first]))

    def effective_weight(self) -> Float[Tensor, "marginals outputs inputs"]:
        return self.weight


class _PlainLinear(Layer):
    def __init__(self, inputs: Sequence[int], outputs: int, rng: torch.Generator) -> None:
        super().__init__()
        layers = parallel(inputs, [outputs] * len(inputs), rng)
        self.weight, self.bias = layers.weight, layers.bias

    def effective_weight(self) -> Float[Tensor, "marginals outputs inputs"]:
        return self.weight


class _SpectralLinear(Layer):
    u: Tensor
    v: Tensor

    def __init__(self, inputs: Sequence[int], outputs: int, rng: torch.Generator) -> None:
        super().__init__()
        layers = parallel(inputs, [outputs] * len(inputs), rng)
        self.weight, self.bias = layers.weight, layers.bias
        m, _, most = self.weight.shape
        self.register_buffer("u", functional.normalize(torch.randn(m, outputs, 1, generator=rng), dim=1))
        self.register_buffer("v", functional.normalize(torch.randn(m, most, 1, generator=rng), dim=1))
        for _ in range(15):
            self.iterate()

    def effective_weight(self) -> Float[Tensor, "marginals outputs inputs"]:
        sigma = self.u.mT @ (self.weight @ self.v)  # (marginals, 1, 1)
        return self.weight / sigma

    @torch.no_grad()
    def iterate(self) -> None:
        """v ← Wᵀu / ‖Wᵀu‖, u ← Wv / ‖Wv‖."""
        self.v.copy_(functional.normalize(self.weight.mT @ self.u, dim=1))
        self.u.copy_(functional.normalize(self.weight @ self.v, dim=1))


def _orthonormal(weight: Float[Tensor, "outputs inputs"]) -> Float[Tensor, "outputs inputs"]:
    """The nearest matrix whose singular values are all 1."""
    u, _, vh = torch.linalg.svd(weight.double(), full_matrices=False)
    return (u @ vh).to(weight.dtype)


def _by_shape(weights: Iterable[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.Size, list[Tensor]] = defaultdict(list)
    for weight in weights:
        groups[weight.shape].append(weight)
    return list(groups.values())
