"""The folder of a run: whose it is, and what may be in it."""

__all__ = ["LAUNCHES", "RECORD", "claim", "clear_demo"]

import json
from pathlib import Path
from typing import Any

from torchspot import storage
from torchspot.errors import InvalidArgument

RECORD = "run.json"
LAUNCHES = "launches"
"""In the record: which launches of torchrun began the run, if any did, one on each machine; not compared."""
_RUN_FILES = {
    RECORD,
    "plan.safetensors",
    "classifier.safetensors",
    "checkpoint.safetensors",
    "history.jsonl",
    "pairs.png",
    "convergence.png",
    "evaluation.json",
    "evaluation.png",
    "density.png",
    "density.parquet",
    "barycenter.png",
    "sheet.png",
    "labels.png",
}


def claim(out: Path, options: dict[str, Any], resume: bool) -> None:
    """Makes the folder this run's own, or makes sure that it already is."""
    if out.exists() and not out.is_dir():
        raise InvalidArgument(f"{out} is a file. Give a folder with --out.")
    record = out / RECORD
    for half_written in (file for name in _RUN_FILES for file in out.glob(f".{name}.*.part")):
        half_written.unlink()
    held = {file.name for file in out.iterdir()} if out.is_dir() else set()
    if held <= {RECORD} and not resume:
        with storage.replacing(record) as temporary:
            temporary.write_text(json.dumps(options, indent=2) + "\n")
        return
    if not resume:
        if RECORD not in held:
            raise InvalidArgument(f"{out} already holds other files. Give another folder with --out.")
        raise InvalidArgument(
            f"{out} already holds another run. Give another folder with --out, or go on with the one there: --resume."
        )
    if RECORD not in held:
        raise InvalidArgument(f"{out} holds no run to resume. Give the folder of one, or leave out --resume.")
    before = json.loads(record.read_text())
    for name in sorted({*before, *options} - {LAUNCHES}):
        if (before.get(name) or None) != (options.get(name) or None):
            raise InvalidArgument(
                f"the run in {out} was begun with {name} = {before.get(name)!r}, not {options.get(name)!r}. "
                "Resume with the same options, or start a new run in another folder."
            )


def clear_demo(out: Path) -> None:
    """Removes an earlier demo, if the folder holds that and nothing else."""
    record = out / RECORD
    if record.exists() and json.loads(record.read_text()).get("demo"):
        files = [file for file in out.iterdir() if not file.name.endswith(".part")]
        if {file.name for file in files} <= _RUN_FILES:
            for file in files:
                file.unlink()
