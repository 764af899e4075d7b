"""Adaptation of vectors: two moons turned further and further, and a covariate shift, beside POT's mappings."""

__all__ = ["draw", "run", "settings"]

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float, Int
from sklearn.datasets import make_moons

from torchspot import DASPOT
from torchspot.baselines import Supervised
from torchspot.exact import require_pot
from torchspot_paper.recipe import Call, Outcome, Rows

EXPERIMENT, RUNS, ROWS = "tabular", 3, 1000
ANGLES = (10, 20, 30, 40, 50, 60, 70, 80)
SHIFT = "covariate shift"
_SOURCE_STEPS = 1500

Labelled = tuple[Float[np.ndarray, "rows 2"], Int[np.ndarray, " rows"]]


@dataclass(frozen=True)
class Setting:
    """A task and a method."""

    task: str
    method: str

    def __str__(self) -> str:
        return f"{self.task}/{self.method}"


@dataclass(frozen=True)
class Domains:
    """Samples with labels: of the source, of the target, and others of the target to judge by."""

    source: Labelled
    target: Labelled
    test: Labelled


def settings(quick: bool) -> list[Setting]:
    """Every method on every task."""
    tasks = (f"moons {ANGLES[1]}",) if quick else (*(f"moons {angle}" for angle in ANGLES), SHIFT)
    return [Setting(task, method) for task in tasks for method in METHODS]


def run(call: Call, setting: Setting) -> list[Outcome]:
    """Fits with several seeds, of data and of everything else, and judges by target samples that were not seen."""
    started = time.perf_counter()
    made = [_fitted(call, setting, seed) for seed in range(call.runs(RUNS, quick=1))]
    right = [accuracy for accuracy, _ in made]
    metrics = {"accuracy_last": statistics.fmean(right), "accuracy_worst_seed": min(right)}
    conflicts = [conflict for _, conflict in made if conflict is not None]
    if conflicts:
        metrics |= {"conflict": statistics.fmean(conflicts), "warned": statistics.fmean(c > 0.1 for c in conflicts)}
    facts = {"task": setting.task, "method": setting.method, "preset": "default"}
    return [Outcome(facts, metrics, len(made), (time.perf_counter() - started) / len(made))]


def draw(rows: Rows, file: Path) -> None:
    """Accuracy against the angle, method by method."""
    figure, axes = plt.subplots(figsize=(5, 3.6), layout="constrained")
    for method in METHODS:
        mine = [r for r in rows if r["setting"]["method"] == method and r["setting"]["task"].startswith("moons")]
        means = {_angle(r): r["value"] for r in mine if r["metric"] == "accuracy_last"}
        worst = {_angle(r): r["value"] for r in mine if r["metric"] == "accuracy_worst_seed"}
        angles = sorted(means)
        (line,) = axes.plot(angles, [means[a] for a in angles], marker=".", linewidth=1, label=method)
        axes.fill_between(
            angles, [worst[a] for a in angles], [means[a] for a in angles], color=line.get_color(), alpha=0.2
        )
    axes.set(xlabel="degrees that the target is turned by", ylabel="accuracy (band: down to the worst seed)")
    axes.legend(fontsize=7)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def domains(task: str, seed: int) -> Domains:
    """Moons, the target turned about the middle; or points of two Gaussians with one rule for the label."""
    rng = np.random.default_rng(seed)
    if task != SHIFT:
        angle = np.deg2rad(float(task.split()[1]))
        return Domains(*(_moons(rng, turned) for turned in (0.0, angle, angle)))
    target = ((0.9, 0.3), 0.7)
    return Domains(*(_points(rng, *law) for law in (((-0.7, 0.0), 0.8), target, target)))


def _moons(rng: np.random.Generator, angle: float) -> Labelled:
    x, labels = make_moons(ROWS, noise=0.05, random_state=int(rng.integers(2**31)))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    middle = np.array([0.5, 0.25])
    return (x - middle) @ turn.T + middle, labels


def _points(rng: np.random.Generator, mean: tuple[float, float], spread: float) -> Labelled:
    x = rng.normal(mean, spread, size=(ROWS, 2))
    return x, (x[:, 1] > np.sin(2 * x[:, 0])).astype(int)


def _fitted(call: Call, setting: Setting, seed: int) -> tuple[float, float | None]:
    """Accuracy on the target; and of DASPOT how much it contradicts the source."""
    data = domains(setting.task, seed)
    learned = METHODS[setting.method](call, data, seed)
    return learned.score(*data.test), getattr(learned, "conflict_", None)


def _daspot(call: Call, data: Domains, seed: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        daspot = DASPOT(steps=20 if call.quick else None, seed=seed, engine=call.engine())
        return daspot.fit(*data.source, data.target[0])


def _supervised(call: Call, labelled: Labelled, seed: int) -> Any:
    return Supervised(steps=20 if call.quick else _SOURCE_STEPS, seed=seed, engine=call.engine()).fit(*labelled)


def _mapped(name: str, **own: float) -> Callable[[Call, Domains, int], Any]:
    """One of POT's mappings of the source, and a classifier of what it gives."""

    def fitted(call: Call, data: Domains, seed: int) -> Any:
        mapping = getattr(require_pot().da, name)(**own)
        with warnings.catch_warnings():  # POT says where it stops before it has converged
            warnings.simplefilter("ignore", UserWarning)
            mapping.fit(Xs=data.source[0], ys=data.source[1], Xt=data.target[0])
            mapped = mapping.transform(Xs=data.source[0])
        return _supervised(call, (mapped, data.source[1]), seed)

    return fitted


METHODS: dict[str, Callable[[Call, Domains, int], Any]] = {
    "daspot": _daspot,
    "source-only": lambda call, data, seed: _supervised(call, data.source, seed),
    "emd": _mapped("EMDTransport"),
    "sinkhorn": _mapped("SinkhornTransport", reg_e=0.05),
    "sinkhorn by class": _mapped("SinkhornLpl1Transport", reg_e=0.05, reg_cl=0.1),
    "linear": _mapped("LinearTransport"),
    "oracle": lambda call, data, seed: _supervised(call, data.target, seed),
}


def _angle(row: dict[str, Any]) -> float:
    return float(row["setting"]["task"].split()[1])
