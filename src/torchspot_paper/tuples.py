"""Problems of three and more marginals whose answers are known, or found by exact transport of points."""

__all__ = ["TupleProblem", "bent", "discrete", "gaussians", "mixtures"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import csr_array

from torchspot import costs
from torchspot.exact import by_pot, matched
from torchspot.types import Cost
from torchspot_paper.problems import Points, Rng

_PAIRS = costs.sum_over_pairs(costs.squared_euclidean)
_BLOCK, _BLOCKS, _STARTS, _SETTLED = 1024, 6, 2, 1e-5


@dataclass(frozen=True)
class TupleProblem:
    """Several laws, what is known of their optimal plan, and of its barycenter."""

    name: str
    cost: Cost
    draw: Callable[[int, Rng], tuple[Points, ...]]
    """n samples of each marginal, unpaired."""
    solve: Callable[[], float]
    """The optimal cost."""
    barycenter: Callable[[], tuple[Points, Points]] | None = None
    """Mean and covariance of the barycenter, where they are known."""
    plan: Callable[[int, Rng], tuple[Points, ...]] | None = None
    """n samples of the optimal plan, where it is known."""

    def sample(self, n: int, seed: int) -> tuple[Points, ...]:
        """n samples of each marginal, unpaired."""
        return self.draw(n, np.random.default_rng([seed, 1]))

    @cached_property
    def value(self) -> float:
        """The optimal cost."""
        return self.solve()


def gaussians(m: int, dim: int, weights: Sequence[float] | None = None, law: int = 0) -> TupleProblem:
    """m Gaussians with axes of their own. The barycenter S is the fixed point of S = Σ w_i (S^½ Σ_i S^½)^½.

    The optimal cost is Σ w_i (‖m_i − m̄‖² + tr Σ_i + tr S − 2 tr (S^½ Σ_i S^½)^½), times m² for the sum over pairs.
    """
    rng = np.random.default_rng([m, dim, law])
    means = rng.normal(size=(m, dim))
    roots = [(q := _rotation(dim, rng)) * rng.uniform(0.4, 1.6, size=dim) @ q.T for _ in range(m)]
    w = np.full(m, 1 / m) if weights is None else np.asarray(weights) / np.sum(weights)
    covariances = [root @ root for root in roots]
    s = _fixed_point(covariances, w)
    centre = w @ means

    def value() -> float:
        half = _root(s)
        bures = [np.trace(c) + np.trace(s) - 2 * np.trace(_root(half @ c @ half)) for c in covariances]
        total = float(w @ (np.square(means - centre).sum(1) + np.array(bures)))
        return total * (m * m if weights is None else 1)

    def draw(n: int, rng: Rng) -> tuple[Points, ...]:
        return tuple(rng.normal(size=(n, dim)) @ root + mean for root, mean in zip(roots, means, strict=True))

    cost = _PAIRS if weights is None else costs.barycentric(weights)
    return TupleProblem("gaussians", cost, draw, value, lambda: (centre, s))


def bent(dim: int, m: int = 3, law: int = 0) -> TupleProblem:
    """T_i(x) = Q t_i(Qᵀx) of a mixture x, t_ik(s) = s + b_ik sin(s + c_k) with Σ_i b_ik = 0 and |b_ik| < 1.

    Each T_i is the gradient of a convex function and their mean is the identity, so (T_1 x, …, T_m x) is an optimal
    plan and x its barycenter.

    Reference: "Barycenters in the Wasserstein space", M. Agueh and G. Carlier, 2011.
    """
    rng = np.random.default_rng([m, dim, 7, law])
    q, phases = _rotation(dim, rng), rng.uniform(0, 2 * np.pi, size=dim)
    b = rng.normal(size=(m, dim))
    b -= b.mean(0)
    b *= 0.8 / np.abs(b).max(0)
    centres, shares = rng.normal(size=(3, dim)) * 1.5, np.array([0.5, 0.3, 0.2])

    def base(n: int, rng: Rng) -> Points:
        return centres[rng.choice(3, size=n, p=shares)] + 0.7 * rng.normal(size=(n, dim))

    def moved(x: Points, i: int) -> Points:
        return x + (b[i] * np.sin(x @ q + phases)) @ q.T

    def draw(n: int, rng: Rng) -> tuple[Points, ...]:
        return tuple(moved(base(n, rng), i) for i in range(m))

    def plan(n: int, rng: Rng) -> tuple[Points, ...]:
        x = base(n, rng)
        return tuple(moved(x, i) for i in range(m))

    def value() -> float:
        return float(_PAIRS(*map(torch.from_numpy, plan(1_000_000, np.random.default_rng(9)))).mean())

    def barycenter() -> tuple[Points, Points]:
        x = base(1_000_000, np.random.default_rng(9))
        return x.mean(0), np.cov(x.T)

    return TupleProblem("bent", _PAIRS, draw, value, barycenter, plan)


def mixtures(law: int = 0) -> TupleProblem:
    """Three mixtures in the plane of two, three and four unequal parts.

    The answer is that of points of which each part has its share: shares by chance would move it by a few percent.
    """
    rng = np.random.default_rng([3, law])
    parts = [
        (rng.normal(size=(k, 2)) * 2.0, rng.dirichlet(np.full(k, 3.0)), 0.3 + 0.4 * rng.random(k)) for k in (2, 3, 4)
    ]

    def draw(n: int, rng: Rng) -> tuple[Points, ...]:
        return tuple(_of_parts(one, rng.random(n), rng) for one in parts)

    def in_shares(n: int, rng: Rng) -> tuple[Points, ...]:
        return tuple(_of_parts(one, (np.arange(n) + 0.5) / n, rng) for one in parts)

    return TupleProblem("mixtures", _PAIRS, draw, lambda: by_points(in_shares))


def _of_parts(parts: tuple[Points, Points, Points], levels: Points, rng: Rng) -> Points:
    """One point for each level in [0, 1], of the part in whose share it lies: (centres, shares, widths)."""
    centres, shares, widths = parts
    part = np.searchsorted(np.cumsum(shares)[:-1], levels)
    return centres[part] + widths[part, None] * rng.normal(size=(len(levels), centres.shape[1]))


def by_points(draw: Callable[[int, Rng], tuple[Points, ...]]) -> float:
    """The mean over blocks of points of the least cost that alternating exact assignments find from several starts."""
    values = []
    for k in range(_BLOCKS):
        xs = tuple(map(torch.from_numpy, draw(_BLOCK, np.random.default_rng([k, 2]))))
        shuffles = [np.random.default_rng([k, s]) for s in range(_STARTS)]
        starts = [tuple(x[rng.permutation(_BLOCK)] for x in xs) for rng in shuffles]
        values.append(min(map(_alternated, starts)))
    return float(np.mean(values))


def _alternated(xs: tuple[torch.Tensor, ...]) -> float:
    """The mean cost when one marginal after the other is matched to the rest, until that no longer helps."""
    value, before = float(_PAIRS(*xs).mean()), np.inf
    while value < before * (1 - _SETTLED):
        xs = matched(_PAIRS, xs, sweeps=1, assign=by_pot)
        value, before = float(_PAIRS(*xs).mean()), value
    return value


def discrete(points: int = 50, dim: int = 2, law: int = 0) -> TupleProblem:
    """Three laws of so many atoms each, all alike likely; the answer by a linear program over all tuples (HiGHS)."""
    rng = np.random.default_rng([points, dim, 1, law])
    atoms = [rng.normal(size=(points, dim)) @ rng.normal(size=(dim, dim)) + 2 * rng.normal(size=dim) for _ in range(3)]

    def draw(n: int, rng: Rng) -> tuple[Points, ...]:
        return tuple(atoms)

    return TupleProblem("discrete", _PAIRS, draw, lambda: linear_program(_PAIRS, atoms))


def linear_program(cost: Cost, atoms: Sequence[Points]) -> float:
    """The least E c over couplings of laws with these atoms, all alike likely."""
    sizes = tuple(map(len, atoms))
    places = np.stack([axis.ravel() for axis in np.indices(sizes)])
    values = cost(*(torch.from_numpy(a[place]) for a, place in zip(atoms, places, strict=True))).numpy()
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rows = (places + offsets[:, None]).ravel()
    columns = np.tile(np.arange(places.shape[1]), len(sizes))
    matrix = csr_array((np.ones(len(rows)), (rows, columns)), shape=(sum(sizes), places.shape[1]))
    shares = np.concatenate([np.full(size, 1 / size) for size in sizes])
    return float(linprog(values, A_eq=matrix, b_eq=shares, method="highs").fun)


def _fixed_point(covariances: Sequence[Points], w: Points) -> Points:
    s = sum(weight * c for weight, c in zip(w, covariances, strict=True))
    for _ in range(200):
        half = _root(s)
        back = np.linalg.inv(half)
        mean = sum(weight * _root(half @ c @ half) for weight, c in zip(w, covariances, strict=True))
        s = back @ mean @ mean @ back
    return s


def _rotation(dim: int, law: Rng) -> Points:
    return np.linalg.qr(law.normal(size=(dim, dim)))[0]


def _root(a: Points) -> Points:
    values, vectors = np.linalg.eigh((a + a.T) / 2)
    return vectors * np.sqrt(values.clip(min=0)) @ vectors.T
