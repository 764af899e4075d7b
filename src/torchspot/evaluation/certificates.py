"""How wrong can the number be? An interval for the optimal cost that holds however good or bad the plan is."""

__all__ = ["Certificate", "TooFewRows", "certify"]

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from torchspot import costs
from torchspot.errors import InvalidArgument
from torchspot.evaluation.audit import audit_of, finite
from torchspot.evaluation.blocks import Upper, coupled_blocks, rounded_blocks
from torchspot.evaluation.data import Opened, opened
from torchspot.evaluation.potentials import Potentials, fit_potentials
from torchspot.evaluation.samples import SampleBounds, exact_between, sample_bounds
from torchspot.exact import require_pot
from torchspot.random import Key
from torchspot.types import Cost, Estimate, Plan, Samples

_ROWS, _NUMBERS = 100_000, 1 << 27
"""At most so many rows of a data set, and so many numbers in them, are used."""
_FITTED, _FITTED_MOST = 0.4, 30_000
_CHOSEN, _CHOSEN_MOST = 0.1, 4096
_FEWEST = 20
_EXACT = 4096
"""Rows of each data set between which transport is computed exactly under any cost."""

Progress = Callable[[str, float], None]
"""What is being done, and how much of it is done, from 0 to 1."""


class TooFewRows(InvalidArgument):
    """There is too little data to say anything."""


