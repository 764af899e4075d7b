"""Adaptation of vectors: two moons turned further and further, and three other shifts, beside POT's mappings."""

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
_SOURCE_STEPS = 1500

Labelled = tuple[Float[np.ndarray, "rows dim"], Int[np.ndarray, " rows"]]


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
    tasks = (f"moons {ANGLES[1]}",) if quick else (*(f"moons {angle}" for angle in ANGLES), *OTHERS)
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
    """Of one of the tasks; moons are turned by the angle in its name, in degrees."""
    rng = np.random.default_rng(seed)
    if task in OTHERS:
        return OTHERS[task](rng)
    angle = np.deg2rad(float(task.split()[1]))
    return Domains(*(_moons(rng, turned) for turned in (0.0, angle, angle)))


def _covariate_shift(rng: np.random.Generator) -> Domains:
    """One rule for labels, other points."""
    target = ((0.9, 0.3), 0.7)
    return Domains(*(_points(rng, *law) for law in (((-0.7, 0.0), 0.8), target, target)))


def _linear_map(rng: np.random.Generator) -> Domains:
    """Five classes in ten dimensions, the target moved by a random affine map."""
    centres = 1.5 * rng.normal(size=(5, 10))
    matrix, shift = np.eye(10) + 0.3 * rng.normal(size=(10, 10)), 2 * rng.normal(size=10)
    source, target, test = (_clusters(rng, centres, np.full(5, 0.2)) for _ in range(3))
    return Domains(source, *((x @ matrix.T + shift, labels) for x, labels in (target, test)))


def _label_shift(rng: np.random.Generator) -> Domains:
    """Two classes, as frequent in the source and 4 : 1 in the target, which is also turned and moved a little."""
    centres, others = np.array([[0.0, 0.0], [3.0, 1.0]]), np.array([0.8, 0.2])
    source, target, test = (_clusters(rng, centres, shares) for shares in (np.full(2, 0.5), others, others))
    return Domains(source, *((x @ _turn(np.deg2rad(20)).T + 0.5, labels) for x, labels in (target, test)))


def _clusters(rng: np.random.Generator, centres: Float[np.ndarray, "classes dim"], shares: np.ndarray) -> Labelled:
    labels = rng.choice(len(centres), size=ROWS, p=shares)
    return centres[labels] + rng.normal(size=(ROWS, centres.shape[1])), labels


def _turn(angle: float) -> Float[np.ndarray, "2 2"]:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def _moons(rng: np.random.Generator, angle: float) -> Labelled:
    x, labels = make_moons(ROWS, noise=0.05, random_state=int(rng.integers(2**31)))
    middle = np.array([0.5, 0.25])
    return (x - middle) @ _turn(angle).T + middle, labels


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


OTHERS: dict[str, Callable[[np.random.Generator], Domains]] = {
    "linear map": _linear_map,
    "covariate shift": _covariate_shift,
    "label shift": _label_shift,
}
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
