"""Beyond the paper: three to six marginals at once, their barycenters, and what a tensor of all tuples would take."""

__all__ = ["draw", "run", "settings"]

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

from torchspot import SPOT, engines, evaluation, latents, presets
from torchspot.exact import multimarginal_sinkhorn
from torchspot_paper import tuples
from torchspot_paper.clock import Clock, in_own_process
from torchspot_paper.recipe import LONGER, Call, Outcome, cost_errors, marginals_beside_noise
from torchspot_paper.tuples import TupleProblem

N, SEEDS, JUDGED = 100_000, 3, 100_000
COUNTS, DIMENSIONS = (3, 4, 5), (2, 8)
WEIGHTS = (0.5, 0.3, 0.2)
SCALED, POINTS, LARGEST = (2, 3, 4, 5, 6), 64, 4000
"""Numbers of marginals, rows of each in the tensor, and the megabytes of it (three are held) that are still tried."""


@dataclass(frozen=True)
class Setting:
    """A problem and how it is solved."""

    problem: str
    m: int
    d: int
    method: str
    """`spot` (defaults), `spot-anchored` (from real samples of marginal 1, no warm start), or `sinkhorn`."""
    scaling: bool = False
    """Whether time and memory are what is asked."""
    law: int = 0
    """Above 0: another problem of the same kind, of which nothing was known when the recipe was chosen."""
    longer: bool = False
    """Whether networks are wider, batches larger and steps more than by default."""

    def __str__(self) -> str:
        more = "".join(f"/{name}={value}" for name, value in self._more.items())
        name = f"{self.problem}/{self.m}/{self.d}/{self.method}{more}"
        return f"scaling/{self.m}/{self.method}" if self.scaling else name

    @property
    def about(self) -> dict[str, Any]:
        """As rows say it."""
        return {"problem": self.problem, "m": self.m, "d": self.d, "method": self.method, **self._more}

    @property
    def _more(self) -> dict[str, Any]:
        """What is not as it mostly is."""
        return {name: value for name in ("scaling", "law", "longer") if (value := getattr(self, name))}


def settings(quick: bool) -> list[Setting]:
    """Accuracy first, then time and memory as marginals are added."""
    known = [("gaussians", m, d) for m in COUNTS for d in DIMENSIONS]
    known += [("weighted gaussians", 3, 2), ("bent", 3, 2), ("bent", 3, 8), ("mixtures", 3, 2), ("discrete", 3, 2)]
    if quick:
        known = [known[0], known[-1]]
    laws = (0,) if quick else (0, 1)
    asked = [Setting(*one, method, law=k) for k in laws for one in known for method in ("spot", "spot-anchored")]
    if not quick:
        asked += [Setting("mixtures", 3, 2, method, longer=True) for method in ("spot", "spot-anchored")]
    scaled = (2, 3) if quick else SCALED
    return asked + [Setting("gaussians", m, 2, method, True) for m in scaled for method in ("spot", "sinkhorn")]


def run(call: Call, setting: Setting) -> list[Outcome]:
    """Accuracy with all seeds as replicas, or time and memory in a process of its own."""
    if setting.scaling:
        taken = in_own_process(_scaled, setting, call.quick)
        return [Outcome(setting.about, taken.as_metrics(), 1, taken.seconds)]
    problem, seeds = _problem(setting, call.quick), call.runs(SEEDS)
    xs = problem.sample(2000 if call.quick else N, 0)
    started = time.perf_counter()
    spot = _spot(setting, problem, 30 if call.quick else None, seeds, call.engine()).fit(*xs)
    seconds = time.perf_counter() - started
    metrics = cost_errors(spot, problem.value) | _barycenter_errors(spot.plans_, problem)
    if setting.problem != "discrete":
        metrics |= marginals_beside_noise(spot.plans_, problem, quick=call.quick)
    return [Outcome(setting.about | {"steps": spot.plan_.facts["steps"]}, metrics, seeds, seconds)]


