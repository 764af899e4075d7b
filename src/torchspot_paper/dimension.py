"""Beyond the paper: hard problems with known answers in 2 to 256 dimensions, SPOT beside other methods."""

__all__ = ["draw", "label", "run", "settings"]

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

from torchspot import SPOT, costs, presets
from torchspot.estimators.presets import Preset
from torchspot.exact import emd, sinkhorn
from torchspot.networks.lipschitz import Clipping, Orthogonal, SpectralNorm
from torchspot.objectives.gaussian import AffinePlan
from torchspot_paper.problems import Problem, dimension_problems
from torchspot_paper.recipe import Call, Outcome, cost_errors, marginals_beside_noise

N, SEEDS = 100_000, 3
DIMENSIONS = (2, 16, 64, 128, 256)
EMD_POINTS, SINKHORN_POINTS = 10_000, 10_000
SINKHORN = 0.02
"""ε as a part of the mean cost between samples."""
CONTROLS: dict[str, dict[str, Any]] = {
    "orthogonal": {"control": Orthogonal()},
    "spectral": {"control": SpectralNorm()},
    "clipping": {"control": Clipping(), "marginal_weight": 1e4},
    "loose clipping": {"control": Clipping(0.1)},
}
"""How each differs from the recipe. Critics held within ±.01 have slopes far below 1: they need the paper's η."""
CONTROLLED = (16, 64)


@dataclass(frozen=True)
class Setting:
    """A method on a problem."""

    problem: str
    d: int
    method: str
    variant: tuple[tuple[str, Any], ...] = ()
    """What SPOT is run with, by name."""

    def __str__(self) -> str:
        said = "".join(f"/{name}={value}" for name, value in self.variant)
        return f"{self.problem}/{self.d}/{self.method}{said}"


def settings(quick: bool) -> list[Setting]:
    """Everything; `--only` picks some."""
    dims, controlled = ((2,), (2,)) if quick else (DIMENSIONS, CONTROLLED)
    names = ["softmax"] if quick else list(dimension_problems(2))
    baselines = ("mean-shift", "bures", "emd", "sinkhorn")
    asked = [Setting(name, d, method) for d in dims for name in names for method in baselines]
    for warm in (False,) if quick else (True, False):
        asked += [Setting(name, d, "spot", (("warm_start", warm),)) for d in dims for name in names]
    for control in ("spectral",) if quick else CONTROLS:
        for equal in ("time",) if quick else ("steps", "time"):
            if (control, equal) == ("orthogonal", "time"):
                continue  # the same run as with equal steps: the others are measured against it
            about = (("control", control), ("equal", equal))
            asked += [Setting(name, d, "spot", about) for d in controlled for name in names if name != "translation"]
    return asked


def run(call: Call, setting: Setting) -> list[Outcome]:
    """One method on one problem."""
    problem = dimension_problems(setting.d)[setting.problem]
    about = {"problem": setting.problem, "d": setting.d, "method": setting.method, **dict(setting.variant)}
    if setting.method == "spot":
        return [_run_spot(call, problem, dict(setting.variant), about)]
    n = 500 if call.quick else {"emd": EMD_POINTS, "sinkhorn": SINKHORN_POINTS}.get(setting.method, N)
    xs = tuple(map(torch.from_numpy, problem.sample(n, 0)))
    started = time.perf_counter()
    value = _BASELINES[setting.method](call, problem, xs)
    seconds = time.perf_counter() - started
    return [Outcome(about | {"n": n}, {"error": value / problem.value - 1}, 1, seconds)]


def _run_spot(call: Call, problem: Problem, variant: dict[str, Any], about: dict[str, Any]) -> Outcome:
    n, seeds = (1000 if call.quick else N), call.runs(SEEDS if "control" not in variant else 1)
    preset = presets.default()
    if "warm_start" in variant:
        preset = replace(preset, warm_start=variant["warm_start"])
    xs = problem.sample(n, 0)
    steps = 10 if call.quick else preset.sizes(xs[0].shape[1]).steps
    if "control" in variant:
        control = replace(preset, **CONTROLS[variant["control"]])
        if variant["equal"] == "time":
            steps = round(steps / _slowdown(call, problem, xs, control, preset))
        preset = control
    started = time.perf_counter()
    spot = SPOT(cost=problem.cost, preset=preset, steps=steps, replicas=seeds, engine=call.engine()).fit(*xs)
    seconds = time.perf_counter() - started
    metrics = cost_errors(spot, problem.value) | marginals_beside_noise(spot.plans_, problem, quick=call.quick)
    return Outcome(about | {"steps": steps}, metrics, seeds, seconds)


