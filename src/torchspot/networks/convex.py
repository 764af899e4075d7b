"""Convex functions as networks: strongly convex, with a gradient in closed form."""

__all__ = ["InverseMap", "StronglyConvex"]

import math
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from torchspot.networks.mlp import linear
from torchspot.types import Values

Points = Float[Tensor, "batch dim"]

_SHARPNESS = 4.0
"""Of the softplus, at the start."""
_ROUNDING = 0.3
"""Of the edges between planes, at the start."""
_SWIFTNESS = 3.0
"""How much faster than other parameters α is learned."""


class StronglyConvex(nn.Module):
    """φ(x) = ½ (α‖x‖² + ‖Lᵀx‖²) + w₁ᵀσ(h₁) + w₂ᵀσ(h₂) + τ log Σ exp((V₃x + b₃) / τ).

    Here h₁ = V₁x + b₁, h₂ = Wσ(h₁) + V₂x + b₂ with W, w₁, w₂ ≥ 0, and σ is a softplus: sums of convex ridges, and a
    rounded maximum of planes. φ is α-strongly convex and smooth, and α is learned too. It starts near ½ xᵀTx.

    Reference: "Input Convex Neural Networks", B. Amos, L. Xu and J. Z. Kolter, 2017.
    """

    def __init__(self, start: Float[Tensor, "dim dim"], *, width: int, rng: torch.Generator) -> None:
        super().__init__()
        dim = len(start)
        values, vectors = torch.linalg.eigh(start.double())
        alpha = max(float(values.min()) / 2, 1e-3)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(alpha) / _SWIFTNESS))
        self.log_sharpness = nn.Parameter(torch.full((2, width), math.log(_SHARPNESS)))
        self.root = nn.Parameter((vectors * (values - alpha).clamp(min=1e-6).sqrt()).float())
        self.first, self.second, self.planes = (linear(dim, width, rng) for _ in range(3))
        for layer in (self.first, self.second):
            layer.weight.data.mul_(2.5)
            layer.bias.data.uniform_(-1.5, 1.5, generator=rng)
        self.log_rounding = nn.Parameter(torch.tensor(math.log(_ROUNDING)))
        self.log_between = nn.Parameter(torch.full((width, width), -math.log(width) - 2))
        self.log_out = nn.Parameter(torch.full((2, width), -math.log(width) - 1))

    @property
    def alpha(self) -> Float[Tensor, ""]:
        """How strongly convex it is."""
        return (_SWIFTNESS * self.log_alpha).exp()

    def forward(self, x: Points) -> tuple[Values, Points]:
        """φ(x) and ∇φ(x)."""
        between, (out_1, out_2) = self.log_between.exp(), self.log_out.exp()
        sharp_1, sharp_2 = self.log_sharpness.exp()
        h_1 = sharp_1 * self.first(x)
        z_1 = functional.softplus(h_1) / sharp_1
        h_2 = sharp_2 * (z_1 @ between.mT + self.second(x))
        turned = x @ self.root
        squares = turned.square().sum(1) + self.alpha * x.square().sum(1)
        rounding = self.log_rounding.exp()
        planes = self.planes(x) / rounding
        value = 0.5 * squares + z_1 @ out_1 + functional.softplus(h_2) @ (out_2 / sharp_2)
        value = value + rounding * planes.logsumexp(1)
        g_2 = out_2 * torch.sigmoid(h_2)
        g_1 = (g_2 @ between + out_1) * torch.sigmoid(h_1)
        gradient = turned @ self.root.mT + self.alpha * x + g_2 @ self.second.weight + g_1 @ self.first.weight
        return value, gradient + planes.softmax(1) @ self.planes.weight

    def conjugate_bound(self, y: Points, at: Points) -> Values:
        """An upper bound of φ*(y), for any points x̂ given: x̂·y − φ(x̂) + ‖y − ∇φ(x̂)‖² / (2α)."""
        value, gradient = self(at)
        return (at * y).sum(1) - value + (y - gradient).square().sum(1) / (2 * self.alpha)


class InverseMap(nn.Module):
    """y ↦ Ay + a small network: where ∇φ(x) = y might be."""

    def __init__(self, start: Float[Tensor, "dim dim"], *, width: int, rng: torch.Generator) -> None:
        super().__init__()
        dim = len(start)
        self.matrix = nn.Parameter(start.float().clone())
        sizes = (dim, width, width, dim)
        layers = [linear(inputs, outputs, rng) for inputs, outputs in pairwise(sizes)]
        layers[-1].weight.data.mul_(0.01)
        layers[-1].bias.data.zero_()
        self.network = nn.Sequential(layers[0], nn.SiLU(), layers[1], nn.SiLU(), layers[2])

    def forward(self, y: Points) -> Points:
        return y @ self.matrix.mT + self.network(y)
