"""Random transport problems whose optimal cost between the laws is known: what certificates are counted on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import linprog

from torchspot import costs

Draw = Callable[[int, np.random.Generator], np.ndarray]
"""Rows, each drawn from the law."""

_PRECISE = 1_000_000


@dataclass(frozen=True)
class Known:
    kind: str
    dim: int
    xs: tuple[np.ndarray, np.ndarray]
    """Independent samples of the two laws."""
    cost: Any
    value: float
    """The optimal cost between the laws."""


def random_problem(number: int, n: int, *, seed: int = 0) -> Known:
    """The kinds take turns; dimension, cost and shape are drawn from the seed and the number."""
    rng = np.random.default_rng([seed, number])
    kind = list(KINDS)[number % len(KINDS)]
    dim = int(rng.integers(1, 9))
    x, y, cost, value = KINDS[kind](dim, rng)
    xs = x(n, rng), y(n, rng)
    return Known(kind, xs[0].shape[1], xs, cost, value)


def _translation(dim, rng):
    """Any law and the same law moved: optimal for both costs."""
    base, shift = _some_law(dim, rng), rng.normal(size=dim) * rng.choice([0.5, 2.0])
    squared = bool(rng.integers(2))
    length = float(np.linalg.norm(shift))
    return base, lambda n, r: base(n, r) + shift, _cost(squared), length**2 if squared else length


def _stretch(dim, rng):
    """Y = X + r X/‖X‖, r ≥ 0 independent: E r, with the potential −‖x‖."""
    base, high = _some_law(dim, rng), rng.uniform(0.5, 4)

    def moved(n, r):
        x = base(n, r)
        return x + r.uniform(0, high, size=(n, 1)) * x / np.linalg.norm(x, axis=1, keepdims=True)

    return base, moved, costs.euclidean, high / 2


def _split(dim, rng):
    """Y = X + r sign(⟨q, X⟩) q, r ≥ 0 independent: E r, with the potential −|⟨q, x⟩|."""
    base, high = _some_law(dim, rng), rng.uniform(0.5, 4)
    q = rng.normal(size=dim)
    q /= np.linalg.norm(q)

    def moved(n, r):
        x = base(n, r)
        return x + r.uniform(0, high, size=(n, 1)) * np.sign(x @ q)[:, None] * q

    return base, moved, costs.euclidean, high / 2


def _funnels(dim, rng):
    """Y = X + t (a − X), a the nearest of some centres, t in [0, 1] independent: E t E‖X − a‖."""
    base, centres = _some_law(dim, rng), 2 * rng.normal(size=(int(rng.integers(1, 5)), dim))
    high = rng.uniform(0.3, 1)

    def nearest(x):
        return centres[((x[:, None] - centres) ** 2).sum(2).argmin(1)]

    def moved(n, r):
        x = base(n, r)
        return x + r.uniform(0, high, size=(n, 1)) * (nearest(x) - x)

    x = base(_PRECISE, np.random.default_rng(1))
    return base, moved, costs.euclidean, high / 2 * float(np.linalg.norm(x - nearest(x), axis=1).mean())


def _bures(dim, rng):
    """Two Gaussians."""
    return _elliptical_pair(dim, rng, lambda n, r: r.normal(size=(n, dim)))


def _elliptical(dim, rng):
    """Two laws of Student's t with 5 degrees of freedom, which have heavy tails."""
    return _elliptical_pair(
        dim, rng, lambda n, r: r.normal(size=(n, dim)) / np.sqrt(r.chisquare(5, size=(n, 1)) / 5) * np.sqrt(3 / 5)
    )


def _elliptical_pair(dim, rng, standard):
    """Linear images of one spherical law: ‖Δm‖² + tr(A + B − 2 (A^½ B A^½)^½)."""
    p, q = (rng.normal(size=(dim, dim)) / np.sqrt(dim) + 0.3 * np.eye(dim) for _ in range(2))
    shift = rng.normal(size=dim)
    a, b = p @ p.T, q @ q.T
    root = _root(a)
    value = float(shift @ shift + np.trace(a + b - 2 * _root(root @ b @ root)))
    return (
        lambda n, r: standard(n, r) @ p.T,
        lambda n, r: standard(n, r) @ q.T + shift,
        costs.squared_euclidean,
        value,
    )


