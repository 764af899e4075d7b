"""Runs as commands find them: the plan in a folder, with the data it starts from where it needs some."""

__all__ = ["load_plan", "load_to_draw", "load_to_move", "recorded_size"]

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchspot import plans
from torchspot.cli.folders import RECORD
from torchspot.cli.pictures import opened
from torchspot.errors import InvalidArgument
from torchspot.plans import ConditionalPlan, PooledPlan, PushforwardPlan


def load_plan(run: Path, sources: Sequence[Any]) -> PushforwardPlan | PooledPlan:
    """The plan, drawing from those of its data sets that it starts from."""
    plan = plans.load(run)
    at = _anchors(plan)
    if not at or max(at) >= len(sources):
        return plan
    return plans.load(run, source=tuple(sources[a] for a in at))


def load_to_draw(run: Path) -> PushforwardPlan | PooledPlan:
    """The plan, drawing from the data sets that the run was fitted with, where it starts from them."""
    plan = plans.load(run)
    if not (at := _anchors(plan)):
        return plan
    record = (run if run.is_dir() else run.parent) / RECORD
    recorded = _recorded(record) if record.exists() else []
    if len(recorded) <= max(at) or not all(recorded[a].exists() for a in at):
        raise InvalidArgument(
            f"the plan in {run} starts from rows of its data, which are not where the fit found them. "
            "Move points of your own instead: torchspot transport RUN points.parquet --out moved.parquet."
        )
    return load_plan(run, opened(recorded, *recorded_size(run))[0])


def recorded_size(run: Path) -> tuple[int | None, bool]:
    """The size that a run brought pictures to, and whether it left out those that cannot be read."""
    record = (run if run.is_dir() else run.parent) / RECORD
    try:
        options = json.loads(record.read_text()) if record.exists() else {}
        return options.get("size"), bool(options.get("skip_corrupt"))
    except (ValueError, AttributeError) as error:
        raise InvalidArgument(f"{record} is damaged: it does not say what the run was fitted with.") from error


def _recorded(record: Path) -> list[Path]:
    """The data sets that a run was fitted with."""
    try:
        return [Path(source) for source in json.loads(record.read_text())["sources"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"{record} is damaged: it does not say what the run was fitted with.") from error


def load_to_move(run: Path, start: int) -> ConditionalPlan | PooledPlan:
    """The plan, if it can move points of this data set, counted from 1."""
    plan = plans.load(run)
    at = _anchors(plan)
    if not isinstance(plan, ConditionalPlan | PooledPlan) or not at:
        raise InvalidArgument(
            f"the plan in {run} pairs samples of its own. Fit one that moves yours: torchspot fit … --map forward."
        )
    if not 1 <= start <= len(plan.shapes):
        raise InvalidArgument(f"the run has {len(plan.shapes)} data sets, counted from 1, and --start is {start}.")
    if start - 1 not in at:
        known = " and of ".join(f"data set {a + 1}" for a in at)
        raise InvalidArgument(
            f"the plan in {run} moves points of {known}, not of data set {start}. Fit one that does: torchspot fit … "
            "--map forward (from the first), backward (from the second) or both."
        )
    return plan


def _anchors(plan: PushforwardPlan | PooledPlan) -> tuple[int, ...]:
    first = plan.plans[0] if isinstance(plan, PooledPlan) else plan
    return first.latent.kind.at if isinstance(first, ConditionalPlan) else ()
