"""Regularised transport through its dual: two potentials, the plan's density they imply, and the barycentric map.

Reference: "Large-Scale Optimal Transport and Mapping Estimation", V. Seguy, B. B. Damodaran, R. Flamary, N. Courty,
A. Rolet and M. Blondel, 2018.
"""

__all__ = ["Entropy", "Potentials", "Quadratic", "Regularisation", "RegularisedDual"]

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot.types import Cost

_STEEPEST = 30.0

Excess = Float[Tensor, "rows columns"]
"""u(x_i) + v(y_j) − c(x_i, y_j), for all pairs."""


class Regularisation(Protocol):
    """A convex penalty on the plan's density against the product of the marginals, as the dual sees it."""

    def penalty(self, excess: Excess, epsilon: Float[Tensor, ""]) -> Excess:
        """What the dual pays for a pair."""

    def density(self, excess: Excess, epsilon: Float[Tensor, ""]) -> Excess:
        """The plan's density with respect to μ ⊗ ν: minus the derivative of the penalty."""


@dataclass(frozen=True)
class Entropy:
    """ε E[h (log h − 1)] on the density h; in the dual −ε exp((u + v − c)/ε), and h = exp((u + v − c)/ε).

    Above exponent 30 the exponential goes on as a straight line, so that no step overflows; at the optimum no pair is
    up there.
    """

    def penalty(self, excess: Excess, epsilon: Float[Tensor, ""]) -> Excess:
        t = excess / epsilon
        beyond = (t - _STEEPEST).clamp(min=0)
        return -epsilon * (t.clamp(max=_STEEPEST).exp() * (1 + beyond))

    def density(self, excess: Excess, epsilon: Float[Tensor, ""]) -> Excess:
        return (excess / epsilon).clamp(max=_STEEPEST).exp()


@dataclass(frozen=True)
class Quadratic:
    """ε E[h²] on the density h ≥ 0; in the dual −(u + v − c)₊² / 4ε, and h = (u + v − c)₊ / 2ε."""

    def penalty(self, excess: Excess, epsilon: Float[Tensor, ""]) -> Excess:
        return -excess.clamp(min=0).square() / (4 * epsilon)

    def density(self, excess: Excess, epsilon: Float[Tensor, ""]) -> Excess:
        return excess.clamp(min=0) / (2 * epsilon)


class Potentials(nn.Module):
    """u and v, and the ε they are for: a buffer, so that replicas may differ in it."""

    epsilon: Tensor

    def __init__(self, u: nn.Module, v: nn.Module, epsilon: float) -> None:
        super().__init__()
        self.u, self.v = u, v
        self.register_buffer("epsilon", torch.tensor(epsilon))

    def forward(
        self, x: Float[Tensor, "rows dim"], y: Float[Tensor, "columns dim"]
    ) -> tuple[Float[Tensor, " rows"], Float[Tensor, " columns"]]:
        return self.u(x).squeeze(1), self.v(y).squeeze(1)


@dataclass(frozen=True)
class RegularisedDual:
    """max_{u,v} E u(x) + E v(y) + E F_ε(u(x) + v(y) − c(x, y)), and T(x) = argmin_t E[h(x, y) ‖t − y‖²].

    All pairs of a batch count. T is trained along with the potentials, not after them.
    """

    potentials: Potentials
    transport: nn.Module
    """T, the barycentric map."""
    cost: Cost
    regularisation: Regularisation

    def dual_loss(self, batch: tuple[Tensor, ...]) -> Float[Tensor, ""]:
        """Minus the dual, for batch = (x, y)."""
        return -self.value(*batch)

    def map_loss(self, batch: tuple[Tensor, ...]) -> Float[Tensor, ""]:
        """Σ_ij h_ij ‖T(x_i) − y_j‖² / Σ_ij h_ij, for batch = (x, y), with h of the potentials as they stand."""
        x, y = batch
        with torch.no_grad():
            h = self.density(x, y)
        t = self.transport(x)
        apart = t.square().sum(1)[:, None] + y.square().sum(1) - 2 * t @ y.T
        return (h * apart).sum() / h.sum().clamp(min=torch.finfo(h.dtype).tiny)

    def value(self, x: Float[Tensor, "rows dim"], y: Float[Tensor, "columns dim"]) -> Float[Tensor, ""]:
        """The dual on these samples: what ROT reports as the distance."""
        u, v = self.potentials(x, y)
        excess = u[:, None] + v - self.costs(x, y)
        return u.mean() + v.mean() + self.regularisation.penalty(excess, self.potentials.epsilon).mean()

    def plan_cost(self, x: Float[Tensor, "rows dim"], y: Float[Tensor, "columns dim"]) -> Float[Tensor, ""]:
        """E[h c] / E[h]: what the regularised plan itself costs."""
        h = self.density(x, y)
        return (h * self.costs(x, y)).sum() / h.sum().clamp(min=torch.finfo(h.dtype).tiny)

    def density(self, x: Float[Tensor, "rows dim"], y: Float[Tensor, "columns dim"]) -> Excess:
        """h(x_i, y_j)."""
        u, v = self.potentials(x, y)
        return self.regularisation.density(u[:, None] + v - self.costs(x, y), self.potentials.epsilon)

    def costs(self, x: Float[Tensor, "rows dim"], y: Float[Tensor, "columns dim"]) -> Excess:
        """c(x_i, y_j)."""
        pairs = (x[:, None].expand(-1, len(y), -1).flatten(0, 1), y[None].expand(len(x), -1, -1).flatten(0, 1))
        return self.cost(*pairs).view(len(x), len(y))
