"""What all experiments share: how they are called, and the rows they write."""

__all__ = [
    "LONGER",
    "Call",
    "Outcome",
    "Row",
    "Rows",
    "cost_errors",
    "errors_of",
    "marginals_beside_noise",
    "paper_networks",
    "read",
    "spot_presets",
    "store",
]

import json
import multiprocessing
import os
import statistics
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from torchspot import SPOT, engines, presets
from torchspot.discrepancies import sliced_w2
from torchspot.estimators.presets import Preset
from torchspot.storage import replacing
from torchspot.types import Engine, Plan
from torchspot_paper.problems import Points

Rows = Sequence[dict[str, Any]]
"""As they are stored."""

Run = Callable[["Call", Any], Iterable["Outcome"]]
"""One setting of an experiment; a later outcome of the same setting takes the place of an earlier one."""

LONGER: dict[str, Any] = {"width": 128, "batch_size": 2048, "steps": 20_000}
"""For laws in several pieces, which a wider network cuts apart more sharply."""


def _commit() -> str:
    """Of this file's checkout, with "-dirty" if code was changed since; "unknown" where there is none."""
    git = ["git", "-C", str(Path(__file__).parents[1])]

    def said(*arguments: str) -> str:
        return subprocess.run([*git, *arguments], capture_output=True, text=True, check=False).stdout.strip()

    try:
        commit = said("describe", "--always")
        return f"{commit}-dirty" if commit and said("status", "--porcelain", ".") else commit or "unknown"
    except OSError:
        return "unknown"