def _gradient(dim, rng):
    """Y = T(X), T the gradient of a convex function that is no quadratic."""
    count = int(rng.integers(2, 6))
    a, b = 2 * rng.normal(size=(count, dim)), rng.normal(size=count)
    base, alpha = _some_law(dim, rng), rng.uniform(0.2, 1)

    def map_(x):
        e = x @ a.T + b
        e = np.exp(e - e.max(1, keepdims=True))
        return alpha * x + (e / e.sum(1, keepdims=True)) @ a

    x = base(_PRECISE, np.random.default_rng(1))
    value = float(((map_(x) - x) ** 2).sum(1).mean())
    return base, lambda n, r: map_(base(n, r)), costs.squared_euclidean, value


def _line(dim, rng):
    """One dimension: ∫ |F⁻¹ − G⁻¹|^p, by the quantile functions."""
    laws = (
        stats.norm(0, 1),
        stats.gamma(2),
        stats.uniform(-2, 5),
        stats.logistic(1, 0.5),
        stats.t(6),
        stats.beta(0.5, 0.5),
    )
    f, g = (laws[k] for k in rng.choice(len(laws), size=2, replace=False))
    squared = bool(rng.integers(2))
    grid = (np.arange(_PRECISE) + 0.5) / _PRECISE
    apart = np.abs(f.ppf(grid) - g.ppf(grid))
    return (
        lambda n, r: f.ppf(r.uniform(size=(n, 1))),
        lambda n, r: g.ppf(r.uniform(size=(n, 1))),
        _cost(squared),
        float((apart**2 if squared else apart).mean()),
    )


def _discrete(dim, rng):
    """A few atoms on either side: the linear program."""
    atoms = [2 * rng.normal(size=(int(rng.integers(2, 9)), dim)) for _ in range(2)]
    shares = [rng.dirichlet(np.full(len(a), 3.0)) for a in atoms]
    squared = bool(rng.integers(2))
    distances = np.linalg.norm(atoms[0][:, None] - atoms[1][None], axis=2)
    rows, columns = distances.shape
    sums = np.concatenate((np.kron(np.eye(rows), np.ones(columns)), np.kron(np.ones(rows), np.eye(columns))))
    program = linprog((distances**2 if squared else distances).ravel(), A_eq=sums, b_eq=np.concatenate(shares))
    x, y = (lambda n, r, a=a, s=s: a[r.choice(len(a), size=n, p=s)] for a, s in zip(atoms, shares, strict=True))
    return x, y, _cost(squared), float(program.fun)


KINDS = {
    "translation": _translation,
    "stretch": _stretch,
    "split": _split,
    "funnels": _funnels,
    "bures": _bures,
    "elliptical": _elliptical,
    "gradient": _gradient,
    "line": _line,
    "discrete": _discrete,
}


def _some_law(dim: int, rng: np.random.Generator) -> Draw:
    """A Gaussian, a cube, a mixture of two or a law with heavy tails; no atoms."""
    scales, centre = rng.uniform(0.5, 2, size=dim), 3 * rng.normal(size=dim)
    laws: list[Draw] = [
        lambda n, r: r.normal(size=(n, dim)) * scales,
        lambda n, r: r.uniform(-1.5, 1.5, size=(n, dim)) * scales,
        lambda n, r: r.normal(size=(n, dim)) * scales + centre * (r.uniform(size=(n, 1)) < 0.3),
        lambda n, r: r.standard_t(5, size=(n, dim)) * scales,
    ]
    return laws[int(rng.integers(len(laws)))]


def _cost(squared: bool):
    return costs.squared_euclidean if squared else costs.euclidean


def _root(a: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(a)
    return (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