def _problem(setting: Setting, quick: bool) -> TupleProblem:
    match setting.problem:
        case "gaussians":
            return tuples.gaussians(setting.m, setting.d, law=setting.law)
        case "weighted gaussians":
            return tuples.gaussians(setting.m, setting.d, WEIGHTS, setting.law)
        case "bent":
            return tuples.bent(setting.d, setting.m, setting.law)
        case "mixtures":
            return tuples.mixtures(setting.law)
    return tuples.discrete(10 if quick else 50, law=setting.law)


def _spot(setting: Setting, problem: TupleProblem, steps: int | None, replicas: int, engine: Any) -> SPOT:
    longer = LONGER if setting.longer else {}
    if setting.method == "spot":
        preset = replace(presets.default(), **longer)
        return SPOT(cost=problem.cost, preset=preset, steps=steps, replicas=replicas, engine=engine)
    preset = replace(presets.anchored(), warm_start=False, **longer)
    latent = latents.anchored(noise_dim=0)
    return SPOT(cost=problem.cost, latent=latent, preset=preset, steps=steps, replicas=replicas, engine=engine)


def _barycenter_errors(plans: Sequence[Any], problem: TupleProblem) -> dict[str, float]:
    """Of mean (over the barycenter's deviation) and covariance (relative), on average and at worst."""
    if problem.barycenter is None:
        return {}
    mean, covariance = map(torch.from_numpy, problem.barycenter())
    centred, spread = [], []
    for plan in plans:
        x = evaluation.barycenter(plan, JUDGED, seed=0).double().cpu()
        centred.append(float((x.mean(0) - mean).norm() / covariance.trace().sqrt()))
        spread.append(float((torch.cov(x.T) - covariance).norm() / covariance.norm()))
    return {
        "barycenter_mean_error": statistics.fmean(centred),
        "worst_barycenter_mean_error": max(centred),
        "barycenter_covariance_error": statistics.fmean(spread),
        "worst_barycenter_covariance_error": max(spread),
    }


def _scaled(clock: Clock, setting: Setting, quick: bool) -> dict[str, float]:
    """Error, seconds and memory of SPOT on 10⁵ rows, or of Sinkhorn on the tensor of all tuples of 64 rows."""
    problem = tuples.gaussians(setting.m, 2)
    if setting.method == "spot":
        xs = problem.sample(2000 if quick else N, 0)
        with clock:
            spot = _spot(setting, problem, 30 if quick else None, 1, engines.Eager("cpu")).fit(*xs)
        return {"error": spot.distance_.value / problem.value - 1, "rows": float(len(xs[0]))}
    points = 8 if quick else POINTS
    tensor = points**setting.m * 8 / 2**20
    if tensor > LARGEST:
        return {"tensor_megabytes": tensor, "rows": float(points)}
    tensors = tuple(map(torch.from_numpy, problem.sample(points, 0)))
    with clock:
        value = multimarginal_sinkhorn(problem.cost, tensors, epsilon=0.05 * problem.value)
    return {"error": value / problem.value - 1, "tensor_megabytes": tensor, "rows": float(points)}


def draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Seconds and peak memory against the number of marginals; dashed: what the tensor alone would take."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    found = {(s["method"], s["m"], row["metric"]): row["value"] for row in rows if (s := row["setting"]).get("scaling")}
    labels = {"spot": "SPOT, 10⁵ rows", "sinkhorn": f"Sinkhorn on the tensor of {POINTS} rows"}
    for method, label in labels.items():
        for axis, metric in zip(axes, ("seconds", "peak_megabytes"), strict=True):
            ms = sorted(
                m for (name, m, what) in found if (name, what) == (method, metric) and found[name, m, "seconds"]
            )
            axis.plot(ms, [found[method, m, metric] for m in ms], "o-", label=label)
            axis.set(xlabel="marginals", ylabel=metric.replace("_", " "), yscale="log", xticks=SCALED)
    ms = sorted(m for (name, m, what) in found if what == "tensor_megabytes")
    axes[1].plot(ms, [found["sinkhorn", m, "tensor_megabytes"] for m in ms], "k--", label="the tensor alone")
    axes[1].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
