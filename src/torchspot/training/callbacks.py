"""What may happen at logged steps: history, checkpoints, stopping, TensorBoard."""

__all__ = ["Checkpoint", "Divergence", "History", "Progress", "StopAtNoiseFloor", "StopOnPlateau", "TensorBoard"]

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from torchspot import storage
from torchspot.errors import Diverged, InvalidArgument, TorchspotError
from torchspot.training.checkpoint import checkpoint_file, save_checkpoint
from torchspot.training.loop import Training
from torchspot.types import Record

_FALLING = 0.9
"""A marginal error that falls below so much of what it was is still falling."""
_SHOWN = {"cost": ".5g", "marginal_error": ".3g", "target_confidence": ".3g"}
"""Numbers of a record that the bar shows, where they are there, and how."""
_SAID_EVERY = 30.0
"""Seconds between two lines of progress in a file."""
_SURE = 3.0
"""Deviations above its noise at which an estimate of W1 is taken for real."""


class History:
    """Keeps every record, and writes them as JSON lines where a file is given. The last says why the run stopped."""

    everywhere = True

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self.records: list[Record] = []

    def __call__(self, training: Training, record: Record) -> None:
        if training.stop_reason is not None:
            record["stopped"] = training.stop_reason
        self.records.append(record)
        if self.file is not None:
            with storage.replacing(self.file) as temporary:
                temporary.write_text("".join(json.dumps(r) + "\n" for r in self.records))

    def state_dict(self) -> dict[str, Any]:
        return {"records": self.records}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.records = list(state["records"])


