"""The networks of a fit: the user's or the preset's, built from the seed and tried before training."""

__all__ = ["Builder", "build_critics", "build_generator", "density_start", "in_data_units", "moment_start"]

import copy
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot import costs
from torchspot.errors import InvalidArgument
from torchspot.latents import AnchoredDraws, Latent, Normal
from torchspot.networks.generators import Shapes, Units
from torchspot.objectives.gaussian import AffinePlan, GaussianPlan, invertible_covariance
from torchspot.random import Key, generator
from torchspot.types import Cost, Samples

_TRIED, _LARGEST = 4096, 1024

Builder = Callable[[Shapes, torch.Generator], nn.Module]
"""Makes a network for these shapes with weights from this generator, so that every fit starts afresh."""


def build_generator(builder: Builder | nn.Module, shapes: Shapes, seed: int, replica: int = 0) -> nn.Module:
    """A generator that returns one sample of each marginal; a module is copied."""
    network = _build(builder, shapes, Key(seed, "generator weights", replica=replica))
    first = next((p for p in network.parameters() if p.requires_grad), None)
    if first is None:
        raise InvalidArgument("the generator has no parameters to train. Give a module with trainable weights.")
    made = _tried(network, torch.zeros(2, shapes.latent).to(first))
    came = [tuple(x.shape[1:]) for x in made] if isinstance(made, tuple) else made
    if came != list(shapes.marginals):
        raise InvalidArgument(
            f"the generator must return a tuple of samples with shapes {list(shapes.marginals)}, and returned {came}."
        )
    return network


def build_critics(builder: Builder | nn.Module, shapes: Shapes, seed: int, replica: int = 0) -> nn.Module:
    """Critics that return one value a row for each marginal; a module is copied."""
    critics = _build(builder, shapes, Key(seed, "critic weights", replica=replica))
    first = next((p for p in critics.parameters() if p.requires_grad), torch.zeros(()))
    samples = tuple(torch.zeros(3, *shape).to(first) for shape in shapes.marginals)
    made = _tried(critics, samples)
    came = [tuple(value.shape) for value in made] if isinstance(made, tuple) else made
    if came != [(3,)] * len(samples):
        raise InvalidArgument(
            "the critics must take the tuple of samples and return a tuple with one value a row for each marginal, "
            f"shapes {[(3,)] * len(samples)} for 3 rows, and returned {came}."
        )
    return critics


def moment_start(cost: Cost, latent: Latent, units: Units, probe: Samples, *, seed: int) -> AffinePlan | None:
    """The plan that is optimal for Gaussians with the moments of these samples, where that is a good start.

    None where marginals differ in dimension, have more than 1024 (roots of matrices would take minutes) or are no
    vectors, z is noise that is not Gaussian or too small, or the plan costs no less than the independent one: what is
    optimal for the squared distance may be the worst for another cost.
    """
    shapes = {tuple(x.shape[1:]) for x in probe}
    size = probe[0][0].numel()
    known = isinstance(latent, Normal | AnchoredDraws)
    if len(shapes) > 1 or probe[0].ndim != 2 or not known or not size <= min(latent.dim, _LARGEST):
        return None
    standard = [u.double().cpu() for u in units.from_data(probe)]
    pairs = costs.pairs_of(cost, len(standard))
    plan = AffinePlan.between(standard, None if pairs is None else pairs.weights)
    z = torch.randn(len(standard), _TRIED, size, generator=generator(Key(seed, "start")), dtype=torch.float64)

    def price(zs: Samples) -> float:
        us = tuple(u.to(units.scale) for u in plan(zs))
        return float(cost(*units.to_data(us)).detach().mean())

    return plan if price((z[0],) * len(standard)) < price(tuple(z)) else None


def density_start(cost: Cost, units: Units, probe: Samples, *, epsilon: float, seed: int) -> GaussianPlan:
    """A plan of Gaussians with the moments of these samples, in standardised units, with a low E c + ε E log p.

    The better of two: independent marginals, and what is optimal for the squared distance between two marginals of
    equal dimension.
    """
    standard = [u.flatten(1).double().cpu() for u in units.from_data(probe)]
    covariances = [invertible_covariance(u) for u in standard]
    plans = [GaussianPlan.independent(covariances)]
    if len(covariances) == 2 and covariances[0].shape == covariances[1].shape and len(covariances[0]) <= _LARGEST:
        a, b = covariances
        plans.append(GaussianPlan.entropic(a, b, epsilon / float(units.scale) ** 2))
    total = sum(map(len, covariances))
    z = torch.randn(_TRIED, total, generator=generator(Key(seed, "start")), dtype=torch.float64)

    def price(plan: GaussianPlan) -> float:
        return float(cost(*in_data_units(plan, z, units)).detach().mean()) - epsilon * plan.entropy

    return min(plans, key=price)


def in_data_units(plan: GaussianPlan, z: Float[Tensor, "batch total"], units: Units) -> Samples:
    """Tuples of a plan of standardised samples, as the cost sees them."""
    us = zip(plan.sample(z, [mean.numel() for mean in units.means]), units.means, strict=True)
    return units.to_data(tuple(u.reshape(-1, *mean.shape).to(units.scale) for u, mean in us))


def _build(builder: Builder | nn.Module, shapes: Shapes, key: Key) -> nn.Module:
    return copy.deepcopy(builder) if isinstance(builder, nn.Module) else builder(shapes, generator(key))


def _tried(module: nn.Module, argument: Any) -> tuple[Tensor, ...] | str:
    """What a copy of the module returns, or in words what came instead of a tuple."""
    try:
        with torch.no_grad():
            made = copy.deepcopy(module)(argument)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        return f"an error ({error})"
    return made if isinstance(made, tuple) else f"a {type(made).__name__}"
