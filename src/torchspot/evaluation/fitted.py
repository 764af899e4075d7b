"""Potentials that are networks: trained by the one loop, then made to hold their inequality exactly."""

__all__ = ["learned_cones", "orthogonal_network", "strongly_convex_network"]

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.data.arrays import Rows
from torchspot.networks.cones import Cones
from torchspot.networks.convex import InverseMap, StronglyConvex
from torchspot.networks.critics import Critics
from torchspot.networks.generators import Shapes
from torchspot.networks.lipschitz import Orthogonal
from torchspot.objectives.gaussian import invertible_covariance, optimal_map
from torchspot.random import Key, generator
from torchspot.training.engine import choose_engine
from torchspot.training.loop import Training, train
from torchspot.training.optimizers import Adam
from torchspot.training.players import Draw, Loss, Player, Stream, nothing
from torchspot.training.schedules import Cosine
from torchspot.types import Samples, Values

Points = Float[Tensor, "batch dim"]

_BATCH, _STEPS, _BETAS = 512, 1500, (0.9, 0.99)
_WIDTH, _DEPTH = 128, 2
_CONES = 128
_CONVEX_WIDTH = 64
_CHUNK = 1 << 14
_REFINED = 20


def learned_cones(xs: Samples, *, p: float, seed: int = 0) -> Callable[[Tensor], Values]:
    """A minimum of cones, 1-Lipschitz for the p-norm, that is large on the first sample and small on the second."""
    units = _Units.of(xs)
    x, y = (units(part) for part in xs)
    cones = Cones(y, count=_CONES, p=p, rng=generator(Key(seed, "cones")))

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        return cones(batch[1]).mean() - cones(batch[0]).mean()

    (best,) = _trained((cones,), loss, (x, y), rate=2e-2, seed=seed)
    return units.undone(best.double().cpu())


def orthogonal_network(xs: Samples, *, seed: int = 0) -> Callable[[Tensor], Values]:
    """A network, 1-Lipschitz for the Euclidean distance, that is large on the first sample and small on the second.

    It is divided by the product of its layers' norms in float64.
    """
    units = _Units.of(xs)
    x, y = (units(part) for part in xs)
    rng = generator(Key(seed, "potential"))
    network = Critics(Shapes(0, ((x.shape[1],),)), width=_WIDTH, depth=_DEPTH, control=Orthogonal(), rng=rng)

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        (on_x,), (on_y,) = (network((part,)) for part in batch)
        return on_y.mean() - on_x.mean()

    (best,) = _trained((network,), loss, (x, y), rate=5e-3, seed=seed, after_step=network.after_step)
    potential = best.double().cpu()
    steepness = math.prod(max(1.0, norm) for norm in potential.operator_norms())
    return units.undone(lambda points: potential((points,))[0] / steepness)


def strongly_convex_network(
    xs: Samples, *, seed: int = 0
) -> tuple[Callable[[Points], Values], Callable[[Points], Values]]:
    """φ, and an upper bound of φ*, that make E φ(x) + E φ*(y) small; for standardised samples.

    φ* is bounded by `StronglyConvex.conjugate_bound` at points x̂ that a second network proposes. Both only ever
    tighten the bound, so they are trained together, with one loss; then x̂ is improved for each y.
    """
    x, y = xs
    rng = generator(Key(seed, "convex potential"))
    start = _gaussian_map(x, y)
    phi = StronglyConvex(start, width=_CONVEX_WIDTH, rng=rng)
    inverse = InverseMap(torch.linalg.inv(start), width=_CONVEX_WIDTH, rng=rng)

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        return phi(batch[0])[0].mean() + phi.conjugate_bound(batch[1], inverse(batch[1])).mean()

    best, propose = (module.double().cpu() for module in _trained((phi, inverse), loss, (x, y), rate=1e-2, seed=seed))

    @torch.no_grad()
    def values(points: Points) -> Values:
        return torch.cat([best(part)[0] for part in torch.split(points, _CHUNK)])

    def conjugate(points: Points) -> Values:
        return torch.cat([_least(best, part, propose(part).detach()) for part in torch.split(points, _CHUNK)])

    return values, conjugate


def _least(phi: Any, y: Points, at: Points) -> Values:
    """The bound of φ*(y), lowered by some steps of gradient descent (Adam) on where it is taken."""
    at = at.clone().requires_grad_()
    optimizer = torch.optim.Adam([at], lr=0.03)
    least = torch.full((len(y),), math.inf, dtype=y.dtype)
    for _ in range(_REFINED):
        bound = phi.conjugate_bound(y, at)
        least = torch.minimum(least, bound.detach())
        (at.grad,) = torch.autograd.grad(bound.sum(), at)
        optimizer.step()
    return least


@dataclass(frozen=True)
class _Units:
    """x ↦ (x − centre) / s, the same for both samples."""

    centre: Tensor
    scale: float

    @classmethod
    def of(cls, xs: Samples) -> "_Units":
        x, y = (x.double().flatten(1) for x in xs)
        centre = (x.mean(0) + y.mean(0)) / 2
        square = (float((x - centre).square().mean()) + float((y - centre).square().mean())) / 2
        return cls(centre, math.sqrt(square) or 1.0)

    def __call__(self, x: Tensor) -> Points:
        return (x.double().flatten(1) - self.centre) / self.scale

    def undone(self, inside: Callable[[Points], Values]) -> Callable[[Tensor], Values]:
        """The function in data units, as steep as before."""

        @torch.no_grad()
        def values(points: Tensor) -> Values:
            return self.scale * torch.cat([inside(part) for part in torch.split(self(points), _CHUNK)])

        return values


def _trained(
    modules: tuple[Any, ...],
    loss: Loss,
    data: Samples,
    *,
    rate: float,
    seed: int,
    after_step: Callable[[], None] = nothing,
) -> tuple[Any, ...]:
    """The averaged modules after the steps, of one player that minimises the loss of (x, y)."""
    engine = choose_engine()
    modules = tuple(module.to(engine.device) for module in modules)
    rows = [Rows(part.to(engine.device, engine.dtype)) for part in data]
    streams = [Stream(part, _BATCH, engine.dtype) for part in rows]
    player = Player(
        name="potential",
        modules=modules,
        optimizer=Adam(rate, _BETAS, Cosine()),
        draw=Draw(Key(seed, "potential data"), *streams, device=engine.device),
        loss=loss,
        after_step=after_step,
        averaging=0.99,
    )
    training = Training([player], _STEPS)
    train(training, engine=engine, log_every=_STEPS)
    return training.averaged("potential")


def _gaussian_map(x: Points, y: Points) -> Float[Tensor, "dim dim"]:
    """Optimal between Gaussians of the same covariances; eigenvalues kept within [.01, 100]."""
    values, vectors = torch.linalg.eigh(optimal_map(invertible_covariance(x), invertible_covariance(y)))
    return (vectors * values.clamp(0.01, 100)) @ vectors.mT
