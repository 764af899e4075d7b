"""Beyond the paper: where does a given point go? Maps and conditional laws against known ones."""

__all__ = ["draw", "run", "settings"]

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.stats import norm
from sklearn.datasets import make_circles, make_moons

from torchspot import SPOT, costs, latents, presets
from torchspot.discrepancies import sliced_w2, w2_of_columns
from torchspot.estimators.presets import Preset
from torchspot.exact import emd
from torchspot_paper.problems import Points, Problem, map_problems
from torchspot_paper.recipe import LONGER, Call, Outcome, cost_errors, marginals_beside_noise

N, SEEDS, JUDGED = 100_000, 3, 20_000
DIMENSIONS = (2, 4, 8, 16, 32)
ATOMS: dict[str, Points] = {
    "point": np.zeros((2, 1)),
    "three atoms": np.array([[-2.0], [0.0], [1.0]]),
    "five atoms": np.array([[-4.0], [-1.0], [0.0], [2.0], [5.0]]),
}
BLOCK, BLOCKS = 4096, 4
RECIPES: dict[str, Preset] = {"lipschitz": presets.anchored(), "free": presets.free_potential()}
"""What holds the second marginal: critics that are 1-Lipschitz, or a potential of any steepness."""


@dataclass(frozen=True)
class Setting:
    """A problem, its dimension, and what SPOT is run with."""

    problem: str
    d: int
    critics: str = "lipschitz"
    warm_start: bool = False
    longer: bool = False
    """Whether networks are wider, batches larger and steps more than by default."""
    law: int = 0
    """Above 0: another problem of the same kind, of which nothing was known when the recipe was chosen."""

    def __str__(self) -> str:
        more = ("/longer" if self.longer else "") + (f"/law={self.law}" if self.law else "")
        return f"{self.problem}/{self.d}/{self.critics}/warm_start={self.warm_start}{more}"

    @property
    def about(self) -> dict[str, Any]:
        """As rows say it."""
        about = asdict(self) | {"method": "spot"}
        return about if self.law else {name: value for name, value in about.items() if name != "law"}

    @property
    def preset(self) -> Preset:
        """The recipe: of maps, or of conditional laws where no map can do."""
        preset = presets.conditional() if self.problem in ATOMS else RECIPES[self.critics]
        return replace(preset, warm_start=self.warm_start, **(LONGER if self.longer else {}))


def settings(quick: bool) -> list[Setting]:
    """Every problem with known map in every dimension under both kinds of critics; then shapes and atoms."""
    dims = (2,) if quick else DIMENSIONS
    known = [(name, d) for d in (1, *dims) for name in map_problems(d) if d == 1 or name == "linear" or not quick]
    asked = [Setting(name, d, critics) for critics in RECIPES for name, d in known]
    asked += [Setting("linear", d, warm_start=True) for d in dims]
    asked += [Setting(name, d, law=1) for name, d in known if d > 1 and not quick]
    asked += [Setting("moons and circles", 2, longer=longer) for longer in (False, True) if not (quick and longer)]
    return asked + [Setting(name, 1) for name in ATOMS]


def run(call: Call, setting: Setting) -> list[Outcome]:
    """All seeds as replicas."""
    if setting.problem in ATOMS:
        return [_run_atoms(call, setting)]
    if setting.problem == "moons and circles":
        return [_run_shapes(call, setting)]
    return [_run_known(call, setting)]


@dataclass
class _AtStep0:
    """Measures the plan before the first step."""

    measure: Any
    value: float = np.nan

    def begin(self, run: Any) -> None:
        self.value = self.measure(run.plans()[0])

    def __call__(self, training: Any, record: Any) -> None:
        """Nothing at later steps."""


def _fitted(
    call: Call, setting: Setting, xs: tuple[Points, ...], latent: latents.Anchored, callbacks: Sequence[Any] = ()
) -> tuple[SPOT, int, float]:
    """The fit, how many runs it has, and the seconds it took."""
    seeds, steps = call.runs(SEEDS), 30 if call.quick else None
    started = time.perf_counter()
    spot = SPOT(
        cost=costs.squared_euclidean,
        latent=latent,
        preset=setting.preset,
        steps=steps,
        replicas=seeds,
        engine=call.engine(),
        callbacks=callbacks,
    ).fit(*xs)
    return spot, seeds, time.perf_counter() - started


def _run_known(call: Call, setting: Setting) -> Outcome:
    problem = map_problems(setting.d, setting.law)[setting.problem]
    n, judged = (2000, 500) if call.quick else (N, JUDGED)
    measure = partial(unexplained, problem=problem, n=judged)
    start = _AtStep0(measure)
    spot, seeds, seconds = _fitted(call, setting, problem.sample(n, 0), latents.anchored(noise_dim=0), [start])
    found = [measure(plan) for plan in spot.plans_]
    metrics = {
        "uvp": statistics.fmean(found),
        "worst_uvp": max(found),
        "uvp_at_step_0": start.value,
        **cost_errors(spot, problem.value),
        **marginals_beside_noise(spot.plans_, problem, quick=call.quick),
    }
    return Outcome(setting.about | {"steps": spot.plan_.facts["steps"]}, metrics, seeds, seconds)


