"""SPOT's game with an entropic term: a generator that is a flow, so that its plan has a density (section 4)."""

__all__ = ["SLACK", "Entropic", "entropic_weights"]

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot.costs import known_lipschitz
from torchspot.errors import InvalidArgument
from torchspot.networks.generators import InDataUnits
from torchspot.objectives.gaussian import invertible_covariance
from torchspot.objectives.transport import MarginalWeights, Transport, steepness
from torchspot.types import Cost, Samples, Values

SLACK = 1.5
"""η_i over the slope it must exceed."""
_QUANTILE, _SCORED = 0.999, 16_384


@dataclass(frozen=True)
class Entropic:
    """min_G max_λ  E c(G(z)) + ε E log p(G(z)) + Σ_i η_i (E λ_i(G_i(z)) − E λ_i(x_i)), the λ_i 1-Lipschitz.

    E log p is minus the entropy of the plan, so ε > 0 makes the plan smoother. Its gradient is that of the whole path:
    the paper's ∂H/∂w leaves out how z(t) itself moves with the weights.
    """

    transport: Transport
    """The game without ε; its generator is a flow."""
    epsilon: float

    names: ClassVar[tuple[str, ...]] = ("cost", "objective", "entropy")

    @property
    def generator(self) -> InDataUnits:
        return self.transport.generator

    @property
    def critics(self) -> nn.Module:
        return self.transport.critics

    @property
    def cost(self) -> Cost:
        return self.transport.cost

    @property
    def eta(self) -> Float[Tensor, " marginals"]:
        return self.transport.eta

    def critic_loss(self, batch: tuple[Tensor, ...]) -> Float[Tensor, ""]:
        """As without ε."""
        return self.transport.critic_loss(batch)

    def generator_loss(self, batch: tuple[Tensor, ...]) -> Float[Tensor, ""]:
        """(mean c(G(z)) + ε mean log p(G(z)) + Σ_i η_i mean λ_i(G_i(z))) / unit, batch = (z,) or (z, directions)."""
        us, log_p = _followed(self.generator, batch)
        return (self.transport.price(us) + self.epsilon * log_p.mean()) / self.transport.unit

    def judged(self, generator: InDataUnits, batch: tuple[Tensor, ...], real: Samples) -> tuple[Samples, Tensor]:
        """Standardised samples of this generator; its cost, the objective J, and the plan's entropy in data units."""
        us, log_p = _followed(generator, batch)
        cost = self.cost(*generator.units.to_data(us)).double().mean()
        entropy = -generator.units.log_density(log_p.double()).mean()
        objective = cost - self.epsilon * entropy + self.transport.gap(us, real)
        return us, torch.stack((cost, objective, entropy))


def entropic_weights(cost: Cost, xs: Samples, *, coupled: Samples, epsilon: float) -> MarginalWeights:
    """η_i = 1.5 (q‖∇_i c‖ + ε q‖Σ_i⁻¹(x_i − m_i)‖), q the 99.9 % quantile.

    The optimal potentials have the slope E[∇_i c | x_i] + ε ∇ log μ_i(x_i), which grows without bound in the tails of
    the data: η covers all but the last of it, as far as a Gaussian tells. Where the cost states its slope, that counts.

    Args:
        cost: the transport cost.
        xs: samples of the data.
        coupled: tuples of a plan that may be near the optimal one.
        epsilon: ε.
    """
    scores = (float(_score(x).norm(dim=1).quantile(_QUANTILE)) for x in xs)
    known = [known_lipschitz(cost, tuple(x.shape[1:]), len(xs)) for x in xs]
    measured = steepness(cost, coupled, _QUANTILE)
    steep = (b if a is None else a for a, b in zip(known, measured, strict=True))
    lipschitz = tuple(a + epsilon * b for a, b in zip(steep, scores, strict=True))
    if not all(math.isfinite(value) and value > 0 for value in lipschitz):
        raise InvalidArgument(
            f"the cost's gradient on the data gives no weights of the marginals (slopes came out as {lipschitz}). "
            "Give them yourself: EntropicSPOT(marginal_weight=…)."
        )
    return MarginalWeights(tuple(SLACK * value for value in lipschitz), lipschitz, "estimated", SLACK)


def _followed(generator: InDataUnits, batch: tuple[Tensor, ...]) -> tuple[Samples, Values]:
    z, *directions = batch
    flow: Any = generator.generator
    return flow.with_log_density(z, *(each.movedim(1, 0) for each in directions))


def _score(x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch dim"]:
    """Σ⁻¹(x − m)."""
    points = x[:_SCORED].flatten(1).double().cpu()
    return torch.linalg.solve(invertible_covariance(points), (points - points.mean(0)).mT).mT
