"""SPOT's game, eq:finalvariant: the transport cost of G, and critics that hold its marginals to the data."""

__all__ = [
    "SLACK",
    "MarginalWeights",
    "Objective",
    "Transport",
    "marginal_weights",
    "steepness",
    "unpaired_weights",
]

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot.costs import known_lipschitz
from torchspot.errors import InvalidArgument
from torchspot.exact import matched
from torchspot.networks.augmentation import Augmentation
from torchspot.networks.generators import InDataUnits
from torchspot.objectives.adversarial import Adversarial, Wasserstein
from torchspot.types import Cost, Samples, Values

_MATCHED, _PAIRED, _FEW, _UNPAIRED = 1024, 4096, 8, 2.0
SLACK, MAP_SLACK, CONDITIONAL_SLACK = 3.0, 2.0, 5.0
"""η_i over L_i: of plans that draw noise, of maps from real samples, and of such with noise."""


class Objective(Protocol):
    """A game between a generator and critics: two losses, one a player, and what is measured on the way."""

    names: ClassVar[tuple[str, ...]]
    """Of the numbers that `judged` gives; "cost" and "objective" first."""

    @property
    def generator(self) -> InDataUnits: ...

    @property
    def critics(self) -> nn.Module: ...

    @property
    def cost(self) -> Cost: ...

    @property
    def eta(self) -> Float[Tensor, " marginals"]: ...

    def critic_loss(self, batch: tuple[Tensor, ...]) -> Float[Tensor, ""]: ...

    def generator_loss(self, batch: tuple[Tensor, ...]) -> Float[Tensor, ""]: ...

    def judged(self, generator: InDataUnits, batch: tuple[Tensor, ...], real: Samples) -> tuple[Samples, Tensor]:
        """Standardised samples of this generator for a batch of the generator's player, and the named numbers."""


