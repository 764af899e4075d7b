"""What critics are asked: how far two laws are apart (Wasserstein), or which of them a sample is from (logistic)."""

__all__ = ["Adversarial", "Logistic", "Wasserstein"]

import math
from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from torchspot.errors import InvalidArgument

Judged = Float[Tensor, "marginals batch"]
"""λ_i of samples of each marginal: low where they look like data."""
EachMarginal = Float[Tensor, " marginals"]


class Adversarial(Protocol):
    """The two losses that critics λ_i and a generator play with, marginal by marginal."""

    @property
    def scale_free(self) -> bool:
        """Whether the pull is a pure number; if not, it is in units of the standardised data."""

    def critic_loss(self, real: Judged, fake: Judged) -> EachMarginal:
        """What critics minimise."""

    def pull(self, fake: Judged) -> EachMarginal:
        """What the generator pays."""

    def apart(self, real: Judged, fake: Judged) -> EachMarginal:
        """How far the laws are apart, as far as these critics can tell: 0 where they are equal."""


@dataclass(frozen=True)
class Wasserstein:
    """E λ(data) − E λ(G): with 1-Lipschitz critics the distance W1, the penalty that is exact (eq:finalvariant)."""

    @property
    def scale_free(self) -> bool:
        return False

    def critic_loss(self, real: Judged, fake: Judged) -> EachMarginal:
        return (real - fake).mean(1)

    def pull(self, fake: Judged) -> EachMarginal:
        return fake.mean(1)

    def apart(self, real: Judged, fake: Judged) -> EachMarginal:
        return fake.mean(1) - real.mean(1)


@dataclass(frozen=True)
class Logistic:
    """E log(1 + e^{κλ(data)}) + E log(1 + e^{−κλ(G)}): critics tell samples apart; G pays E log(1 + e^{κλ(G)}).

    At its best this is 2 log 2 − 2 JS, JS the Jensen–Shannon divergence of data and G, for critics of any steepness;
    with κ-Lipschitz ones it is near a Wasserstein distance where samples are closer than 1/κ. The penalty is not
    exact: near the data it is flat, so that G trades some of the marginals for a lower cost. In return it sees
    differences in texture, which W1 between pictures hardly does.

    Reference: "Generative Adversarial Nets", I. Goodfellow et al., 2014.
    """

    sharpness: float = 1.0
    """κ."""

    def __post_init__(self) -> None:
        if not self.sharpness > 0:
            raise InvalidArgument(f"Logistic needs a sharpness above 0, and got {self.sharpness}.")

    @property
    def scale_free(self) -> bool:
        return True

    def critic_loss(self, real: Judged, fake: Judged) -> EachMarginal:
        return (softplus(self.sharpness * real) + softplus(-self.sharpness * fake)).mean(1)

    def pull(self, fake: Judged) -> EachMarginal:
        return softplus(self.sharpness * fake).mean(1)

    def apart(self, real: Judged, fake: Judged) -> EachMarginal:
        """2 log 2 − the critics' loss, a lower bound of 2 JS."""
        return 2 * math.log(2) - softplus(self.sharpness * real).mean(1) - softplus(-self.sharpness * fake).mean(1)
