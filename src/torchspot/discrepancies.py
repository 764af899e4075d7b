"""How far two samples are apart: sliced Wasserstein, energy distance, moments."""

__all__ = [
    "covariance",
    "covariance_error",
    "energy_distance",
    "energy_of_halves",
    "halves",
    "mean_error",
    "random_directions",
    "sliced_w2",
    "w2_along",
    "w2_of_columns",
]

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from torchspot.random import Key, generator

Points = Float[Tensor, "batch dim"]

_PROJECTIONS = 64


def sliced_w2(x: Points, y: Points, *, projections: int = _PROJECTIONS, seed: int = 0) -> float:
    """√ of the mean, over random directions θ, of W2²(⟨θ, x⟩, ⟨θ, y⟩), for samples of equal size.

    Reference: "Sliced and Radon Wasserstein Barycenters of Measures", N. Bonneel et al., 2015.
    """
    return float(w2_along(x, y, random_directions(x.shape[1], projections, seed).to(x)))


def random_directions(dim: int, count: int, seed: int = 0) -> Float[Tensor, "dim directions"]:
    """Unit vectors, uniform on the sphere."""
    directions = torch.randn(dim, count, generator=generator(Key(seed, "directions")), dtype=torch.float64)
    return directions / directions.norm(dim=0)


def w2_along(x: Points, y: Points, directions: Float[Tensor, "dim directions"]) -> Float[Tensor, ""]:
    """√ of the mean, over these directions θ, of W2²(⟨θ, x⟩, ⟨θ, y⟩), for samples of equal size."""
    return w2_of_columns(x @ directions, y @ directions)


def w2_of_columns(x: Points, y: Points) -> Float[Tensor, ""]:
    """√ of the mean, over the coordinates, of W2² between those of x and of y, for samples of equal size."""
    apart = x.sort(dim=0).values - y.sort(dim=0).values
    return apart.double().square().mean().sqrt()


def energy_distance(x: Points, y: Points) -> float:
    """2 E‖x − y‖ − E‖x − x'‖ − E‖y − y'‖, the U-statistic: 0 on average for equal laws.

    Reference: "Energy statistics: A class of statistics based on distances", G. J. Székely and M. L. Rizzo, 2013.
    """
    centre = y.double().mean(0)  # far from the origin distances would lose digits
    x, y = x.double() - centre, y.double() - centre
    within = sum(torch.cdist(a, a).sum() / (len(a) * (len(a) - 1)) for a in (x, y))
    return float(2 * torch.cdist(x, y).mean() - within)


def mean_error(x: Points, y: Points) -> float:
    """‖mean of x − mean of y‖."""
    return float((x.double().mean(0) - y.double().mean(0)).norm())


def covariance(x: Points) -> Float[Tensor, "dim dim"]:
    """Of the sample, divided by its size."""
    centred = x - x.mean(0)
    return centred.mT @ centred / len(x)


def covariance_error(x: Points, y: Points) -> float:
    """‖Cov x − Cov y‖ / ‖Cov y‖, Frobenius norms."""
    a, b = (covariance(part.double()) for part in (x, y))
    norm = float(b.norm())
    return float((a - b).norm()) / norm if norm > 0 else float(a.norm() > 0)


def halves(x: Points, repeats: int, seed: int = 0) -> Iterator[tuple[Points, Points]]:
    """The same sample, cut at random into two of half its size, so many times: what equal laws look like."""
    for first, second in _cuts(len(x), repeats, seed):
        yield x[first.to(x.device)], x[second.to(x.device)]


def energy_of_halves(x: Points, repeats: int, seed: int = 0) -> list[float]:
    """The energy distance between random halves of a sample, so many times; distances are computed once."""
    x = x.double() - x.double().mean(0)
    half = len(x) // 2
    distances = torch.cdist(x, x)
    values = []
    for cut in _cuts(len(x), repeats, seed):
        sides = torch.zeros(len(x), 2, dtype=x.dtype, device=x.device)
        for side, rows in enumerate(cut):
            sides[rows.to(x.device), side] = 1
        sums = sides.mT @ distances @ sides
        within = (sums[0, 0] + sums[1, 1]) / (half * (half - 1))
        values.append(float(2 * sums[0, 1] / half**2 - within))
    return values


def _cuts(count: int, repeats: int, seed: int) -> Iterator[tuple[Int[Tensor, " half"], Int[Tensor, " half"]]]:
    """Random halves of so many rows, by their numbers."""
    rng = generator(Key(seed, "halves"))
    for _ in range(repeats):
        first, second, *_ = torch.split(torch.randperm(count, generator=rng), count // 2)
        yield first, second
