"""How far two samples are apart: sliced Wasserstein, energy distance, moments."""

__all__ = [
    "energy_distance",
    "mean_error",
    "noise_floor",
    "random_directions",
    "sliced_w2",
    "spread_error",
    "w2_along",
]

import torch
from jaxtyping import Float
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
    apart = (x @ directions).sort(dim=0).values - (y @ directions).sort(dim=0).values  # (batch, directions)
    return apart.double().square().mean().sqrt()


def energy_distance(x: Points, y: Points) -> float:
    """2 E‖x − y‖ − E‖x − x'‖ − E‖y − y'‖, the U-statistic: 0 on average for equal laws.

    Reference: "Energy statistics: A class of statistics based on distances", G. J. Székely and M. L. Rizzo, 2013.
    """
    x, y = x.double(), y.double()
    within = sum(torch.cdist(a, a).sum() / (len(a) * (len(a) - 1)) for a in (x, y))
    return float(2 * torch.cdist(x, y).mean() - within)


def mean_error(x: Points, y: Points) -> float:
    """‖mean of x − mean of y‖."""
    return float((x.double().mean(0) - y.double().mean(0)).norm())


def spread_error(x: Points, y: Points) -> float:
    """Largest relative error of a coordinate's standard deviation, x judged by y.

    Coordinates that hardly vary are judged by a thousandth of the others' deviation.
    """
    truth = y.double().std(0)
    typical = float(truth.square().mean().sqrt())
    return float(((x.double().std(0) - truth).abs() / truth.clamp(min=1e-3 * typical + 1e-300)).max())


def noise_floor(x: Points, *, repeats: int = 8, seed: int = 0) -> float:
    """Mean sliced W2 between two random halves of the same sample: what equal laws show at half its size."""
    rng = generator(Key(seed, "halves"))
    half = len(x) // 2
    values = []
    for k in range(repeats):
        order = torch.randperm(len(x), generator=rng).to(x.device)
        values.append(sliced_w2(x[order[:half]], x[order[half : 2 * half]], seed=k))
    return sum(values) / repeats