class Divergence:
    """Stops the run with the step at which a number was first not finite, and where the last good state is."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def __call__(self, training: Training, record: Record) -> None:
        bad = training.first_bad_step()
        if bad is None:
            return
        step, player = bad
        saved = self.folder is not None and checkpoint_file(self.folder).exists()
        where = (
            f"The last good checkpoint is {checkpoint_file(self.folder)}."
            if saved and self.folder
            else "No checkpoint was kept."
        )
        raise Diverged(
            f"training diverged: the {player}'s loss or gradient was not finite at step {step}. {where} "
            "Try a smaller learning rate (preset=presets.default(learning_rate=…), of EntropicSPOT presets.entropic, "
            "of DASPOT presets.adaptation instead), and check that the cost is finite and has a gradient everywhere.",
            step,
        )


class Checkpoint:
    """Writes the whole state of the run into a folder every so many seconds, at the end, and on Ctrl-C."""

    def __init__(self, folder: str | Path, *, every_seconds: float = 10.0) -> None:
        if not every_seconds >= 0:
            raise InvalidArgument(f"every_seconds must be at least 0, and is {every_seconds}.")
        self.folder, self.every_seconds = Path(folder), every_seconds
        self.companions: tuple[Any, ...] = ()
        self._last = -math.inf

    def __call__(self, training: Training, record: Record) -> None:
        ended = training.step >= training.steps or training.stop_reason is not None
        if ended or not 0 <= training.seconds - self._last < self.every_seconds:
            self.interrupted(training)

    def interrupted(self, training: Training) -> None:
        """Saves now, unless the state is no longer worth keeping."""
        if training.first_bad_step() is not None:
            return
        self._last = training.seconds
        save_checkpoint(self.folder, training, self.companions)


class StopOnPlateau:
    """Ends the run when the held-out marginal error has not improved by `tolerance` (relative) for `patience` logs."""

    def __init__(self, *, patience: int = 10, tolerance: float = 0.01, metric: str = "marginal_error") -> None:
        self.patience, self.tolerance, self.metric = patience, tolerance, metric
        self.best, self.waited = math.inf, 0

    def __call__(self, training: Training, record: Record) -> None:
        if training.step == 0:
            self.best, self.waited = math.inf, 0
        if self.metric not in record:
            raise InvalidArgument(f"StopOnPlateau watches {self.metric!r}, and the log has {', '.join(record)}.")
        if record[self.metric] < self.best * (1 - self.tolerance):
            self.best, self.waited = record[self.metric], 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            training.stop(f"{self.metric} has not improved for {self.waited} logs")

    def state_dict(self) -> dict[str, Any]:
        return {"best": str(self.best), "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.waited = float(state["best"]), state["waited"]


class StopAtNoiseFloor:
    """Ends the run when there is nothing left to gain, and doubles η where the marginals are off.

    Whenever the marginal error has stopped falling (over two windows of `patience` logs), the plan as it stands is
    audited. If a marginal is off by more than `share` of the cost (the audit's estimate of W1, times the cost's
    Lipschitz constant), its η is doubled, at most `doublings` times. If energy distance and sliced W2 of all marginals
    are at their noise floors, and cost and objective have moved by less than `tolerance` (relative), in two audits
    running, the run winds down: a run cut off at a high learning rate would report too little, so the rates first go
    to 0 in a tenth of the planned steps.

        spot = SPOT(callbacks=[StopAtNoiseFloor(lambda plan: evaluation.audit(plan, X, Y))])

    Args:
        audit: from a plan to an `evaluation.Audit`; passed in, as training does not know how plans are judged.
        patience: logs in a window.
        tolerance: of cost and objective.
        share: of the cost that a marginal may be off by.
        doublings: of the η of one marginal.
    """

    def __init__(
        self,
        audit: Callable[[Any], Any],
        *,
        patience: int = 5,
        tolerance: float = 0.005,
        share: float = 0.01,
        doublings: int = 3,
    ) -> None:
        if patience < 1 or not tolerance > 0:
            raise InvalidArgument(
                f"patience must be at least 1 and tolerance above 0, and they are {patience} and {tolerance}."
            )
        self.audit, self.patience, self.tolerance, self.share = audit, patience, tolerance, share
        self.doublings = doublings
        self._run: Any = None
        self._window: list[tuple[float, ...]] = []
        self._sat = 0

    def begin(self, run: Any) -> None:
        """Called before the first step with the run, whose plan is judged and whose η is doubled."""
        self._run = run

    def __call__(self, training: Training, record: Record) -> None:
        if training.step == 0:
            self._window, self._sat = [], 0
        newest = (record["cost"], record["objective"], record["marginal_error"])
        self._window = [*self._window, newest][-2 * self.patience :]
        if training.winding_down is not None or len(self._window) < 2 * self.patience:
            return
        before, after = self._means()
        if after[2] < _FALLING * before[2]:
            return
        self._judge(training, record, still=self._still(before, after))

    def state_dict(self) -> dict[str, Any]:
        return {"window": [list(entry) for entry in self._window], "sat": self._sat}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._window, self._sat = [tuple(entry) for entry in state["window"]], state["sat"]

    def _judge(self, training: Training, record: Record, *, still: bool) -> None:
        judged = self.audit(self._run.plan())
        record["audit"] = [marginal.verdict for marginal in judged.marginals]
        changes = self._double(judged)
        sits = still and all(marginal.at_noise_floor for marginal in judged.marginals)
        self._window = self._window[self.patience :]
        self._sat = self._sat + 1 if sits else 0
        if changes:
            record["eta_changes"] = changes
            self._window, self._sat = [], 0
        elif self._sat >= 2:
            reason = "the marginals sit at their noise floors, and cost and objective have stopped moving"
            record["winding_down"] = reason
            training.wind_down(reason, max(1, training.planned // 10))

    def _means(self) -> tuple[list[float], list[float]]:
        """Of each number, in the window before and in the latest."""
        halves = self._window[: self.patience], self._window[self.patience :]
        before, after = ([sum(column) / len(half) for column in zip(*half, strict=True)] for half in halves)
        return before, after

    def _still(self, before: list[float], after: list[float]) -> bool:
        """Whether cost and objective moved little from one window to the next."""
        return max(abs(after[k] - before[k]) for k in range(2)) <= self.tolerance * abs(after[0])

    def _double(self, judged: Any) -> list[dict[str, Any]]:
        """Doubles η of the marginals that are off by more than their share of the cost."""
        changes = []
        for k, (marginal, steepness) in enumerate(zip(judged.marginals, self._run.lipschitz, strict=True)):
            off = marginal.w1_estimate
            cost = abs(judged.cost.value)
            too_far = off.excess > _SURE and off.value * steepness > self.share * cost
            if too_far and self._run.doublings[k] < self.doublings:
                eta = self._run.double(k)
                why = f"off by {off.value * steepness / cost:.1%} of the cost" if cost > 0 else "off, at a cost of 0"
                changes.append({"marginal": k + 1, "eta": eta, "why": why})
        return changes


class Progress:
    """A live bar: step, the first numbers of the log (cost and marginal error, say), steps per second, time left.

    Where that goes to a file instead, a line of it now and then.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console
        self._bar: Bar | None = None
        self._started = (0, 0.0)
        self._said = 0.0

    def __call__(self, training: Training, record: Record) -> None:
        if self._bar is None:
            self._open(training)
        assert self._bar is not None
        step, seconds = self._started
        rate = (training.step - step) / max(training.seconds - seconds, 1e-9)
        shown = [(name, form) for name, form in _SHOWN.items() if name in record]
        self._bar.update(
            self._bar.task_ids[0],
            completed=training.step,
            total=training.steps,
            about=" ".join(f"{name.replace('_', ' ')} {record[name]:{form}}" for name, form in shown),
            rate=f"{rate:.0f}",
        )
        console = self._bar.console
        if not console.is_terminal and not console.is_jupyter and training.seconds - self._said >= _SAID_EVERY:
            self._said = training.seconds
            console.print(self._bar.get_renderable())

    def close(self) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _open(self, training: Training) -> None:
        self._started, self._said = (training.step, training.seconds), training.seconds
        self._bar = Bar(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(bar_width=8),
            TextColumn("{task.fields[about]} {task.fields[rate]} steps/s"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=self.console,
        )
        self._bar.add_task("", total=training.steps, completed=training.step, about="", rate="-")
        self._bar.start()


class TensorBoard:
    """Writes every number of every record as a TensorBoard scalar."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise TorchspotError(
                "the TensorBoard callback needs tensorboard. Install it with: pip install 'torchspot[tensorboard]'"
            ) from error
        self._writer = SummaryWriter(str(folder))

    def __call__(self, training: Training, record: Record) -> None:
        for name, value in record.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name, value, training.step)

    def close(self) -> None:
        """Writes what is left."""
        self._writer.close()