def unexplained(plan: Any, problem: Problem, n: int = JUDGED) -> float:
    """L2-UVP, E‖T(x) − T*(x)‖² / Var ν, of x that training never saw."""
    x, y = problem.pairs(n, 5)
    return unexplained_by(plan.barycentric_map(x), torch.from_numpy(y))


def unexplained_by(moved: torch.Tensor, optimal: torch.Tensor) -> float:
    """E‖T(x) − T*(x)‖² / Var ν."""
    apart = (moved.double().cpu() - optimal).square().sum(1).mean()
    return float(apart / optimal.var(0).sum())


def _run_shapes(call: Call, setting: Setting) -> Outcome:
    """Both directions at once; each beside exact transport of blocks of fresh points."""
    n, judged, size, blocks = (2000, 500, 200, 2) if call.quick else (N, JUDGED, BLOCK, BLOCKS)
    spot, seeds, seconds = _fitted(call, setting, _shapes(n, 0), latents.anchored(noise_dim=0, at=(0, 1)))
    truth = statistics.fmean(emd(costs.squared_euclidean, *_shape_tensors(size, 10**6 + k)) for k in range(blocks))
    fresh, others = (_shape_tensors(judged, 10**5 + k) for k in range(2))
    errors, ratios = [], []
    for plan in spot.plans_:
        for start, source in enumerate(fresh):
            target, other = fresh[1 - start], others[1 - start]
            moved = plan.transport(source, start=start).double().cpu()
            errors.append(float(costs.squared_euclidean(source, moved).mean()) / truth - 1)
            ratios.append(sliced_w2(moved, target) / sliced_w2(target, other))
    metrics = {
        "signed_error": statistics.fmean(errors),
        "worst_error": max(map(abs, errors)),
        "error_at_step_0": spot.history_[0]["cost"] / truth - 1,
        "sliced_w2_over_floor": max(ratios),
    }
    return Outcome(setting.about | {"steps": spot.plan_.facts["steps"]}, metrics, seeds, seconds)


def _shapes(n: int, seed: int) -> tuple[Points, ...]:
    moons, _ = make_moons(n, noise=0.08, random_state=seed)
    circles, _ = make_circles(n, noise=0.05, factor=0.5, random_state=seed + 1)
    return moons, 1.5 * circles + np.array([0.5, 0.25])


def _shape_tensors(n: int, seed: int) -> tuple[torch.Tensor, ...]:
    return tuple(map(torch.from_numpy, _shapes(n, seed)))


def _run_atoms(call: Call, setting: Setting) -> Outcome:
    """Atoms to N(0, 1): no map does it, and the partners of each atom must be N(0, 1) on its quantile interval."""
    atoms = ATOMS[setting.problem]
    y = np.random.default_rng(0).normal(size=(2000 if call.quick else N, 1))
    spot, seeds, seconds = _fitted(call, setting, (atoms, y), latents.anchored())
    different = np.unique(atoms, axis=0)
    truth = _on_quantile_intervals(len(different), JUDGED)
    apart, spreads = [], []
    for plan in spot.plans_:
        drawn = plan.transport(different, JUDGED, seed=0)[..., 0].double().cpu()
        apart += [float(w2_of_columns(a[:, None], b[:, None])) for a, b in zip(drawn, truth, strict=True)]
        spreads += (drawn.std(1) / truth.std(1)).tolist()
    metrics = {
        "conditional_w2": statistics.fmean(apart),
        "worst_conditional_w2": max(apart),
        "least_spread": min(spreads),
        "most_spread": max(spreads),
    }
    return Outcome(setting.about | {"steps": spot.plan_.facts["steps"]}, metrics, seeds, seconds)


def _on_quantile_intervals(count: int, n: int) -> torch.Tensor:
    """N(0, 1) on each of so many intervals of equal mass, n quantiles each."""
    levels = (np.arange(count)[:, None] + (np.arange(n) + 0.5) / n) / count
    return torch.from_numpy(norm.ppf(levels))


def draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """UVP against dimension, one panel for each problem, one line for each kind of critics."""
    names = list(map_problems(2))
    figure, axes = plt.subplots(1, len(names), figsize=(12, 3.6), sharey=True)
    found = {
        (s["problem"], s["critics"], s["warm_start"], s["d"], row["metric"]): row["value"]
        for row in rows
        if not (s := row["setting"]).get("law")
    }
    for axis, name in zip(axes, names, strict=True):
        for colour, (critics, warm) in enumerate((c, w) for c in RECIPES for w in (False, True)):
            dims = sorted(k[3] for k in found if k[:3] == (name, critics, warm) and k[4] == "uvp")
            if not dims:
                continue
            label = critics + (", warm start" if warm else "")
            mean, worst = ([100 * found[name, critics, warm, d, m] for d in dims] for m in ("uvp", "worst_uvp"))
            axis.plot(dims, mean, "o-", color=f"C{colour}", label=label)
            axis.plot(dims, worst, "_", color=f"C{colour}")
        axis.set(title=name, xscale="log", yscale="log", xlabel="dimension", xticks=DIMENSIONS, xticklabels=DIMENSIONS)
        axis.minorticks_off()
    axes[0].set_ylabel("L2-UVP, % (bars: worst run)")
    if axes[0].lines:
        axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
