"""Problems whose answers are known: laws to draw from, the cost, and the optimal value."""

__all__ = ["Points", "Problem", "dimension_problems", "gaussians", "map_problems", "sine"]

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import norm

from torchspot import costs
from torchspot.types import Cost

Points = Float[np.ndarray, "n dim"]
Rng = np.random.Generator

_CHUNK = 50_000


@dataclass(frozen=True)
class Problem:
    """Two laws: X, and Y made by an optimal map or plan from a second, independent sample of X."""

    name: str
    cost: Cost
    base: Callable[[int, Rng], Points]
    """n samples of X."""
    move: Callable[[Points, Rng], Points]
    """The optimal partner of each of them."""
    known: float | None = None
    """The optimal cost; None: the mean cost of 10⁶ pairs of the optimal plan."""

    def sample(self, n: int, seed: int) -> tuple[Points, Points]:
        """n samples of each marginal, unpaired."""
        rng = np.random.default_rng([seed, 1])
        x, other = self.base(n, rng), self.base(n, rng)
        return x, self.move(other, rng)

    def pairs(self, n: int, seed: int) -> tuple[Points, Points]:
        """n pairs of the optimal plan."""
        rng = np.random.default_rng([seed, 2])
        x = self.base(n, rng)
        return x, self.move(x, rng)

    @cached_property
    def value(self) -> float:
        """The optimal cost."""
        return self.mean_cost(20) if self.known is None else self.known

    def mean_cost(self, chunks: int) -> float:
        """Over pairs of the optimal plan, 50 000 a chunk."""
        return float(np.mean([_cost(self.cost, *self.pairs(_CHUNK, 10**6 + k)) for k in range(chunks)]))


@cache
def dimension_problems(dim: int, law: int = 0) -> dict[str, Problem]:
    """The problems of the dimension table: six hard ones and a translation."""
    rng = np.random.default_rng([dim, law])
    return {
        "stretch": Problem("stretch", costs.euclidean, _normal(dim), _stretch, 2.0),
        "split": Problem("split", costs.euclidean, _normal(dim), _split, 2.0),
        "funnels": Problem("funnels", costs.euclidean, _normal(dim), _funnels(_directions(4, dim, rng) * 4.0)),
        "softmax": Problem("softmax", costs.squared_euclidean, _normal(dim), _softmax(_directions(4, dim, rng) * 4.0)),
        "monotone": Problem("monotone", costs.squared_euclidean, _normal(dim), _monotone(_rotation(dim, rng))),
        "elliptical": _elliptical(dim, rng),
        "translation": _translation(dim, rng),
    }


def gaussians(dim: int = 2, *, cost: Cost = costs.euclidean, apart: float = 5.0) -> Problem:
    """Section 5.1: N(∓apart/2 e_1, I). The translation is optimal under both costs."""
    shift = np.zeros(dim)
    shift[0] = apart / 2
    known = apart**2 if cost == costs.squared_euclidean else apart
    return Problem(
        "gaussians", cost, lambda n, rng: rng.normal(size=(n, dim)) - shift, lambda x, rng: x + 2 * shift, known
    )


def sine(n: int, seed: int) -> tuple[Points, Points]:
    """The lower row of Figure 6: N((−2.5, 0), .5 I), and (sin Y₁ + Y₂, 2Y₁ − 3), Y₁ uniform on [0, 3], Y₂ ~ N(2, .1).

    The optimal plan is not known.
    """
    rng = np.random.default_rng([seed, 1])
    x = np.sqrt(0.5) * rng.normal(size=(n, 2)) - np.array([2.5, 0.0])
    first, second = rng.uniform(0, 3, size=n), rng.normal(2, np.sqrt(0.1), size=n)
    return x, np.stack([np.sin(first) + second, 2 * first - 3], axis=1)


def _normal(dim: int) -> Callable[[int, Rng], Points]:
    return lambda n, rng: rng.normal(size=(n, dim))


def _stretch(x: Points, rng: Rng) -> Points:
    """x + r x/‖x‖, r uniform on [1, 3]: W1 = E r, with the potential −‖x‖."""
    return x + rng.uniform(1, 3, size=(len(x), 1)) * x / np.linalg.norm(x, axis=1, keepdims=True)


def _split(x: Points, rng: Rng) -> Points:
    """x + r sign(x_1) e_1, r uniform on [1, 3]: W1 = E r, with the potential −|x_1|."""
    moved = x.copy()
    moved[:, 0] += rng.uniform(1, 3, size=len(x)) * np.sign(x[:, 0])
    return moved


def _funnels(centres: Points) -> Callable[[Points, Rng], Points]:
    """x + t (a − x), a the nearest centre, t uniform on [0, 1]: W1 = E t‖x − a‖, the potential min_j ‖x − a_j‖."""

    def move(x: Points, rng: Rng) -> Points:
        nearest = centres[(x @ centres.T - 0.5 * np.square(centres).sum(1)).argmax(1)]
        return x + rng.uniform(0, 1, size=(len(x), 1)) * (nearest - x)

    return move


def _softmax(a: Points) -> Callable[[Points, Rng], Points]:
    """T(x) = x/2 + Σ_k softmax_k(a_k·x) a_k, the gradient of the convex ‖x‖²/4 + log Σ exp(a_k·x)."""

    def move(x: Points, rng: Rng) -> Points:
        heights = x @ a.T
        weights = np.exp(heights - heights.max(1, keepdims=True))
        return 0.5 * x + weights / weights.sum(1, keepdims=True) @ a

    return move