def _slowdown(
    call: Call, problem: Problem, xs: tuple[np.ndarray, ...], preset: Preset, reference: Preset, rounds: int = 3
) -> float:
    """How much longer a step takes than the reference's; taken in turns, as other work may come and go."""
    paces = [[_pace(call, problem, xs, p) for p in (preset, reference)] for _ in range(1 if call.quick else rounds)]
    return statistics.median(mine for mine, _ in paces) / statistics.median(other for _, other in paces)


def _pace(call: Call, problem: Problem, xs: tuple[np.ndarray, ...], preset: Preset) -> float:
    """Seconds a step: of the second half of a short run."""
    steps = 8 if call.quick else 200
    history = SPOT(cost=problem.cost, preset=preset, steps=steps, engine=call.engine()).fit(*xs).history_
    half = next(record for record in history if record["step"] >= steps // 2)
    return (history[-1]["seconds"] - half["seconds"]) / (history[-1]["step"] - half["step"])


def _mean_shift(call: Call, problem: Problem, xs: tuple[torch.Tensor, ...]) -> float:
    shift = float((xs[1].mean(0) - xs[0].mean(0)).norm())
    return shift**2 if problem.cost == costs.squared_euclidean else shift


def _bures(call: Call, problem: Problem, xs: tuple[torch.Tensor, ...]) -> float:
    """The cost of the affine map that is optimal between Gaussians of these moments."""
    means = [x.mean(0) for x in xs]
    partners = AffinePlan.between([x - m for x, m in zip(xs, means, strict=True)]).partners(xs[0] - means[0])
    return float(problem.cost(*(u + m for u, m in zip(partners, means, strict=True))).mean())


def _emd(call: Call, problem: Problem, xs: tuple[torch.Tensor, ...]) -> float:
    return emd(problem.cost, *xs)


def _sinkhorn(call: Call, problem: Problem, xs: tuple[torch.Tensor, ...]) -> float:
    x, y = (x.to(call.engine().device, torch.float64) for x in xs)
    scale = float(problem.cost(x, y).mean())  # rows are unpaired
    return sinkhorn(problem.cost, x, y, epsilon=SINKHORN * scale)


_BASELINES = {"mean-shift": _mean_shift, "bures": _bures, "emd": _emd, "sinkhorn": _sinkhorn}


def draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """One panel for each problem: error against dimension, one line a method."""
    errors = [row for row in rows if row["metric"] == "error" and "control" not in row["setting"]]
    problems = list(dimension_problems(2))
    figure, axes = plt.subplots(2, 4, figsize=(15, 6.5), sharex=True, sharey=True)
    for axis, problem in zip(axes.flat, problems, strict=False):
        for method in dict.fromkeys(label(row["setting"]) for row in errors):
            mine = sorted(
                (r["setting"]["d"], abs(r["value"]))
                for r in errors
                if label(r["setting"]) == method and r["setting"]["problem"] == problem
            )
            if mine:
                axis.plot(*zip(*[(d, 100 * e) for d, e in mine], strict=True), marker="o", markersize=3, label=method)
        axis.set(title=problem, xscale="log", yscale="log", ylim=(0.01, 1000))
    axes.flat[-1].axis("off")
    axes.flat[-1].legend(*axes.flat[0].get_legend_handles_labels(), loc="center")
    for axis in axes[:, 0]:
        axis.set_ylabel("error, %")
    figure.supxlabel("dimension")
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)


def label(setting: dict[str, Any]) -> str:
    """The method in words."""
    return setting["method"] + (", no warm start" if setting.get("warm_start") is False else "")
