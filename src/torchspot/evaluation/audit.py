"""Does a plan have the marginals it should? Each discrepancy stands beside what two samples of the data show."""

__all__ = ["Audit", "MarginalAudit", "audit"]

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from torchspot.data.arrays import HeldOut, Rows
from torchspot.data.sources import as_sampler
from torchspot.discrepancies import energy_distance, mean_error, noise_floor, sliced_w2, spread_error
from torchspot.errors import InvalidArgument
from torchspot.plans import PooledPlan, PushforwardPlan
from torchspot.random import Key, generator
from torchspot.types import Estimate, Sampler

_MOST = 20_000
_ENERGY_MOST = 2048


@dataclass(frozen=True)
class MarginalAudit:
    """How far one marginal of a plan is from its data, on rows held out where they are known. In data units."""

    rows: int
    held_out: bool
    """Whether the rows are those that training did not see."""
    sliced_w2: float
    noise_floor: float
    """Sliced W2 between two samples of the data, of the size that was compared."""
    energy_distance: float
    mean_error: float
    """Distance between the means."""
    spread_error: float
    """Largest relative error of a standard deviation."""

    @property
    def ratio(self) -> float:
        """Sliced W2 over its noise floor: about 1 for a perfect marginal."""
        return self.sliced_w2 / self.noise_floor if self.noise_floor > 0 else float("inf")


@dataclass(frozen=True)
class Audit:
    """The expected cost of a plan, and an audit of each marginal."""

    cost: Estimate
    marginals: tuple[MarginalAudit, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        marginals = [asdict(marginal) | {"ratio": marginal.ratio} for marginal in self.marginals]
        return {"cost": asdict(self.cost), "marginals": marginals}


def audit(
    plan: PushforwardPlan | PooledPlan, *sources: Any, weights: Sequence[Any] | None = None, seed: int = 0
) -> Audit:
    """Compares each marginal of the plan with data.

    The rows that `fit` held out are used where the source is the one it saw; all rows of another source; fresh draws
    of a stream.
    """
    if len(sources) != len(plan.shapes):
        raise InvalidArgument(f"the plan has {len(plan.shapes)} marginals, and {len(sources)} data sets were given.")
    weights = [None] * len(sources) if weights is None else list(weights)
    known = plan.held_out or (None,) * len(sources)
    marginals = []
    for k, (source, w, rows) in enumerate(zip(sources, weights, known, strict=True)):
        sampler = as_sampler(source, weights=w, name=f"data set {k + 1}")
        if sampler.shape != plan.shapes[k]:
            raise InvalidArgument(
                f"data set {k + 1} has samples of shape {sampler.shape}, and the plan's marginal has {plan.shapes[k]}."
            )
        data, held_out = _data(sampler, rows, Key(seed, f"audit {k}"))
        generated = plan.sample(len(data) // 2, seed)[k]
        marginals.append(_judge(generated.double().cpu().flatten(1), data.flatten(1), held_out, seed))
    return Audit(plan.expected_cost(seed=seed), tuple(marginals))


def _data(sampler: Sampler, rows: HeldOut | None, key: Key) -> tuple[Tensor, bool]:
    """Data to compare with, in random order, and whether training never saw it."""
    if not isinstance(sampler, Rows):
        return sampler.draw(_MOST, generator(key, sampler.device)).double().cpu(), True
    same = rows is not None and len(rows.rows) > 0 and rows.fingerprint == sampler.fingerprint()
    kept = rows.rows if same and rows is not None else torch.arange(0).numpy()
    return sampler.judges(kept, _MOST, generator(key)), same


def _judge(generated: Tensor, data: Tensor, held_out: bool, seed: int) -> MarginalAudit:
    half = len(generated)
    few = min(half, _ENERGY_MOST)
    return MarginalAudit(
        rows=len(data),
        held_out=held_out,
        sliced_w2=sliced_w2(generated, data[:half], seed=seed),
        noise_floor=noise_floor(data, seed=seed),
        energy_distance=energy_distance(generated[:few], data[:few]),
        mean_error=mean_error(generated, data),
        spread_error=spread_error(generated, data),
    )
