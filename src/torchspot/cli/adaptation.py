"""Domain adaptation on the command line: `torchspot adapt` and `torchspot predict`."""

__all__ = ["adapt", "predict", "read_labels"]

import json
import shlex
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import typer
from rich.markup import escape
from rich.table import Table

from torchspot import storage
from torchspot.cli.consoles import console, say
from torchspot.cli.folders import RECORD
from torchspot.cli.options import choice
from torchspot.cli.pictures import opened, points_at
from torchspot.cli.processes import claim_together, say_how_to_go_on, with_others
from torchspot.cli.runs import recorded_size
from torchspot.data.sources import as_sampler, column_names
from torchspot.errors import InvalidArgument
from torchspot.estimators import DASPOT, presets
from torchspot.networks.convolutional import are_pictures
from torchspot.objectives.teacher import SOURCE, TARGET
from torchspot.plans.classifier import classifier_file, load_classifier
from torchspot.plots import plot_labels, plot_sheet, unit_range
from torchspot.random import Key, generator
from torchspot.training.callbacks import Checkpoint, Progress
from torchspot.training.engine import choose_engine
from torchspot.training.ranks import ranks_of

_PRESETS: dict[str, Callable[[], presets.AdaptationPreset | None]] = {
    "default": lambda: None,
    "paper": presets.adaptation_paper,
    "reference": presets.adaptation_reference,
}
_SHOWN, _ON_SHEET = 1000, 64
_LABEL_FILES = ".npy, .npz, .csv, .parquet"


def adapt(
    source: Annotated[Path, typer.Argument(help=f"Source samples: {_LABEL_FILES}, or a folder of pictures.")],
    labels: Annotated[Path, typer.Argument(help=f"One label for each, numbers or text: {_LABEL_FILES} of one column.")],
    target: Annotated[Path, typer.Argument(help="Target samples, without labels.")],
    out: Annotated[Path, typer.Option(help="Folder for the run.")],
    size: Annotated[
        int | None, typer.Option(help="Bring the pictures of both folders to so many pixels in height and width.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Generator steps; by default from the data.")] = None,
    batch: Annotated[int | None, typer.Option(help="Samples of each domain a step.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")] = "auto",
    preset: Annotated[str, typer.Option(help=f"Recipe: {', '.join(_PRESETS)}.")] = "default",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
) -> None:
    """Learn to label target samples from labelled source samples.

    Example: [bold]torchspot adapt old.parquet old_labels.csv new.parquet --out runs/new[/bold]
    """
    options = {
        "sources": [str(path.resolve()) for path in (source, target)],
        "labels": str(labels.resolve()),
        "steps": steps,
        "batch": batch,
        "seed": seed,
        "preset": preset,
        "size": size,
    }
    columns = _check_columns(column_names(source), target)
    options |= {"columns": columns} if columns else {}
    recipe = choice("preset", preset, _PRESETS)()
    known = read_labels(labels)
    engine = with_others(choose_engine(device))
    claim_together(out, options, resume, ranks_of(engine))
    data, notes = opened((source, target), size, skip_corrupt=False)
    say(notes)
    pictures = are_pictures([ranks_of(engine).in_turn(lambda: as_sampler(data[1]).shape)])
    daspot = DASPOT(
        steps=steps,
        batch_size=batch,
        preset=recipe,
        seed=seed,
        engine=with_others(choose_engine(device, pictures=True)) if pictures else engine,
        callbacks=[Progress(console), Checkpoint(out)],
    )
    _fit(daspot, data[0], known, data[1], out)


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run of `adapt`, or its classifier file.")],
    samples: Annotated[Path, typer.Argument(help=f"Target samples: {_LABEL_FILES}, or a folder of pictures.")],
    out: Annotated[Path, typer.Option(help="File for their labels and probabilities: .csv, .parquet or .npz.")],
    as_source: Annotated[
        bool, typer.Option("--as-source", help="By the classifier of the source: right where only frequencies differ.")
    ] = False,
) -> None:
    """Label target samples with a fitted classifier.

    Example: [bold]torchspot predict runs/new more.parquet --out labels.csv[/bold]
    """
    write = choice("file type of --out", out.suffix.lower(), _WRITERS)
    if (run / RECORD).exists():
        if not classifier_file(run).exists():
            raise InvalidArgument(f"the run in {run} has not ended: go on with torchspot adapt … --out {run} --resume.")
        _check_columns(json.loads((run / RECORD).read_text()).get("columns") or [], samples)
    classifier = load_classifier(run).of_domain(SOURCE if as_source else TARGET)
    probability = classifier.predict_proba(points_at(samples, *recorded_size(run)))
    said = classifier.classes[probability.argmax(1)]
    out.parent.mkdir(parents=True, exist_ok=True)
    with storage.replacing(out) as temporary:
        write(temporary, {"label": said, "probability": probability.max(1)})
    console.print(escape(f"The labels of {len(said)} samples are in {out}."), soft_wrap=True)


