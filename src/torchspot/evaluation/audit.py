"""Does a plan have the marginals it should? Each discrepancy stands beside what two samples of the data show."""

__all__ = ["Audit", "MarginalAudit", "audit", "audit_of", "finite"]

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, permutations
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchspot import costs
from torchspot.discrepancies import (
    covariance_error,
    energy_distance,
    energy_of_halves,
    halves,
    mean_error,
    random_directions,
    w2_of_columns,
)
from torchspot.evaluation.data import Opened, opened
from torchspot.exact import matched
from torchspot.networks.convolutional import are_pictures
from torchspot.random import Key
from torchspot.types import Estimate, Plan, Reading

Points = Float[Tensor, "batch dim"]

_MOST, _PICTURES_MOST, _ENERGY_MOST, _W1_MOST = 20_000, 2048, 2048, 512
_REPEATS, _ENERGY_REPEATS, _PROJECTIONS, _WHOLE = 20, 40, 64, 256
_CLEAR = 5.0
"""So many deviations above its floor a discrepancy is no accident."""
_ENOUGH = 2000
"""Rows with fewer of which a wrong marginal may pass."""
_CLOSE = 0.05
"""Off by at most so much of its spread a marginal is called close."""


@dataclass(frozen=True)
class MarginalAudit:
    """How far one marginal of a plan is from its data, on rows held out where they are known. In data units.

    Each reading stands beside its noise floor: what two samples of the data themselves show, at the same size. The
    verdict rests on the energy distance and sliced W2.
    """

    rows: int
    held_out: bool
    """Whether the rows are those that training did not see."""
    energy_distance: Reading
    """2 E‖x − y‖ − E‖x − x'‖ − E‖y − y'‖ (U-statistic): 0 on average for equal laws."""
    sliced_w2: Reading
    """√ of the mean squared W2 along random directions."""
    mean_error: Reading
    """Distance between the means."""
    covariance_error: Reading
    """‖Cov − Cov of the data‖ / ‖Cov of the data‖; over 256 dimensions, of 64 random directions."""
    w1_estimate: Reading
    """Ŵ(G, X) − ½Ŵ(G, G') − ½Ŵ(X, X') of small samples: an estimate, no bound. Ŵ(G, X) would reward collapse."""
    deviation: float
    """Root mean square deviation of a coordinate of the data."""
    spread_ratio: float
    """The same of the plan, over that of the data: below 1 the plan is too narrow."""

    @property
    def ratio(self) -> float:
        """Sliced W2 over its noise floor: about 1 for a perfect marginal."""
        return self.sliced_w2.value / self.sliced_w2.floor if self.sliced_w2.floor > 0 else math.inf

    @property
    def at_noise_floor(self) -> bool:
        """Whether neither energy distance nor sliced W2 tells the marginal from the data."""
        return max(self.energy_distance.excess, self.sliced_w2.excess) <= _CLEAR

    @property
    def off_by(self) -> float:
        """Sliced W2 with the noise taken off, over the deviation of the data."""
        apart = math.sqrt(max(0.0, self.sliced_w2.value**2 - self.sliced_w2.floor**2))
        return apart / self.deviation if self.deviation > 0 else math.inf if apart else 0.0

    @property
    def verdict(self) -> str:
        """In words."""
        if self.at_noise_floor:
            few = f" (but {self.rows} rows tell little)" if self.rows < _ENOUGH else ""
            return f"right: not to be told from the data beyond noise{few}"
        if self.off_by <= _CLOSE:
            return f"close: off by about {100 * self.off_by:.1f} % of the data's spread"
        if self.deviation == 0:
            return f"wrong: the data is a single point, and the plan is {self.mean_error.value:.3g} from it on average"
        return f"wrong: off by about {100 * self.off_by:.0f} % of the data's spread{self._how()}"

    def _how(self) -> str:
        said = []
        if abs(self.spread_ratio - 1) > 0.03 and self.covariance_error.excess > _CLEAR:
            said.append(f"its spread is {self.spread_ratio:.2f} of the data's")
        if self.mean_error.excess > _CLEAR:
            said.append(f"its mean is off by {self.mean_error.value:.3g}")
        return "".join(f"; {words}" for words in said)