@dataclass(frozen=True)
class Row:
    """One number that was measured."""

    experiment: str
    setting: dict[str, Any]
    metric: str
    value: float
    seeds: int
    hardware: str
    commit: str
    seconds: float
    published: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """As it is stored: without what there is not."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Outcome:
    """What one setting gave: numbers by metric, and curves for the figure."""

    setting: dict[str, Any]
    metrics: dict[str, float]
    seeds: int
    seconds: float
    published: dict[str, float] = field(default_factory=dict)
    curves: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """How an experiment was called."""

    quick: bool = False
    """A few steps on little data, to see that everything runs."""
    seeds: int | None = None
    """Runs of each setting; None: as many as the experiment is meant to have."""
    device: str = "auto"
    out: Path = Path("results")
    jobs: int = 1
    """Settings that run at the same time, each in a process of its own."""
    only: str = ""
    """Settings whose name, between slashes, has this in it: `/2/` is width 2, `2` also width 32."""
    commit: str = field(default_factory=_commit)
    """Of the code that runs, looked up when it starts."""
    data: Path | None = None
    """Folder of the real data sets; None: the one that TORCHSPOT_DATA names (or, if quick, data that is made)."""

    def engine(self) -> Engine:
        """Where settings run."""
        return engines.choose_engine(self.device)

    @property
    def hardware(self) -> str:
        """In words."""
        device = self.engine().device
        return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{os.cpu_count()} CPU cores"

    def runs(self, meant: int, quick: int = 2) -> int:
        """How many of each setting."""
        return self.seeds or (quick if self.quick else meant)

    def asked(self, settings: Sequence[Any]) -> list[Any]:
        """Those of the settings that `only` names, and of settings with a seed so many as are asked for."""
        named = [setting for setting in settings if self.only in f"/{setting}/"]
        return [s for s in named if self.seeds is None or getattr(s, "seed", 0) < self.seeds]

    def outcomes(self, run: Run, settings: Sequence[Any]) -> Iterator[Outcome]:
        """What `run(call, setting)` gives for every setting, as they end.

        Raises:
            ExceptionGroup: at the end, if some settings failed; the others are not stopped by it.
        """
        failed = []
        for setting, result in (self._one_by_one if self.jobs == 1 else self._side_by_side)(run, settings):
            try:
                yield from result()
            except Exception as error:
                error.add_note(f"This was the setting {setting}.")
                failed.append(error)
        if failed:
            raise ExceptionGroup(f"{len(failed)} of {len(settings)} settings failed; the others are stored.", failed)

    def _one_by_one(self, run: Run, settings: Sequence[Any]) -> Iterator[tuple[Any, Callable[[], Iterable[Outcome]]]]:
        for setting in settings:
            yield setting, partial(run, self, setting)

    def _side_by_side(self, run: Run, settings: Sequence[Any]) -> Iterator[tuple[Any, Callable[[], Iterable[Outcome]]]]:
        with ProcessPoolExecutor(self.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            alone = replace(self, jobs=1)
            running = {pool.submit(_with_one_thread, run, alone, setting): setting for setting in settings}
            for done in as_completed(running):
                yield running[done], done.result

    def rows(self, experiment: str, outcome: Outcome) -> list[Row]:
        """An outcome as rows."""
        return [
            Row(
                experiment,
                outcome.setting,
                metric,
                value,
                outcome.seeds,
                self.hardware,
                self.commit,
                round(outcome.seconds, 1),
                outcome.published.get(metric),
            )
            for metric, value in outcome.metrics.items()
        ]

    def keep(self, experiment: str, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """Stores outcomes as they come, and passes them on."""
        for outcome in outcomes:
            store(self.out / f"{experiment}.jsonl", [row.as_dict() for row in self.rows(experiment, outcome)])
            if outcome.curves:
                curve = {"setting": outcome.setting, "metric": "curve", **outcome.curves}
                store(self.out / "curves" / f"{experiment}.jsonl", [curve])
            yield outcome


def errors_of(values: Sequence[float], truth: float) -> dict[str, float]:
    """Relative errors: of the mean of the runs, and of a run on average, in the median and at worst."""
    each = [abs(value / truth - 1) for value in values]
    return {
        "error_of_mean": abs(statistics.fmean(values) / truth - 1),
        "mean_run_error": statistics.fmean(each),
        "median_run_error": statistics.median(each),
        "worst_run_error": max(each),
    }


def cost_errors(spot: SPOT, truth: float) -> dict[str, float]:
    """Relative errors of E c: of a run on average, with its sign, and at worst; and of the plan before training."""
    each = [plan.expected_cost().value / truth - 1 for plan in spot.plans_]
    return {
        "error": statistics.fmean(map(abs, each)),
        "signed_error": statistics.fmean(each),
        "worst_error": max(map(abs, each)),
        "error_at_step_0": spot.history_[0]["cost"] / truth - 1,
    }


class Sampled(Protocol):
    """A problem that can be drawn from."""

    def sample(self, n: int, seed: int) -> tuple[Points, ...]:
        """n samples of each marginal, unpaired."""


def marginals_beside_noise(plans: Sequence[Plan], problem: Sampled, *, quick: bool) -> dict[str, float]:
    """Sliced W2 of the worst marginal of all runs from fresh samples of its law, and what two fresh samples show.

    Both on average over so many samples: of a mixture, parts have their shares by chance, and one pair of samples may
    be five times as near as another.
    """
    n, repeats = (1000, 2) if quick else (10_000, 8)
    fresh = [[torch.from_numpy(x) for x in problem.sample(n, 10**5 + k)] for k in range(2 * repeats)]
    data, others = fresh[:repeats], fresh[repeats:]
    floors = _mean_distances(data, others)
    pairs = [
        pair
        for plan in plans
        for pair in zip(_mean_distances(data, [plan.sample(n, seed=k) for k in range(repeats)]), floors, strict=True)
    ]
    value, floor = max(pairs, key=lambda pair: pair[0] / pair[1])
    return {"sliced_w2": value, "noise_floor": floor}


def _mean_distances(some: Sequence[Sequence[Tensor]], others: Sequence[Sequence[Tensor]]) -> list[float]:
    """Of each marginal, the mean sliced W2 of pairs of samples."""
    each = [
        [sliced_w2(x, y.double().cpu()) for x, y in zip(xs, ys, strict=True)]
        for xs, ys in zip(some, others, strict=True)
    ]
    return [statistics.fmean(distances) for distances in zip(*each, strict=True)]


def paper_networks(preset: Preset, width: int) -> Preset:
    """The recipe with the networks of section 5.1, from random weights: 2 hidden layers for G_i, 1 for λ_i."""
    return replace(preset, width=width, generator_depth=2, critic_depth=1, warm_start=False)


def spot_presets(learning_rate: float) -> dict[str, Preset]:
    """The recipes that are compared, by the names they have in results."""
    return {
        "spot": presets.default(learning_rate),
        "spot-paper": presets.paper(learning_rate),
        "spot-clipping": presets.clipping(learning_rate),
    }


def store(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Adds rows to a file of JSON lines, in place of all there were of the same settings."""
    new = {_identity(row) for row in rows}
    kept = [row for row in read(file) if _identity(row) not in new] if file.exists() else []
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in (*kept, *rows)))


def read(file: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in file.read_text().splitlines() if line]


def _identity(row: dict[str, Any]) -> str:
    """The setting; the number of steps is a fact, and may come from a timing."""
    return json.dumps({name: value for name, value in row["setting"].items() if name != "steps"}, sort_keys=True)


def _with_one_thread(run: Run, call: Call, setting: Any) -> list[Outcome]:
    torch.set_num_threads(1)
    return list(run(call, setting))
