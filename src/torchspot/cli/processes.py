"""Commands that torchrun starts in several processes at once."""

__all__ = ["claim_together", "is_needed", "say_how_to_go_on", "with_others"]

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from torchspot.cli.consoles import console, problems
from torchspot.cli.folders import LAUNCHES, RECORD, claim
from torchspot.training.engine import Distributed
from torchspot.training.meeting import launch, launched, restarts
from torchspot.training.ranks import Alone, Ranks
from torchspot.types import Engine


def is_needed(arguments: Sequence[str]) -> bool:
    """Whether this process has anything to do: most commands are for the first of several."""
    return not launched() or int(os.environ["RANK"]) == 0 or arguments[:1] in (["fit"], ["adapt"])


def with_others(engine: Engine) -> Engine:
    """The engine, beside those of the processes that were started together; only the first of them prints results."""
    if not launched():
        return engine
    together = Distributed(engine)
    console.quiet = together.ranks.rank > 0
    return together


def claim_together(out: Path, options: dict[str, Any], resume: bool, ranks: Alone | Ranks) -> None:
    """The first process makes the folder this run's own. A run that torchrun starts again goes on where it stood.

    Each machine has a torchrun of its own, which counts only the restarts that it began; one of them may be new.
    """
    launches = sorted({one for one in ranks.gather(launch()) if one is not None})
    restarted = any(ranks.gather(restarts()))

    def claimed() -> None:
        record = out / RECORD
        begun_by = json.loads(record.read_text()).get(LAUNCHES, []) if record.exists() else []
        again = restarted and not set(begun_by).isdisjoint(launches)
        claim(out, options | {LAUNCHES: launches}, resume or again)

    ranks.lead(claimed)


def say_how_to_go_on(stop: KeyboardInterrupt, out: Path, ranks: Alone | Ranks) -> None:
    """Where a run was stopped, and the command that goes on with it; from the first process alone."""
    if ranks.rank > 0:
        return
    said = str(stop).capitalize() or "Stopped"
    again = _same_command()
    problems.print(escape(f"\n{said}. What was done is saved in {out}. Go on with:\n  {again}"), soft_wrap=True)


def _same_command() -> str:
    command = shlex.join(["torchspot", *(a for a in sys.argv[1:] if a != "--resume"), "--resume"])
    if not launched():
        return command
    everywhere, here = os.environ["WORLD_SIZE"], os.environ.get("LOCAL_WORLD_SIZE", "1")
    start = f"torchrun --nproc-per-node={here}" if everywhere == here else "torchrun (on each machine, as before)"
    return f"{start} -m {command}"
