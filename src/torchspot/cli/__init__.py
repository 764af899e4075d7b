"""The command line: `torchspot fit`, `sample`, `transport`, `evaluate`, `density`, `adapt`, `predict` and `demo`."""

__all__ = ["app", "main"]

import json
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from torch import Tensor

from torchspot import plans, storage
from torchspot.cli.adaptation import adapt, predict
from torchspot.cli.consoles import console, problems, say
from torchspot.cli.drawings import draw_density
from torchspot.cli.fitting import demo, fit
from torchspot.cli.pictures import check_folder_for_pictures, opened, points_at, write_pictures
from torchspot.cli.points import GRID, SAMPLE_TYPES, Grid, rows_of, writer
from torchspot.cli.processes import is_needed
from torchspot.cli.runs import load_plan, load_to_draw, load_to_move, recorded_size
from torchspot.cli.tables import result_table
from torchspot.data.points import all_rows
from torchspot.errors import InvalidArgument, TorchspotError
from torchspot.evaluation import Certificate, TooFewRows, audit, certify
from torchspot.exact import MissingPOT
from torchspot.plans import DensityPlan, PooledPlan, PushforwardPlan
from torchspot.plots import plot_evaluation

app = typer.Typer(
    help="Large-scale optimal transport: learn a plan between data sets, draw pairs from it, judge it.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command in (fit, demo, adapt, predict):
    app.command()(command)


@app.command()
def sample(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or a plan file.")],
    out: Annotated[
        Path, typer.Option(help=f"File for the samples: {SAMPLE_TYPES}; for pictures also a new folder (of PNG files).")
    ],
    n: Annotated[int, typer.Option("-n", help="How many joint samples.")] = 1000,
    seed: Annotated[int | None, typer.Option(help="For the same samples again.")] = None,
) -> None:
    """Draw joint samples from a fitted plan: row k of all marginals belongs together.

    Example: [bold]torchspot sample runs/cells -n 100000 --out pairs.parquet[/bold]
    """
    write = writer(out) if out.suffix else None
    plan = load_to_draw(run)
    if plan.of_pictures and write is None:
        check_folder_for_pictures(out, plan.shapes)
        write_pictures(out, plan.sample(n, seed))
        console.print(
            escape(f"{n} pairs of pictures are in {out}: those of one name in 1/, 2/, … belong together."),
            soft_wrap=True,
        )
        return
    write = write or writer(out)
    samples = plan.sample(n, seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    with storage.replacing(out) as temporary:
        write(temporary, samples, {})
    console.print(escape(f"{n} joint samples are in {out}."), soft_wrap=True)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or a plan file.")],
    sources: Annotated[list[Path], typer.Argument(help="The data sets, in the order of the fit.")],
    out: Annotated[Path | None, typer.Option(help="JSON file; evaluation.json in the run's folder by default.")] = None,
    confidence: Annotated[float, typer.Option(help="Of the interval for the optimal cost.")] = 0.95,
    truth: Annotated[float | None, typer.Option(help="The optimal cost, where it is known.")] = None,
    certificate: Annotated[
        bool, typer.Option(help="Bound the optimal cost, which takes about a minute; needs POT.")
    ] = True,
) -> None:
    """Judge a plan: an interval for the optimal cost, and each marginal beside its noise floor, on rows not trained on.

    Example: [bold]torchspot evaluate runs/cells before.parquet after.parquet[/bold]
    """
    data, notes = opened(sources, *recorded_size(run))
    say(notes)
    plan = load_plan(run, data)
    judged = audit(plan, *data)
    certified = _certify(plan, data, confidence) if certificate else None
    file = out or (run if run.is_dir() else run.parent) / "evaluation.json"
    spread = plan.spread() if isinstance(plan, PooledPlan) else None
    bounds = None if certified is None else certified.as_dict()
    numbers = judged.as_dict() | {"spread": spread, "certificate": bounds, "truth": truth}
    with storage.replacing(file) as temporary:
        temporary.write_text(json.dumps(numbers, indent=2) + "\n")
    picture = plot_evaluation(judged, file.with_suffix(".png"), certificate=certified, truth=truth)
    console.print(result_table(plan, judged, truth, certified))
    console.print(escape(f"The numbers are in {file}, the picture is {picture}."), soft_wrap=True)


@app.command()
def transport(
    run: Annotated[Path, typer.Argument(help="Folder of a run with --map, or its plan file.")],
    points: Annotated[
        Path, typer.Argument(help="The points to move, one a row: .npy, .npz, .csv, .parquet, or a folder of pictures.")
    ],
    out: Annotated[Path, typer.Option(help=f"File for their partners: {SAMPLE_TYPES}.")],
    n: Annotated[int, typer.Option("-n", help="Partners of each point, drawn from the plan.")] = 1,
    mean: Annotated[bool, typer.Option("--mean", help="The mean partner of each point instead of a draw.")] = False,
    start: Annotated[int, typer.Option(help="The data set that the points belong to: 1, 2, …")] = 1,
    seed: Annotated[int | None, typer.Option(help="For the same draws again.")] = None,
) -> None:
    """Move points of your own: their partners under a fitted plan, row by row.

    Example: [bold]torchspot transport runs/cells new.parquet --out moved.parquet[/bold]
    """
    write = writer(out) if out.suffix else None
    if mean and n > 1:
        raise InvalidArgument("--mean gives one partner of each point: leave out -n.")
    plan = load_to_move(run, start)
    if plan.of_pictures and write is None:
        check_folder_for_pictures(out, plan.shapes)
    else:
        write = write or writer(out)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        given = all_rows(points_at(points, *recorded_size(run)))
        if given.shape[1:] != plan.shapes[start - 1]:
            raise InvalidArgument(
                f"{points} has rows of shape {tuple(given.shape[1:])}, and data set {start} of the fit had "
                f"{plan.shapes[start - 1]}. Give the same columns in the same order."
            )
        made = (
            plan.barycentric_map(given, start=start - 1)
            if mean
            else plan.transport(given, n, start=start - 1, seed=seed)
        )
    others = [k for k in range(1, len(plan.shapes) + 1) if k != start]
    parts = (made,) if isinstance(made, Tensor) else made
    rows = {} if n == 1 else {"row": np.repeat(np.arange(len(given)), n)}
    moved = tuple(x if n == 1 else x.flatten(0, 1) for x in parts)
    if write is None:
        write_pictures(out, moved, others)
    else:
        with storage.replacing(out) as temporary:
            write(temporary, moved, rows, others)
    say([str(warning.message) for warning in said])
    console.print(escape(f"The partners of {len(given)} points are in {out}."), soft_wrap=True)


@app.command()
def density(
    run: Annotated[Path, typer.Argument(help="Folder of a run with --epsilon, or its plan file.")],
    grid: Annotated[
        str,
        typer.Option(
            help="Points along each coordinate (100 by default), or low:high:points for every one, with commas between."
        ),
    ] = "",
    at: Annotated[
        list[Path] | None, typer.Option(help="Instead of a grid: the rows of these files, one --at for each marginal.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help=f"File: {SAMPLE_TYPES}; density.parquet in the run's folder by default.")
    ] = None,
) -> None:
    """Tabulate the density of an entropic plan, and draw it where both marginals are numbers.

    Example: [bold]torchspot density runs/wages --grid=-3:3:200,-1:5:200 --out density.csv[/bold]
    """
    plan = plans.load(run)
    if not (isinstance(plan, DensityPlan) or (isinstance(plan, PooledPlan) and plan.has_density)):
        raise InvalidArgument(f"the plan in {run} has no density. Fit one that has: torchspot fit … --epsilon 1.")
    file = out or (run if run.is_dir() else run.parent) / "density.parquet"
    write = writer(file)
    if at and grid:
        raise InvalidArgument("give either --grid or --at, not both.")
    lines = None if at else Grid.over(plan, grid or GRID)
    samples = rows_of(plan, at or []) if lines is None else lines.points(plan.shapes)
    with console.status(f"density of {len(samples[0])} points"):
        log_density = plan.log_density(*samples).cpu().numpy()
    with storage.replacing(file) as temporary:
        write(temporary, samples, {"log_density": log_density, "density": np.exp(log_density)})
    said = f"The log-density of {len(log_density)} points is in {file}"
    if lines is not None:
        said += f"; the grid holds {np.exp(log_density).sum() * lines.cell:.4f} of the plan"
    if lines is not None and plan.shapes == ((1,), (1,)):
        said += f", drawn in {draw_density(plan, lines, log_density, file.with_suffix('.png'))}"
    console.print(escape(f"{said}."), soft_wrap=True)


def main() -> None:
    """Runs the command line. Exit codes: 0 done, 1 the run failed or was stopped, 2 bad input."""
    if not is_needed(sys.argv[1:]):
        return
    try:
        app()
    except InvalidArgument as error:
        problems.print(f"[bold red]Error:[/bold red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except TorchspotError as error:
        problems.print(f"[bold red]Failed:[/bold red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            raise
        problems.print(f"[bold red]Failed:[/bold red] {escape(f'{error.filename}: {error.strerror}')}", soft_wrap=True)
        sys.exit(1)


def _certify(plan: PushforwardPlan | PooledPlan, sources: list[Any], confidence: float) -> Certificate | None:
    """The certificate, with a line that says what is being done; None, and why, without POT or with too few rows."""
    with console.status("certificate") as status:
        try:
            return certify(
                plan, *sources, confidence=confidence, progress=lambda what, share: status.update(f"{what} {share:.0%}")
            )
        except (MissingPOT, TooFewRows) as error:
            problems.print(escape(f"No certificate: {error}"), soft_wrap=True)
            return None