def _monotone(q: Points) -> Callable[[Points, Rng], Points]:
    """T(x) = Q t(Qᵀx), t(s) = s + 2 tanh 2s for every other coordinate (two humps), 2 (exp(s/2) − 1) else (skewed)."""

    def move(x: Points, rng: Rng) -> Points:
        s = x @ q
        t = s + 2 * np.tanh(2 * s)
        t[:, 1::2] = 2 * np.expm1(s[:, 1::2] / 2)
        return t @ q.T

    return move


@cache
def map_problems(dim: int, law: int = 0) -> dict[str, Problem]:
    """Problems under the squared cost whose optimal plan is a map: a linear one, two that are not, one on the line.

    Another `law` turns the axes and bends the maps in other ways.
    """
    if dim == 1:
        return {"mixtures": _sorted_mixtures()}
    hard, rng = dimension_problems(dim, law), np.random.default_rng([dim, 1, law])
    return {"linear": _linear(dim, rng), **{k: hard[k] for k in ("softmax", "monotone")}}


def _sorted_mixtures() -> Problem:
    """Halves of N(±1, .5) to unequal parts of N(−2, .5), N(1, .1) and N(3, .3): on the line it is best to sort."""
    grid = np.linspace(-8, 8, 200_001)
    x_parts, y_parts = ((0.5, -1, 0.5), (0.5, 1, 0.5)), ((0.3, -2, 0.5), (0.5, 1, 0.1), (0.2, 3, 0.3))

    def cumulative(parts: tuple[tuple[float, float, float], ...]) -> Points:
        return sum(share * norm.cdf(grid, mean, np.sqrt(variance)) for share, mean, variance in parts)

    def base(n: int, rng: Rng) -> Points:
        part = rng.choice(2, size=n)
        return np.where(part, 1.0, -1.0)[:, None] + np.sqrt(0.5) * rng.normal(size=(n, 1))

    below, above = cumulative(x_parts), cumulative(y_parts)

    def move(x: Points, rng: Rng) -> Points:
        return np.interp(np.interp(x, grid, below), above, grid)

    return Problem("mixtures", costs.squared_euclidean, base, move)


def _linear(dim: int, law: Rng) -> Problem:
    """Two Gaussians of different axes."""
    root, affine, shift, bures = _axes(dim, law)

    def base(n: int, rng: Rng) -> Points:
        return rng.normal(size=(n, dim)) @ root

    return Problem(
        "linear", costs.squared_euclidean, base, lambda x, rng: x @ affine + shift, float(shift @ shift + bures)
    )


def _elliptical(dim: int, law: Rng) -> Problem:
    """Two elliptical t₅ laws of different axes: the optimal map is affine, as between Gaussians."""
    root, affine, shift, bures = _axes(dim, law)

    def base(n: int, rng: Rng) -> Points:
        return rng.normal(size=(n, dim)) @ root / np.sqrt(rng.chisquare(5, size=(n, 1)) / 5)

    def move(x: Points, rng: Rng) -> Points:
        return x @ affine + shift

    return Problem("elliptical", costs.squared_euclidean, base, move, float(shift @ shift + 5 / 3 * bures))


def _axes(dim: int, law: Rng) -> tuple[Points, Points, Points, float]:
    """The root of a covariance, the optimal matrix to a second one, a shift, and the squared Bures distance."""
    roots = [(q := _rotation(dim, law)) * law.uniform(0.5, 1.5, size=dim) @ q.T for _ in range(2)]
    shift = 2.0 * _directions(1, dim, law)[0]
    a, b = (root @ root for root in roots)
    middle = _root(roots[0] @ b @ roots[0])
    inverse = np.linalg.inv(roots[0])
    affine = inverse @ middle @ inverse
    bures = float(np.trace(a) + np.trace(b) - 2 * np.trace(middle))
    return roots[0], affine, shift, bures


def _translation(dim: int, law: Rng) -> Problem:
    """An unequal mixture of three Gaussians, and the same 5 further on."""
    centres, shares = 3.0 * _directions(3, dim, law), np.array([0.5, 0.3, 0.2])
    shift = 5.0 * _directions(1, dim, law)[0]

    def base(n: int, rng: Rng) -> Points:
        return centres[rng.choice(3, size=n, p=shares)] + rng.normal(size=(n, dim))

    return Problem("translation", costs.euclidean, base, lambda x, rng: x + shift, 5.0)


def _directions(count: int, dim: int, law: Rng) -> Points:
    """Unit vectors."""
    a = law.normal(size=(count, dim))
    return a / np.linalg.norm(a, axis=1, keepdims=True)


def _rotation(dim: int, law: Rng) -> Points:
    return np.linalg.qr(law.normal(size=(dim, dim)))[0]


def _root(a: Points) -> Points:
    values, vectors = np.linalg.eigh(a)
    return vectors * np.sqrt(values.clip(min=0)) @ vectors.T


def _cost(cost: Cost, x: Points, y: Points) -> float:
    return float(cost(torch.from_numpy(x), torch.from_numpy(y)).mean())
