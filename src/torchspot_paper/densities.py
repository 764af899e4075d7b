"""Entropic plans whose density is known: in closed form between Gaussians, on a grid between mixtures."""

__all__ = ["GaussianPair", "Grid", "Line", "LinePair", "gaussian_pair", "line_pairs"]

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy import stats

from torchspot.exact import require_pot
from torchspot.objectives.gaussian import entropic_coupling
from torchspot_paper.problems import Points

_WIDE = 5.5
_SINKHORN, _CONVERGED, _CLOSE = 100_000, 1e-12, 1e-6


@dataclass(frozen=True)
class Grid:
    """A joint density on a grid of the plane."""

    x: Float[np.ndarray, " nodes"]
    y: Float[np.ndarray, " nodes"]
    density: Float[np.ndarray, "nodes nodes"]
    """At (x_i, y_j)."""

    @property
    def cell(self) -> float:
        """Area of a cell."""
        return float((self.x[1] - self.x[0]) * (self.y[1] - self.y[0]))

    @property
    def mass(self) -> float:
        """∫ p."""
        return float(self.density.sum() * self.cell)

    @property
    def cost(self) -> float:
        """E (x − y)²."""
        return float((self.density * np.subtract.outer(self.x, self.y) ** 2).sum() / self.density.sum())

    @property
    def correlation(self) -> float:
        """Of x and y."""
        p = self.density / self.density.sum()
        px, py = p.sum(1), p.sum(0)
        mx, my = px @ self.x, py @ self.y
        covariance = (self.x - mx) @ p @ (self.y - my)
        return float(covariance / math.sqrt((px @ (self.x - mx) ** 2) * (py @ (self.y - my) ** 2)))

    def kl(self, model: "Grid") -> float:
        """KL(self ‖ model)."""
        p, q = self.density, np.maximum(model.density, np.finfo(float).tiny)
        return float((p * (np.log(np.maximum(p, np.finfo(float).tiny)) - np.log(q))).sum() * self.cell)

    def l1(self, model: "Grid") -> float:
        """∫ |self − model|."""
        return float(np.abs(self.density - model.density).sum() * self.cell)


@dataclass(frozen=True)
class Line:
    """A mixture of Gaussians on the line, all alike likely."""

    means: tuple[float, ...]
    variance: float

    def density(self, x: Float[np.ndarray, " nodes"]) -> Float[np.ndarray, " nodes"]:
        return np.mean([stats.norm.pdf(x, mean, math.sqrt(self.variance)) for mean in self.means], axis=0)

    def sample(self, n: int, rng: np.random.Generator) -> Points:
        return (rng.choice(self.means, size=n) + math.sqrt(self.variance) * rng.normal(size=n))[:, None]

    def nodes(self, count: int = 400) -> Float[np.ndarray, " nodes"]:
        """So many points where it lives, all but 10⁻⁷ of it."""
        wide = _WIDE * math.sqrt(self.variance)
        return np.linspace(min(self.means) - wide, max(self.means) + wide, count)


@dataclass(frozen=True)
class LinePair:
    """Two marginals on the line under the squared cost, as in section 5.2."""

    first: Line
    second: Line

    def sample(self, n: int, seed: int) -> tuple[Points, Points]:
        """n samples of each marginal, unpaired."""
        rng = np.random.default_rng([seed, 1])
        return self.first.sample(n, rng), self.second.sample(n, rng)

    def truth(self, epsilon: float, nodes: int = 400) -> Grid:
        """The optimal plan: a Gaussian if both marginals are, else log-domain Sinkhorn between cells of the grid."""
        x, y = self.first.nodes(nodes), self.second.nodes(nodes)
        if len(self.first.means) == len(self.second.means) == 1:
            a, b = self.first.variance, self.second.variance
            c = (-epsilon + math.sqrt(epsilon**2 + 16 * a * b)) / 4
            joint = stats.multivariate_normal([*self.first.means, *self.second.means], [[a, c], [c, b]])
            return Grid(x, y, joint.pdf(np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1)))
        cost = np.subtract.outer(x, y) ** 2
        shares = [line.density(points) for line, points in ((self.first, x), (self.second, y))]
        shares = [share / share.sum() for share in shares]
        plan = require_pot().bregman.sinkhorn_log(
            *shares, cost, epsilon, numItermax=_SINKHORN, stopThr=_CONVERGED, warn=False
        )
        if not np.allclose(plan.sum(1), shares[0], rtol=0, atol=_CLOSE * shares[0].max()):
            raise RuntimeError(f"Sinkhorn's iteration did not converge for epsilon={epsilon}.")
        return Grid(x, y, plan / ((x[1] - x[0]) * (y[1] - y[0])))


@cache
def line_pairs() -> dict[str, LinePair]:
    """The two pairs of section 5.2; the second argument of its φ is the variance."""
    return {
        "gaussians": LinePair(Line((0.0,), 1.0), Line((2.0,), 0.5)),
        "mixtures": LinePair(Line((-1.0, 1.0), 0.5), Line((-2.0, 2.0), 0.5)),
    }


@dataclass(frozen=True)
class GaussianPair:
    """Two Gaussians of several dimensions and their entropic plan under the squared cost, itself a Gaussian."""

    means: tuple[Float[np.ndarray, " dim"], Float[np.ndarray, " dim"]]
    covariances: tuple[Points, Points]

    def sample(self, n: int, seed: int) -> tuple[Points, Points]:
        """n samples of each marginal, unpaired."""
        rng = np.random.default_rng([seed, 1])
        x, y = (rng.multivariate_normal(m, c, size=n) for m, c in zip(self.means, self.covariances, strict=True))
        return x, y

    def joint(self, epsilon: float) -> Points:
        """Covariance of (x, y) under the optimal plan."""
        a, b = self.covariances
        c = entropic_coupling(torch.from_numpy(a), torch.from_numpy(b), epsilon).numpy()
        return np.block([[a, c], [c.T, b]])

    def plan(self, epsilon: float) -> Any:
        """The optimal plan, a distribution of scipy."""
        return stats.multivariate_normal(np.concatenate(self.means), self.joint(epsilon))

    def cost(self, epsilon: float) -> float:
        """What it costs."""
        d = len(self.means[0])
        joint = self.joint(epsilon)
        spread = np.trace(joint) - 2 * np.trace(joint[:d, d:])
        return float(np.square(self.means[0] - self.means[1]).sum() + spread)


@cache
def gaussian_pair(dim: int = 8) -> GaussianPair:
    """Random axes, deviations between .5 and 1.5, means 2 apart."""
    rng = np.random.default_rng(dim)

    def covariance() -> Points:
        q = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
        return q * rng.uniform(0.5, 1.5, size=dim) ** 2 @ q.T

    shift = rng.normal(size=dim)
    return GaussianPair((np.zeros(dim), 2 * shift / np.linalg.norm(shift)), (covariance(), covariance()))