@dataclass(frozen=True)
class Certificate:
    """An interval for the optimal cost, and beside it what it says about the plan. In the units of the cost."""

    lower: float
    """The optimal cost is at least this; −∞ where no lower bound is known."""
    upper: float
    """The optimal cost is at most this."""
    target: str
    """Whose optimal cost: of the "population" that the rows are a sample of, or of the "samples" themselves."""
    method: str
    """How the bounds were found, in words."""
    confidence: float
    """How often such an interval holds the truth (in the limit of many rows)."""
    plan_cost: Estimate
    """E c of the plan with its Monte-Carlo error, which is not an error of the distance."""
    objective: float | None
    """J = E c + Σ η_i W1_i with the audit's estimates of W1; None where the game was another one, or η is not known."""
    rounded_cost: float
    """Mean cost of the plan's tuples when each part is replaced by a row of data: a coupling of the data itself."""
    gap: float
    """How far above optimal the rounded plan may be: an upper bound of its cost, minus `lower`."""
    rows: int
    """Of each data set, that were used."""
    judges_plan: bool = True
    """Whether the plan can be judged by the interval: not where the samples' own problem is all that was bounded."""
    epsilon: float | None = None
    """Of an entropic plan: it may cost more than the optimal one, which is what ε is for."""
    lower_for_any_law: float | None = None
    """A lower bound that needs no limit of many rows and nothing of the laws; for metric costs, else None."""
    covers: str = ""
    """What the interval is about, and what it leaves open, in words."""

    @property
    def width(self) -> float:
        """Of the interval, relative to its middle."""
        middle = abs(self.upper + self.lower) / 2
        return (self.upper - self.lower) / middle if middle > 0 else math.inf

    @property
    def verdict(self) -> str:
        """What the interval says about the plan, in words."""
        if not math.isfinite(self.plan_cost.value):
            return "the plan is wrong: its cost is not a finite number"
        if not self.judges_plan:
            return "the plan is not judged: of this cost only the optimum between the samples themselves is bounded"
        slack = float(stats.norm.isf((1 - self.confidence) / 2)) * self.plan_cost.monte_carlo_error
        if self.plan_cost.value + slack < self.lower:
            return "the plan is wrong: it costs less than any true plan can, so its marginals are off (see the audit)"
        if self.plan_cost.value - slack > self.upper and self.epsilon is not None:
            return (
                f"the plan costs more than the optimal one, as entropic plans do (ε = {self.epsilon:g}); see the audit"
            )
        if self.plan_cost.value - slack > self.upper:
            return "the plan is wrong: it costs more than the optimal plan does"
        return "the plan's cost agrees with the interval"

    @property
    def plan_is_wrong(self) -> bool:
        """Whether the plan's cost lies outside the interval."""
        return self.verdict.startswith("the plan is wrong")

    def __str__(self) -> str:
        return (
            f"{self.lower:.5g} ≤ optimal cost ≤ {self.upper:.5g} ({100 * self.confidence:g} %, {self.target}); "
            f"the plan costs {self.plan_cost.value:.5g} ± {self.plan_cost.monte_carlo_error:.2g}: {self.verdict}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and words, for JSON; None for a bound that is not known."""
        return finite(asdict(self) | {"width": self.width, "verdict": self.verdict})


def certify(
    plan: Plan,
    *sources: Any,
    confidence: float = 0.95,
    weights: Sequence[Any] | None = None,
    rows: int = _ROWS,
    seed: int = 0,
    progress: Progress = lambda what, share: None,
) -> Certificate:
    """Bounds the optimal cost between the laws behind the data, from below and above, whatever the plan is.

    Above: exact transport between disjoint blocks of the data. Below: potentials fitted to one part of the data,
    chosen by a second, and evaluated on a third. docs/certificates.md has the proofs.

    The rows of one data set must not depend on those of another: for tables in which row k of both is the same unit,
    shuffle one and take halves that share no unit.

    For a cost that is not known to be a metric or a squared distance, and for weighted rows, only the problem between
    the samples themselves is bounded; `target` says so.

    Args:
        plan: any plan: a `cost`, `sample(n, seed)` and `expected_cost()`.
        sources: the data, in the order of the plan's marginals.
        confidence: of the interval, half of the risk on either side.
        weights: for each source, one number a row, or None.
        rows: at most so many rows of each data set are used, drawn at random; fewer of large pictures.
        seed: of everything random.
        progress: called with what is being done and the share of it that is done.
    """
    require_pot()
    if not 0 < confidence < 1:
        raise InvalidArgument(f"confidence must lie between 0 and 1, and is {confidence}. Try confidence=.95.")
    data = opened(plan, sources, weights)
    xs = _drawn(plan, data, rows, seed)
    if min(map(len, xs)) < _FEWEST:
        raise TooFewRows(f"a certificate needs at least {_FEWEST} rows of each data set, and got {list(map(len, xs))}.")
    risk = (1 - confidence) / 2
    with torch.enable_grad():
        rounded, upper, lower = _bounds(plan, data, xs, risk, seed, progress)
    progress("the plan itself", 0.0)
    target = "samples" if lower.of_samples or any(one.weighted for one in data) else "population"
    return Certificate(
        lower=min(lower.value, upper.bound),  # in the rare case that chance has put one beyond the other
        upper=max(lower.value, upper.bound),
        target=target,
        method=f"upper: {upper.words}; lower: {lower.words}",
        covers=_covers(plan, len(xs), target),
        confidence=confidence,
        plan_cost=plan.expected_cost(),
        objective=_objective(plan, data, seed),
        rounded_cost=rounded.mean,
        gap=rounded.bound - min(lower.value, upper.bound),
        rows=lower.rows or min(map(len, xs)),
        judges_plan=not lower.of_samples,
        epsilon=_facts(plan).get("epsilon"),
        lower_for_any_law=lower.for_any_law,
    )


def _covers(plan: Plan, m: int, target: str) -> str:
    """What is bounded for so many marginals, and what of the plan it does not see."""
    said = f"the least mean cost of pairs whose parts {'are the rows' if target == 'samples' else 'have the two laws'}"
    if m > 2:
        said = (
            f"the least mean cost of tuples whose parts have all {m} laws; above by couplings that matching one "
            "marginal after another finds, which need not be the best of their rows"
        )
    if at := _facts(plan).get("anchored"):
        moved = " and ".join(f"of data set {k + 1}" for k in at)
        said += (
            f"; the plan moves rows {moved}, and the interval is "
            "about their mean cost: of where a single point goes, or a point outside the data, it says nothing"
        )
    return said


class _Lower(NamedTuple):
    value: float
    words: str
    of_samples: bool = False
    for_any_law: float | None = None
    rows: int | None = None


def _drawn(plan: Plan, data: Sequence[Opened], rows: int, seed: int) -> Samples:
    """Rows of each data set; in the plan's own precision and place where the cost is the user's own."""
    most = [max(_FEWEST, min(rows, _NUMBERS // math.prod(one.sampler.shape))) for one in data]
    xs = tuple(one.all(n, Key(seed, f"certificate {k}")) for k, (one, n) in enumerate(zip(data, most, strict=True)))
    if costs.to_spec(plan.cost) is not None:
        return xs
    return tuple(x.to(like) for x, like in zip(xs, plan.sample(1, 0), strict=True))


def _bounds(
    plan: Plan, data: Sequence[Opened], xs: Samples, risk: float, seed: int, progress: Progress
) -> tuple[Upper, Upper, _Lower]:
    """The cost of the rounded plan, the upper bound and the lower bound."""
    fit, choose, judge = _parts(xs)
    progress("lower bound", 0.0)
    found = fit_potentials(plan.cost, fit, choose, seed=seed)

    def above(share: float) -> None:
        progress("upper bound", share)

    rounded, improved = rounded_blocks(plan.cost, plan, xs, risk=risk, progress=above, seed=seed)
    if found is None and len(xs) == 2 and (between := _between_samples(plan.cost, data, xs, risk)) is not None:
        return rounded, between.upper, _Lower(between.lower, between.words, of_samples=True, rows=between.rows)
    upper = coupled_blocks(plan.cost, xs, risk=risk, progress=above) if len(xs) == 2 else improved
    if found is None:
        return rounded, upper, _Lower(-math.inf, "none is known for this cost", of_samples=True)
    surely = max(0.0, _surely_below(found, fit, judge, risk)) if found.opposite else None
    return rounded, upper, _Lower(max(0.0, _below(found, judge, risk)), found.name, for_any_law=surely)  # costs are ≥ 0


def _between_samples(cost: Cost, data: Sequence[Opened], xs: Samples, risk: float) -> SampleBounds | None:
    """Of any cost, the problem between the rows: exactly if they are few, by bounds if they are many.

    None for many weighted rows: draws of them are not the law, and the law is too large.
    """
    first, second = (one.rows for one in data)
    if first is not None and second is not None and len(first) * len(second) <= _EXACT**2:
        x, y = (law.take(np.arange(len(law))).to(like) for law, like in zip((first, second), xs, strict=True))
        return exact_between(cost, x, y, (first.shares(), second.shares()))
    if any(one.weighted for one in data):
        return None
    return sample_bounds(cost, xs[0], xs[1], risk=risk)


def _parts(xs: Samples) -> tuple[Samples, Samples, Samples]:
    """To fit potentials to, to choose among them, and to evaluate the chosen one."""
    fitted = [min(int(_FITTED * len(x)), _FITTED_MOST) for x in xs]
    chosen = [fit + min(max(2, int(_CHOSEN * len(x))), _CHOSEN_MOST) for fit, x in zip(fitted, xs, strict=True)]
    return (
        tuple(x[:a] for x, a in zip(xs, fitted, strict=True)),
        tuple(x[a:b] for x, a, b in zip(xs, fitted, chosen, strict=True)),
        tuple(x[b:] for x, b in zip(xs, chosen, strict=True)),
    )


def _below(potentials: Potentials, xs: Samples, risk: float) -> float:
    """Σ mean u_i − t √(Σ Var u_i / n_i)."""
    values: tuple[Tensor, ...] = potentials.values(xs)
    variance = math.fsum(float(u.var()) / len(u) for u in values)
    t = float(stats.t.isf(risk, min(map(len, values)) - 1))
    return math.fsum(float(u.mean()) for u in values) - t * math.sqrt(variance)


def _surely_below(potentials: Potentials, fit: Samples, judge: Samples, risk: float) -> float:
    """The same with u clamped to the range [a, b] it has on the fitted part, by the empirical Bernstein inequality.

    For each side mean − √(2 V log(2/δ) / n) − 7 (b − a) log(2/δ) / (3 (n − 1)), δ half of the risk.

    Reference: "Empirical Bernstein bounds and sample variance penalization", A. Maurer and M. Pontil, 2009.
    """
    seen = torch.cat([sign * u for sign, u in zip((1, -1), potentials.values(fit), strict=True)])
    low, high = float(seen.min()), float(seen.max())
    log = math.log(4 / risk)
    total = 0.0
    for sign, u in zip((1, -1), potentials.values(judge), strict=True):
        clamped = sign * (sign * u).clamp(low, high)
        n = len(clamped)
        slack = math.sqrt(2 * float(clamped.var()) * log / n) + 7 * (high - low) * log / (3 * (n - 1))
        total += float(clamped.mean()) - slack
    return total


def _facts(plan: Plan) -> dict[str, Any]:
    """What the plan says of how it was made, where it does."""
    return getattr(plan, "facts", {})


def _objective(plan: Plan, data: Sequence[Opened], seed: int) -> float | None:
    eta = _facts(plan).get("eta")
    if not eta or "epsilon" in _facts(plan) or _facts(plan).get("critics") in ("free", "logistic"):
        return None
    judged = audit_of(plan, data, seed)
    gaps = (max(0.0, marginal.w1_estimate.value) for marginal in judged.marginals)
    return judged.cost.value + math.fsum(e * gap for e, gap in zip(eta, gaps, strict=True))