@dataclass(frozen=True)
class Audit:
    """The expected cost of a plan, and an audit of each marginal."""

    cost: Estimate
    marginals: tuple[MarginalAudit, ...]

    @property
    def verdict(self) -> str:
        """Of all marginals, in words."""
        return "; ".join(f"marginal {k + 1} is {marginal.verdict}" for k, marginal in enumerate(self.marginals))

    def __str__(self) -> str:
        return f"expected cost {self.cost.value:.5g} ± {self.cost.monte_carlo_error:.2g} (Monte Carlo); {self.verdict}"

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and words, for JSON."""
        marginals = [
            asdict(marginal) | {"ratio": marginal.ratio, "off_by": marginal.off_by, "verdict": marginal.verdict}
            for marginal in self.marginals
        ]
        return finite({"cost": asdict(self.cost), "marginals": marginals})


def audit(plan: Plan, *sources: Any, weights: Sequence[Any] | None = None, seed: int = 0) -> Audit:
    """Compares each marginal of the plan with data.

    The rows that `fit` held out are used where the source is the one it saw; all rows of another source; fresh draws
    of a stream.
    """
    return audit_of(plan, opened(plan, sources, weights), seed)


def audit_of(plan: Plan, data: Sequence[Opened], seed: int) -> Audit:
    """The same of data that is open already."""
    marginals = []
    for k, one in enumerate(data):
        most = _PICTURES_MOST if are_pictures([one.sampler.shape]) else _MOST
        real, held_out = one.unseen(most, Key(seed, f"audit {k}"))
        generated = _made(plan, k, len(real) + _W1_MOST, seed).double().cpu().flatten(1)
        marginals.append(_judge(generated, real.flatten(1), held_out, seed))
    return Audit(plan.expected_cost(), tuple(marginals))


def _made(plan: Plan, k: int, n: int, seed: int) -> Tensor:
    """n samples of marginal k; without those that are data already, where a plan can tell."""
    return plan.made(k, n, seed) if hasattr(plan, "made") else plan.sample(n, seed)[k]


def finite(numbers: Any) -> Any:
    """The same with None for numbers that JSON does not have."""
    match numbers:
        case dict():
            return {name: finite(value) for name, value in numbers.items()}
        case list() | tuple():
            return [finite(value) for value in numbers]
        case float() if not math.isfinite(numbers):
            return None
    return numbers


def _judge(generated: Points, data: Points, held_out: bool, seed: int) -> MarginalAudit:
    """Compares as many generated samples as there are in half of the data."""
    half = len(data) // 2
    plan, few = generated[:half], min(half, _ENERGY_MOST)
    directions = random_directions(data.shape[1], _PROJECTIONS, seed).to(data)

    def reading(discrepancy: Callable[[Points, Points], float]) -> Reading:
        equal = [discrepancy(*pair) for pair in halves(data, _REPEATS, seed)]
        return Reading.beside(discrepancy(plan, data[:half]), equal)

    deviation = float(data.var(0).mean().sqrt())
    return MarginalAudit(
        rows=len(data),
        held_out=held_out,
        energy_distance=Reading.beside(
            energy_distance(plan[:few], data[:few]), energy_of_halves(data[: 2 * few], _ENERGY_REPEATS, seed)
        ),
        sliced_w2=_sliced(generated[: 2 * half] @ directions, data @ directions, seed),
        mean_error=reading(mean_error),
        covariance_error=reading(lambda x, y: covariance_error(*(_thin(part, directions) for part in (x, y)))),
        w1_estimate=_w1(generated, data),
        deviation=deviation,
        spread_ratio=float(plan.var(0).mean().sqrt()) / deviation if deviation > 0 else math.inf,
    )


def _sliced(generated: Points, data: Points, seed: int) -> Reading:
    """Of coordinates along directions. The noise is the larger of the data's and the plan's own.

    A few far samples rule W2 of heavy tails, and the data alone may not show how often the plan draws such.
    """
    floor, own = ([float(w2_of_columns(*pair)) for pair in halves(x, _REPEATS, seed)] for x in (data, generated))
    half = len(data) // 2
    seen = Reading.beside(float(w2_of_columns(generated[:half], data[:half])), floor)
    return replace(seen, spread=max(seen.spread, statistics.stdev(own)))


def _thin(x: Points, directions: Float[Tensor, "dim directions"]) -> Points:
    """In high dimension (pictures), the coordinates along random directions only."""
    return x if x.shape[1] <= _WHOLE else x @ directions


def _w1(generated: Points, data: Points) -> Reading:
    """The debiased estimate, and what it gives between samples of the data."""
    size = min(_W1_MOST, len(data) // 4, len(generated) // 2)
    g, g_other = generated[:size], generated[-size:]
    if size < 2:
        return Reading(math.nan, math.nan, math.nan)
    parts = torch.split(data[: 4 * size], size)
    between = {(i, j): _w1_plain(parts[i], parts[j]) for i, j in combinations(range(4), 2)}
    between |= {(j, i): value for (i, j), value in between.items()}
    equal = [between[i, j] - (between[i, k] + between[j, n]) / 2 for i, j, k, n in permutations(range(4)) if i < j]
    value = _w1_plain(g, parts[0]) - (_w1_plain(g, g_other) + between[0, 1]) / 2
    return Reading(value, 0.0, statistics.stdev(equal))  # 0 is their mean, by symmetry


def _w1_plain(x: Points, y: Points) -> float:
    """Ŵ(x, y) of samples of equal size, too large by what their number makes."""
    return statistics.fmean(costs.euclidean(*matched(costs.euclidean, (x, y))).tolist())
