"""Figure 4: densities of entropic plans beside the truth, and what is left of them without entropy."""

__all__ = ["draw", "run", "settings"]

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from scipy.interpolate import PchipInterpolator

from torchspot import SPOT, EntropicSPOT, costs, presets
from torchspot.networks.ode import flow
from torchspot.plans import DensityPlan
from torchspot_paper.densities import Grid, LinePair, gaussian_pair, line_pairs
from torchspot_paper.problems import Points
from torchspot_paper.recipe import Call, Outcome

N, N_HIGH, SEEDS = 4_000_000, 1_000_000, 3
"""Rows: the paper draws new ones in every step, and so many are as good as new."""
EPSILONS = (0.1, 1.0, 5.0)
HIGH, HIGH_WIDTH, JUDGED = 8, 128, 20_000
"""Dimension of each marginal, units a layer, and samples that judge the density there."""
SHOWN, THIN = 400, 5
"""Points of the unregularised plan, and every so many nodes of the grid, in the figure."""
COST = costs.squared_euclidean


@dataclass(frozen=True)
class Setting:
    """A pair of marginals and ε, 0 for the plan without entropy."""

    problem: str
    epsilon: float
    warm_start: bool = True

    def __str__(self) -> str:
        return f"{self.problem}/epsilon={self.epsilon:g}/warm_start={self.warm_start}"

    def about(self) -> dict[str, Any]:
        """As rows name it."""
        return {
            "method": "spot",
            "problem": self.problem,
            "epsilon": self.epsilon,
            "warm_start": self.warm_start,
        }


def settings(quick: bool) -> list[Setting]:
    """Both pairs of section 5.2 with and without entropy, and Gaussians in 8 + 8 dimensions with Hutchinson's trace."""
    if quick:
        return [Setting("mixtures", 1.0), Setting("mixtures", 0.0), Setting("high", 1.0)]
    warm = [Setting(name, epsilon) for name in line_pairs() for epsilon in (*EPSILONS, 0.0)]
    cold = [Setting(name, epsilon, False) for name in line_pairs() for epsilon in EPSILONS]
    return [*warm, *cold, Setting("high", 1.0), Setting("high", 1.0, False)]


def run(call: Call, setting: Setting) -> list[Outcome]:
    """All seeds of a setting, as replicas."""
    if setting.problem == "high":
        return [_high(call, setting)]
    pair = line_pairs()[setting.problem]
    return [_entropic(call, setting, pair) if setting.epsilon else _unregularised(call, setting, pair)]


def _entropic(call: Call, setting: Setting, pair: LinePair) -> Outcome:
    truth = pair.truth(setting.epsilon, *([60] if call.quick else []))
    plans, start, seconds = _fitted(call, setting, pair.sample(5000 if call.quick else N, 0))
    models = [_on_grid(plan, truth) for plan in plans]
    found = [_against(truth, model) for model in models]
    metrics = _summary(found) | {"kl_at_step_0": truth.kl(_on_grid(start, truth))}
    metrics["mass_error"] = max(abs(model.mass - 1) for model in models)
    metrics["solver_error"] = max(plan.facts["solver_error"] for plan in plans)
    metrics["entropy"] = statistics.fmean(plan.entropy().value for plan in plans)
    shown = _shown(pair, truth, models[0]) if setting.warm_start else {}
    return Outcome(setting.about(), metrics, len(plans), seconds, {}, shown)


def _shown(pair: LinePair, truth: Grid, model: Grid) -> dict[str, list[float]]:
    """For the figure."""
    x, y = truth.x[::THIN], truth.y[::THIN]
    curves = {"x": x, "y": y, "first": pair.first.density(x), "second": pair.second.density(y)}
    curves |= {"truth": truth.density[::THIN, ::THIN].ravel(), "model": model.density[::THIN, ::THIN].ravel()}
    return {name: np.round(values, 4).tolist() for name, values in curves.items()}


def _against(truth: Grid, model: Grid) -> dict[str, float]:
    return {
        "kl": truth.kl(model),
        "l1": truth.l1(model),
        "correlation_error": abs(model.correlation - truth.correlation),
        "cost_error": abs(model.cost / truth.cost - 1),
    }