def read_labels(file: Path) -> np.ndarray:
    """The only column of a file, numbers or text."""
    if not file.is_file():
        raise InvalidArgument(f"there is no file {file} with labels. Check the path.")
    try:
        match file.suffix.lower():
            case ".npy":
                return np.load(file, allow_pickle=False)
            case ".npz":
                return _only(dict(np.load(file, allow_pickle=False)), file)
            case ".csv":
                gaps = pa_csv.ConvertOptions(strings_can_be_null=True)
                return _column(pa_csv.read_csv(file, convert_options=gaps), file)
            case ".parquet":
                return _column(pq.read_table(file), file)
    except (OSError, ValueError, pa.ArrowInvalid) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(f"the labels in {file} cannot be read ({error}).") from error
    raise InvalidArgument(f"labels are read from {_LABEL_FILES}, and {file.name} is none of them.")


def _check_columns(known: list[str], file: Path) -> list[str]:
    """The names, if the file has the same in the same order, or none."""
    names = column_names(file)
    if known and names and known != names:
        raise InvalidArgument(
            f"{file} has the columns {', '.join(names)}, and the source {', '.join(known)}. Columns go by their place: "
            "give both the same ones in the same order."
        )
    return known


def _column(table: pa.Table, file: Path) -> np.ndarray:
    return _only({name: table[name].to_numpy() for name in table.column_names}, file)


def _only(columns: dict[str, np.ndarray], file: Path) -> np.ndarray:
    if len(columns) != 1:
        raise InvalidArgument(
            f"{file} has {len(columns)} columns ({', '.join(columns)}), and labels are one. Write that one to a file."
        )
    return next(iter(columns.values()))


def _fit(daspot: DASPOT, source: Any, labels: np.ndarray, target: Any, out: Path) -> None:
    """Fits in the folder, saves classifier and pictures, and shows the result; on Ctrl-C says how to go on."""
    started = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", UserWarning)
            daspot.fit(source, labels, target, resume=out)
    except KeyboardInterrupt as stop:
        say_how_to_go_on(stop, out, ranks_of(daspot.engine))
        raise typer.Exit(1) from stop
    if ranks_of(daspot.engine).rank > 0:
        return
    say([str(warning.message) for warning in said])
    daspot.classifier_.save(out)
    files = ["classifier.safetensors", "history.jsonl", _draw(daspot, (source, target), out)]
    last = daspot.history_[-1]
    table = Table(show_header=False)
    table.add_row("classes", escape(", ".join(map(str, daspot.classes_[:20]))))
    table.add_row("predicted in the target", ", ".join(f"{share:.1%}" for share in daspot.target_shares_[:20]))
    table.add_row("accuracy on source samples (trained on)", f"{last['source_accuracy']:.1%}")
    table.add_row("mean confidence on target samples", f"{last['target_confidence']:.1%}")
    table.add_row("generated pairs with one label", f"{last['pairs_agree']:.1%}")
    table.add_row("time", f"{time.perf_counter() - started:.0f} s")
    table.add_row("files", escape(f"{out}/: {', '.join(files)}"))
    console.print(table)
    again = shlex.join(["torchspot", "predict", str(out), "samples.parquet", "--out", "labels.csv"])
    said_last = (
        f"How right labels are cannot be known without some of the target's own.\nLabel more samples:\n  {again}"
    )
    console.print(escape(said_last), soft_wrap=True)


def _draw(daspot: DASPOT, sources: tuple[Any, Any], out: Path) -> str:
    """Generated pairs, of pictures; samples of both domains with what is predicted for them, of vectors."""
    if daspot.plan_.of_pictures:
        x, y, _ = daspot.sample(_ON_SHEET, seed=0)
        return plot_sheet(unit_range((x, y)), out / "sheet.png").name
    opened_again = [as_sampler(source) for source in sources]
    x, y = (s.draw(_SHOWN, generator(Key(0, "shown"), s.device)).cpu() for s in opened_again)
    said = (daspot.source_classifier_.predict(x), daspot.predict(y))
    return plot_labels((x, y), said, out / "labels.png", titles=("source", "target, predicted")).name


def _write_npz(file: Path, columns: dict[str, np.ndarray]) -> None:
    with file.open("wb") as stream:
        np.savez_compressed(stream, label=columns["label"], probability=columns["probability"])


_WRITERS: dict[str, Callable[[Path, dict[str, np.ndarray]], None]] = {
    ".csv": lambda file, columns: pa_csv.write_csv(pa.table(columns), file),
    ".parquet": lambda file, columns: pq.write_table(pa.table(columns), file),
    ".npz": _write_npz,
}