@dataclass(frozen=True)
class Transport:
    """min_G max_λ  E c(G(z)) + Σ_i η_i (E λ_i(G_i(z)) − E λ_i(x_i)), the λ_i 1-Lipschitz.

    That is with `Wasserstein()` critics; others put another distance of G_i(z) from the data in the place of W1. Two
    losses, one a player: neither needs the other's sign. The cost sees data units; the critics see standardised
    samples u = (x − mean) / s, and s λ(u) is 1-Lipschitz in data units if λ is in u.
    """

    generator: InDataUnits
    critics: nn.Module
    cost: Cost
    eta: Float[Tensor, " marginals"]
    held: tuple[int, ...]
    """The marginals that critics hold to the data; the others are the data."""
    zoom: tuple[float, ...] = ()
    """r_k: λ_k(u) = r_k net_k(u / r_k), as Lipschitz as the network, for marginals much narrower than others."""

    adversarial: Adversarial = field(default_factory=Wasserstein)
    """What critics are asked."""
    augmentation: Augmentation | None = None
    """Through which critics see pictures; batches then end with its numbers."""

    names: ClassVar[tuple[str, ...]] = ("cost", "objective")

    def critic_loss(self, batch: tuple[Tensor, ...]) -> Float[Tensor, ""]:
        """Σ_i (mean λ_i(x_i) − mean λ_i(G_i(z))), for batch = (z, x_i, …), i held. η and s only scale it: left out."""
        (z, *xs), numbers = self._parted(batch)
        with torch.no_grad():
            fake = self._held(self.generator.standardised(z))
        real = self._zoomed(self.generator.units.from_data(tuple(xs), self.held))
        both = tuple(torch.cat(pair) for pair in zip(real, fake, strict=True))
        judged = torch.stack(self._judged(both, None if numbers is None else torch.cat((numbers, numbers.flip(0)))))
        on_real, on_fake = judged.view(len(both), 2, -1).unbind(1)  # each (marginals, batch)
        return self.adversarial.critic_loss(on_real, on_fake).sum()

    def generator_loss(self, batch: tuple[Tensor, ...]) -> Float[Tensor, ""]:
        """(mean c(G(z)) + Σ_i η_i mean λ_i(G_i(z))) / unit, for batch = (z,)."""
        (z, *_), numbers = self._parted(batch)
        return self.price(self.generator.standardised(z), numbers) / self.unit

    @property
    def unit(self) -> Float[Tensor, ""]:
        """Σ_i η_i s: over this, losses are near 1 in any units of the data, and Adam's ε is small beside them."""
        return self.eta.sum() * self._pull_unit

    def price(self, us: Samples, numbers: Tensor | None = None) -> Float[Tensor, ""]:
        """What the generator pays for these standardised samples: mean c + Σ_i η_i mean λ_i."""
        pull = self.adversarial.pull(torch.stack(self._judged(self._held(us), numbers)))  # (marginals held,)
        return self._costs(self.generator, us).mean() + self._weighted(pull)

    def _parted(self, batch: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """What was drawn, and the numbers of the augmentation, if there is one."""
        return (batch, None) if self.augmentation is None else (batch[:-1], batch[-1])

    def _judged(self, us: Samples, numbers: Tensor | None) -> tuple[Tensor, ...]:
        """The critics' values of samples, seen through the augmentation where there is one."""
        if self.augmentation is None or numbers is None:
            return self.critics(us)
        return self.critics(tuple(self.augmentation(u, numbers) for u in us))

    def _costs(self, generator: InDataUnits, us: Samples) -> Values:
        """c of standardised samples, never in a lower precision than theirs in data units."""
        with torch.autocast(us[0].device.type, enabled=False):
            return self.cost(*generator.units.to_data(us))

    @property
    def _pull_unit(self) -> Float[Tensor, ""]:
        scale = self.generator.units.scale
        return torch.ones_like(scale) if self.adversarial.scale_free else scale

    def judged(self, generator: InDataUnits, batch: tuple[Tensor, ...], real: Samples) -> tuple[Samples, Tensor]:
        """Standardised samples of this generator; its cost and the objective J."""
        us = generator.standardised(batch[0])
        cost = self._costs(generator, us).double().mean()
        return us, torch.stack((cost, cost + self.gap(us, real)))

    def gap(self, fake: Samples, real: Samples) -> Float[Tensor, ""]:
        """Σ_i η_i (mean λ_i(G_i(z)) − mean λ_i(x_i)), of standardised samples: what critics add to the objective J."""
        values = zip(self.critics(self._held(real)), self.critics(self._held(fake)), strict=True)
        return self._weighted(torch.cat([self.adversarial.apart(a[None], b[None]) for a, b in values]))

    def _weighted(self, means: Float[Tensor, " held"]) -> Float[Tensor, ""]:
        held = [self.eta[k] for k in self.held]
        wide = self.zoom if self.zoom and not self.adversarial.scale_free else (1.0,) * len(held)
        eta = torch.stack([e * r for e, r in zip(held, wide, strict=True)])
        return (means * eta).sum() * self._pull_unit

    def _held(self, us: Samples) -> Samples:
        return self._zoomed(tuple(us[k] for k in self.held))

    def _zoomed(self, us: Samples) -> Samples:
        """Samples of the marginals that are held, as their critics see them."""
        return tuple(u / r for u, r in zip(us, self.zoom, strict=True)) if self.zoom else us


@dataclass(frozen=True)
class MarginalWeights:
    """How much the marginals count against the cost, and why."""

    eta: tuple[float, ...]
    lipschitz: tuple[float, ...] | None
    """L_i, the cost's Lipschitz constant in x_i; None where η was given."""
    source: str
    """Where L came from: "known", "estimated" or "given"."""
    slack: float = SLACK
    """η_i over L_i, for those who want L where η was given."""

    def only(self, held: tuple[int, ...]) -> "MarginalWeights":
        """The same with 0 for marginals that are exact without it."""
        return replace(self, eta=tuple(eta if k in held else 0.0 for k, eta in enumerate(self.eta)))


def marginal_weights(cost: Cost, xs: Samples, plan: Samples | None = None, *, slack: float = SLACK) -> MarginalWeights:
    """η_i = slack · L_i: the penalty is exact for η_i > L_i, and critics that find only a part of W1 need some slack.

    L_i is what the cost states, else the 99 % quantile of ‖∇_i c‖ over 1024 points of each marginal (512 for more than
    two), matched to tuples of least cost. In more than 8 dimensions (of all marginals but one) a few points lie far
    from each other, and matched tuples are too far apart, up to three times in 64. There, if a plan is given that may
    be near the optimal one, the quantile over its tuples counts, but η never falls below the other L.
    """
    known = [known_lipschitz(cost, tuple(x.shape[1:]), len(xs)) for x in xs]
    if all(value is not None for value in known):
        lipschitz, source = tuple(float(value) for value in known if value is not None), "known"
    else:
        lipschitz, source = steepness(cost, _matched(cost, xs), 0.99), "estimated"
        if plan is not None and max(x[0].numel() for x in xs) * (len(xs) - 1) > _FEW:
            beside = steepness(cost, tuple(x[:_PAIRED] for x in plan), 0.99)
            lipschitz = tuple(min(a, max(b, a / slack)) for a, b in zip(lipschitz, beside, strict=True))
    if not all(math.isfinite(value) and value > 0 for value in lipschitz):
        raise InvalidArgument(
            f"the cost's gradient on the data gives no Lipschitz constant (it came out as {lipschitz}). "
            "Give the weights of the marginals yourself: SPOT(marginal_weight=…)."
        )
    return MarginalWeights(tuple(slack * value for value in lipschitz), lipschitz, source, slack)


def unpaired_weights(cost: Cost, xs: Samples) -> MarginalWeights:
    """η = twice the mean of c over unpaired samples, for critics whose pull is a pure number.

    Less makes better pairs of worse pictures: of digits that cost 173 unpaired, pairs cost 101 with η = the mean, and
    with a third of it 76, at twice the Fréchet distance from the data.
    """
    rows = min(_PAIRED, *(len(x) for x in xs))
    mean = float(cost(*(x[:rows] for x in xs)).detach().double().mean())
    if not (math.isfinite(mean) and mean > 0):
        raise InvalidArgument(
            f"the mean cost of unpaired samples came out as {mean}. Give the weights of the marginals yourself: "
            "SPOT(marginal_weight=…)."
        )
    return MarginalWeights((_UNPAIRED * mean,) * len(xs), None, "twice the mean cost of unpaired samples")


def _matched(cost: Cost, xs: Samples) -> Samples:
    size = min(_MATCHED if len(xs) == 2 else _MATCHED // 2, *(len(x) for x in xs))
    return matched(cost, tuple(x[:size].detach() for x in xs))


def steepness(cost: Cost, plan: Samples, quantile: float) -> tuple[float, ...]:
    """This quantile of ‖∇_i c‖ over the tuples of a plan, for each marginal."""
    points = [x.clone().requires_grad_() for x in plan]
    gradients = torch.autograd.grad(cost(*points).sum(), points, allow_unused=True, materialize_grads=True)
    return tuple(float(g.flatten(1).norm(dim=1).double().quantile(quantile)) for g in gradients)