def _unregularised(call: Call, setting: Setting, pair: LinePair) -> Outcome:
    """SPOT itself: its samples lie near the graph of a map, so there is no density, only a distance from that."""
    started = time.perf_counter()
    xs = pair.sample(5000 if call.quick else N, 0)
    seeds = call.runs(SEEDS)
    spot = SPOT(
        cost=COST, steps=20 if call.quick else presets.entropic().steps, replicas=seeds, engine=call.engine()
    ).fit(*xs)
    seconds = time.perf_counter() - started
    forth, nodes = _monotone(pair), pair.first.nodes()
    weights = pair.first.density(nodes) / pair.first.density(nodes).sum()
    truth = float(weights @ (nodes - forth(nodes)) ** 2)
    errors = [abs(plan.expected_cost().value / truth - 1) for plan in spot.plans_]
    drawn = [[x[:, 0].double().cpu().numpy() for x in plan.sample(10_000, seed=0)] for plan in spot.plans_]
    off = [float(np.sqrt(np.mean((y - forth(x)) ** 2))) for x, y in drawn]
    metrics = {"cost_error": statistics.fmean(errors), "worst_cost_error": max(errors)}
    metrics |= {"distance_from_map": statistics.fmean(off), "worst_distance_from_map": max(off)}
    shown = {"x": drawn[0][0][:SHOWN], "y": drawn[0][1][:SHOWN], "nodes": nodes, "map": forth(nodes)}
    return Outcome(
        setting.about(), metrics, seeds, seconds, {}, {name: np.round(v, 4).tolist() for name, v in shown.items()}
    )


def _high(call: Call, setting: Setting) -> Outcome:
    """Gaussians of several dimensions, the trace estimated along one random direction; judged on the optimal plan."""
    pair = gaussian_pair(2 if call.quick else HIGH)
    d, truth = len(pair.means[0]), pair.plan(setting.epsilon)
    plans, start, seconds = _fitted(call, setting, pair.sample(2000 if call.quick else N_HIGH, 0))
    points = truth.rvs(size=200 if call.quick else JUDGED, random_state=0)
    log_p, cost = truth.logpdf(points), pair.cost(setting.epsilon)

    def log_density(plan: DensityPlan) -> Float[np.ndarray, " batch"]:
        return plan.log_density(points[:, :d], points[:, d:]).cpu().numpy()

    found = []
    for plan in plans:
        log_q = log_density(plan)
        drawn = np.concatenate([x.double().cpu().numpy() for x in plan.sample(100_000, seed=0)], axis=1)
        away = np.corrcoef(drawn.T) - _correlation(truth.cov)
        slope = float(np.polyfit(log_p, log_q, 1)[0])
        found.append(
            {
                "kl": float((log_p - log_q).mean()),
                "l1": float(np.abs(1 - np.exp(log_q - log_p)).mean()),
                "correlation_error": float(np.abs(away[:d, d:]).max()),
                "cost_error": abs(plan.expected_cost().value / cost - 1),
                "log_density_slope_error": abs(slope - 1),
                "log_density_deviation": float((log_p - log_q).std()),
            }
        )
    metrics = _summary(found) | {"kl_at_step_0": float((log_p - log_density(start)).mean())}
    return Outcome(setting.about() | {"d": d, "trace": "hutchinson"}, metrics, len(plans), seconds)


def _fitted(
    call: Call, setting: Setting, xs: tuple[Points, Points]
) -> tuple[tuple[DensityPlan, ...], DensityPlan, float]:
    """The plans of all seeds, the plan at step 0 (the rate of the first step is 0), and seconds."""
    preset = replace(presets.entropic(), warm_start=setting.warm_start)
    generator = flow(16 if call.quick else HIGH_WIDTH, probes=1) if setting.problem == "high" else None
    spot = EntropicSPOT(
        cost=COST, epsilon=setting.epsilon, generator=generator, preset=preset, seed=0, engine=call.engine()
    )
    start = spot.set_params(steps=1, batch_size=8).fit(*xs).plan_
    spot.set_params(steps=20 if call.quick else None, batch_size=64 if call.quick else None)
    started = time.perf_counter()
    spot.set_params(replicas=call.runs(SEEDS)).fit(*xs)
    return spot.plans_, start, time.perf_counter() - started


