"""What a user wants to know first, as a table."""

__all__ = ["result_table"]

from rich.markup import escape
from rich.table import Table

from torchspot.evaluation import Audit, Certificate, MarginalAudit
from torchspot.plans import DensityPlan, PooledPlan, PushforwardPlan
from torchspot.types import Reading

_DRAWN = 5000


def result_table(
    plan: PushforwardPlan | PooledPlan,
    judged: Audit,
    truth: float | None = None,
    certified: Certificate | None = None,
) -> Table:
    """What a user wants to know first."""
    table = Table(show_header=False)
    table.add_row(
        f"expected cost ({plan.cost})", f"{judged.cost.value:.5g} ± {judged.cost.monte_carlo_error:.2g} (Monte Carlo)"
    )
    if isinstance(plan, PooledPlan):
        table.add_row(f"spread over {len(plan.plans)} runs", f"{plan.spread():.2g} (standard deviation)")
    if truth is not None:
        error = f"  (error {100 * (judged.cost.value / truth - 1):+.2f} %)" if truth else ""
        table.add_row("true value", f"{truth:g}{error}")
    if certified is not None:
        _add_certificate(table, certified)
    for k, marginal in enumerate(judged.marginals):
        table.add_row(f"marginal {k + 1}", marginal.verdict)
        table.add_row("    sliced W2", _read(marginal.sliced_w2))
        if certified is not None:
            _add_readings(table, marginal)
        table.add_row("    judged by", f"{marginal.rows} {'held-out rows' if marginal.held_out else 'rows'}")
    facts = plan.facts
    if "epsilon" in facts and isinstance(plan, DensityPlan | PooledPlan):
        entropy = plan.entropy(_DRAWN)
        table.add_row("entropy of the plan", f"{entropy.value:.4g} ± {entropy.monte_carlo_error:.1g}")
        table.add_row("entropic weight ε", f"{facts['epsilon']:g}")
    if facts.get("eta"):
        weights = ", ".join(f"{eta:.3g}" if eta else "0 (exact)" for eta in facts["eta"])
        what = "slopes " if "epsilon" in facts else "" if facts.get("critics") == "logistic" else "Lipschitz constant "
        table.add_row("marginal weights η", f"{weights}  ({what}{facts['lipschitz_source']})")
    return table


def _add_certificate(table: Table, certified: Certificate) -> None:
    law = {"population": "the laws behind the data", "samples": "the samples themselves"}[certified.target]
    table.add_row(
        "optimal cost" if certified.epsilon is None else "optimal cost without ε",
        f"{certified.lower:.5g} to {certified.upper:.5g}  ({100 * certified.confidence:g} %)",
    )
    if certified.lower_for_any_law is not None:
        table.add_row("    for any law at all", f"at least {certified.lower_for_any_law:.5g}")
    table.add_row("    between", law)
    table.add_row("    this is", escape(certified.covers))
    table.add_row("    found by", escape(certified.method))
    table.add_row("    about the plan", certified.verdict)
    table.add_row("    rounded to data", f"{certified.rounded_cost:.5g}, at most {certified.gap:.3g} above optimal")
    if certified.objective is not None:
        table.add_row("    objective J", f"{certified.objective:.5g}")


def _add_readings(table: Table, marginal: MarginalAudit) -> None:
    table.add_row("    energy distance", _read(marginal.energy_distance))
    table.add_row("    mean off by", _read(marginal.mean_error))
    table.add_row("    covariance off by", _read(marginal.covariance_error))
    table.add_row("    W1, estimated", _read(marginal.w1_estimate))


def _read(reading: Reading) -> str:
    return f"{reading.value:.3g}  (noise floor {reading.floor:.2g} ± {reading.spread:.1g})"