def _summary(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each number the mean over the runs, and the worst."""
    means = {name: statistics.fmean(one[name] for one in found) for name in found[0]}
    return means | {f"worst_{name}": max(one[name] for one in found) for name in found[0]}


def _on_grid(plan: DensityPlan, like: Grid) -> Grid:
    x, y = np.meshgrid(like.x, like.y, indexing="ij")
    values = plan.log_density(x.ravel(), y.ravel()).exp().cpu().numpy()
    return Grid(like.x, like.y, values.reshape(x.shape))


def _monotone(pair: LinePair) -> PchipInterpolator:
    """The optimal map without entropy: equal shares of both marginals below x and below T(x)."""
    x, y = pair.first.nodes(), pair.second.nodes()
    shares = [np.cumsum(line.density(nodes)) for line, nodes in ((pair.first, x), (pair.second, y))]
    below, back = (share / share[-1] for share in shares)
    keep = np.concatenate(([True], np.diff(back) > 0))
    return PchipInterpolator(x, PchipInterpolator(back[keep], y[keep])(below), extrapolate=True)


def _correlation(covariance: Points) -> Points:
    deviations = np.sqrt(np.diag(covariance))
    return covariance / np.outer(deviations, deviations)


def draw(curves: Sequence[dict[str, Any]], file: Path) -> None:
    """For each pair of marginals: the learned density, the truth and the difference, from small ε to none."""
    problems = sorted({curve["setting"]["problem"] for curve in curves})
    columns = sorted({curve["setting"]["epsilon"] for curve in curves}, key=lambda e: (e == 0, e))
    size = (3 * len(columns), 9 * len(problems))
    figure, axes = plt.subplots(3 * len(problems), len(columns), figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat:
        axis.set_axis_off()
    for curve in curves:
        row, column = 3 * problems.index(curve["setting"]["problem"]), columns.index(curve["setting"]["epsilon"])
        column_of = list(axes[row : row + 3, column])
        for axis in column_of:
            axis.set_axis_on()
        (_draw_density if curve["setting"]["epsilon"] else _draw_map)(column_of, curve)
        column_of[0].set_title(f"{curve['setting']['problem']}, {_named(curve['setting']['epsilon'])}\nlearned")
    figure.savefig(file, dpi=80)
    plt.close(figure)


def _named(epsilon: float) -> str:
    return f"ε = {epsilon:g}" if epsilon else "no entropy"


def _draw_density(axes: Sequence[Axes], curve: dict[str, Any]) -> None:
    x, y = (np.array(curve[name]) for name in ("x", "y"))
    truth, model = (np.array(curve[name]).reshape(len(x), len(y)) for name in ("truth", "model"))
    high = truth.max()
    for axis, values in zip(axes, (model, truth), strict=False):
        axis.pcolormesh(x, y, values.T, cmap="magma_r", vmin=0, vmax=high, shading="nearest", rasterized=True)
    apart = axes[2].pcolormesh(x, y, (model - truth).T, cmap="RdBu_r", vmin=-high / 4, vmax=high / 4, shading="nearest")
    plt.colorbar(apart, ax=axes[2], shrink=0.8)
    for given, made, nodes, across in (
        (curve["first"], model.sum(1) * (y[1] - y[0]), x, y),
        (curve["second"], model.sum(0) * (x[1] - x[0]), y, x),
    ):
        unit = (across[-1] - across[0]) / (5 * max(given))
        for heights, colour, style in ((given, "black", "-"), (made, "tab:green", "--")):
            line = across[0] + unit * np.array(heights)
            axes[0].plot(*((nodes, line) if nodes is x else (line, nodes)), color=colour, ls=style, lw=1)
    axes[1].set_title("truth")
    axes[2].set_title("learned − truth")


def _draw_map(axes: Sequence[Axes], curve: dict[str, Any]) -> None:
    """Samples, the graph of the optimal map, and how far they are from it."""
    nodes, forth = (np.array(curve[name]) for name in ("nodes", "map"))
    x, y = (np.array(curve[name]) for name in ("x", "y"))
    axes[0].scatter(x, y, s=4, color="tab:purple")
    axes[1].plot(nodes, forth, color="black", lw=1)
    axes[2].scatter(x, y - np.interp(x, nodes, forth), s=4, color="tab:purple")
    axes[2].axhline(0, color="black", lw=0.5)
    axes[1].set_title("truth: a map, no density")
    axes[2].set_title("learned − map")
