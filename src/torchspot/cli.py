"""The command line: `torchspot fit`, `sample`, `evaluate` and `demo`. Here strings become objects."""

__all__ = ["app", "main"]

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import typer
from rich.console import Console
from rich.table import Table

from torchspot import costs, plans, storage
from torchspot.errors import InvalidArgument, TorchspotError
from torchspot.estimators import SPOT, presets
from torchspot.evaluation import Audit, audit
from torchspot.plans import PushforwardPlan
from torchspot.plots import plot_convergence, plot_pairs
from torchspot.training.callbacks import Checkpoint, Progress
from torchspot.training.engine import Eager
from torchspot.types import Cost, Samples

app = typer.Typer(
    help="Large-scale optimal transport: learn a plan between data sets, draw pairs from it, judge it.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
console = Console()
problems = Console(stderr=True)

_PRESETS: dict[str, Callable[[], presets.Preset]] = {
    "default": presets.default,
    "paper": presets.paper,
    "clipping": presets.clipping,
}
_SAMPLE_TYPES = ".npz, .parquet or .csv"
_PICTURED = 300


@app.command()
def fit(
    sources: Annotated[
        list[Path], typer.Argument(help="Two or more data sets: .npy, .npz, .csv, .parquet, or a folder.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the run.")],
    cost: Annotated[
        str,
        typer.Option(help="euclidean, squared_euclidean, cosine, or p_norm:P. Summed over pairs for three or more."),
    ] = "euclidean",
    steps: Annotated[int | None, typer.Option(help="Generator steps; by default from the data's dimension.")] = None,
    batch: Annotated[int | None, typer.Option(help="Samples a step; by default from the data's dimension.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")] = "auto",
    preset: Annotated[str, typer.Option(help=f"Recipe: {', '.join(_PRESETS)}.")] = "default",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between two saved states.")] = 10.0,
) -> None:
    """Learn a plan between two or more data sets.

    Example: [bold]torchspot fit before.parquet after.parquet --cost squared_euclidean --out runs/cells[/bold]

    Stopped by Ctrl-C or by anything else? The same command with [bold]--resume[/bold] goes on to the same result.
    """
    options = {
        "sources": [str(source.resolve()) for source in sources],
        "cost": cost,
        "steps": steps,
        "batch": batch,
        "seed": seed,
        "preset": preset,
    }
    spot = SPOT(
        cost=_cost(cost, len(sources)),
        steps=steps,
        batch_size=batch,
        preset=_choice("preset", preset, _PRESETS)(),
        seed=seed,
        engine=Eager(device),
        callbacks=[Progress(console), Checkpoint(out, every_seconds=checkpoint_every)],
    )
    _claim(out, options, resume)
    seconds = _fit(spot, list(sources), out)
    _report(spot.plan_, audit(spot.plan_, *sources), out, seconds=seconds)


@app.command()
def sample(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or a plan file.")],
    out: Annotated[Path, typer.Option(help=f"File for the samples: {_SAMPLE_TYPES}.")],
    n: Annotated[int, typer.Option("-n", help="How many joint samples.")] = 1000,
    seed: Annotated[int | None, typer.Option(help="For the same samples again.")] = None,
) -> None:
    """Draw joint samples from a fitted plan: row k of all marginals belongs together.

    Example: [bold]torchspot sample runs/cells -n 100000 --out pairs.parquet[/bold]
    """
    writers = {".npz": _write_npz, ".parquet": _write_parquet, ".csv": _write_csv}
    write = _choice("type of file", out.suffix, writers)
    samples = plans.load(run).sample(n, seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    with storage.replacing(out) as temporary:
        write(temporary, samples)
    console.print(f"{n} joint samples are in {out}.")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or a plan file.")],
    sources: Annotated[list[Path], typer.Argument(help="The data sets, in the order of the fit.")],
    out: Annotated[Path | None, typer.Option(help="JSON file; evaluation.json in the run's folder by default.")] = None,
) -> None:
    """Judge a plan: its cost, and each marginal beside its noise floor, on rows that training did not see.

    Example: [bold]torchspot evaluate runs/cells before.parquet after.parquet[/bold]
    """
    plan = plans.load(run)
    judged = audit(plan, *sources)
    file = out or (run if run.is_dir() else run.parent) / "evaluation.json"
    with storage.replacing(file) as temporary:
        temporary.write_text(json.dumps(judged.as_dict(), indent=2) + "\n")
    console.print(_table(plan, judged))
    console.print(f"The numbers are in {file}.")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run.")] = Path("runs/demo"),
    n: Annotated[int, typer.Option(help="Samples of each Gaussian.")] = 100_000,
    steps: Annotated[int | None, typer.Option(help="Generator steps.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
) -> None:
    """Solve section 5.1 of the paper: two Gaussians in the plane, five apart, Euclidean cost. The truth is 5."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal((-2.5, 0), 1, size=(n, 2)), rng.normal((2.5, 0), 1, size=(n, 2))
    console.print(
        f"Two Gaussians in the plane, means (-2.5, 0) and (2.5, 0), {n} samples of each.\n"
        "What is the least mean distance that moves one onto the other? (The truth is 5.)\n"
    )
    spot = SPOT(steps=steps, seed=seed, callbacks=[Progress(console)])
    _clear_demo(out)
    _claim(out, {"demo": True, "n": n, "steps": steps, "seed": seed}, resume=False)
    seconds = _fit(spot, [x, y], out)
    _report(spot.plan_, audit(spot.plan_, x, y), out, seconds=seconds, truth=5.0)


def main() -> None:
    """Runs the command line. Exit codes: 0 done, 1 the run failed or was stopped, 2 bad input."""
    try:
        app()
    except InvalidArgument as error:
        problems.print(f"[bold red]Error:[/bold red] {error}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except TorchspotError as error:
        problems.print(f"[bold red]Failed:[/bold red] {error}", highlight=False, soft_wrap=True)
        sys.exit(1)


def _fit(spot: SPOT, sources: list[Any], out: Path) -> float:
    """Fits in the folder and saves plan and pictures; on Ctrl-C says how to go on."""
    started = time.perf_counter()
    try:
        spot.fit(*sources, resume=out)
    except KeyboardInterrupt as stop:
        command = " ".join(["torchspot", *sys.argv[1:]])
        again = command if "--resume" in command else f"{command} --resume"
        problems.print(f"\n{str(stop).capitalize()}. Everything so far is saved in {out}. Go on with:\n  {again}")
        raise typer.Exit(1) from stop
    spot.plan_.save(out)
    plot_convergence(spot.history_, out / "convergence.png")
    return time.perf_counter() - started


def _report(plan: PushforwardPlan, judged: Audit, out: Path, *, seconds: float, truth: float | None = None) -> None:
    plot_pairs(plan.sample(_PICTURED, seed=0), out / "pairs.png", title=f"Paired samples, cost {plan.cost}")
    table = _table(plan, judged, truth)
    table.add_row("time", f"{seconds:.0f} s")
    table.add_row("files", f"{out}/: plan.safetensors, history.jsonl, pairs.png, convergence.png")
    console.print(table)


def _table(plan: PushforwardPlan, judged: Audit, truth: float | None = None) -> Table:
    """What a user wants to know first."""
    table = Table(show_header=False)
    table.add_row(
        f"expected cost ({plan.cost})", f"{judged.cost.value:.4f} ± {judged.cost.monte_carlo_error:.4f} (Monte Carlo)"
    )
    if truth is not None:
        table.add_row("true value", f"{truth:g}  (error {100 * (judged.cost.value / truth - 1):+.2f} %)")
    for k, marginal in enumerate(judged.marginals):
        seen = "held-out rows" if marginal.held_out else "rows"
        table.add_row(
            f"marginal {k + 1}: sliced W2",
            f"{marginal.sliced_w2:.4f}  (noise floor {marginal.noise_floor:.4f}, {marginal.rows} {seen})",
        )
        table.add_row("    mean, spread", f"off by {marginal.mean_error:.4f}, {100 * marginal.spread_error:.1f} %")
    facts = plan.facts
    if facts.get("eta"):
        weights = ", ".join(f"{eta:.3g}" for eta in facts["eta"])
        table.add_row("marginal weights η", f"{weights}  (Lipschitz constant of the cost: {facts['lipschitz_source']})")
    return table


def _cost(text: str, marginals: int) -> Cost:
    name, _, argument = text.partition(":")
    named: dict[str, Cost] = {
        "euclidean": costs.euclidean,
        "squared_euclidean": costs.squared_euclidean,
        "cosine": costs.cosine,
    }
    if name == "p_norm":
        pair: Cost = costs.p_norm(_number(argument))
    else:
        pair = _choice("cost", text, named | {"p_norm:P": costs.euclidean})
    return pair if marginals == 2 else costs.sum_over_pairs(pair)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument(f"p_norm needs a number: p_norm:1.5, not p_norm:{text}.") from None


def _choice(what: str, name: str, choices: dict[str, Any]) -> Any:
    if name not in choices:
        raise InvalidArgument(f"there is no {what} {name!r}. Choose one of: {', '.join(choices)}.")
    return choices[name]


def _claim(out: Path, options: dict[str, Any], resume: bool) -> None:
    """Makes the folder this run's own, or makes sure that it already is."""
    record = out / "run.json"
    taken = out.is_dir() and any(out.iterdir())
    if out.exists() and not out.is_dir():
        raise InvalidArgument(f"{out} is a file. Give a folder with --out.")
    if taken and not resume:
        raise InvalidArgument(
            f"{out} already holds {'another run' if record.exists() else 'other files'}. "
            "Give another folder with --out, or go on with the run there with --resume."
        )
    if taken and record.exists():
        before = json.loads(record.read_text())
        differing = sorted(name for name in {*before, *options} if before.get(name) != options.get(name))
        if differing:
            name = differing[0]
            raise InvalidArgument(
                f"the run in {out} was begun with {name} = {before.get(name)!r}, not {options.get(name)!r}. "
                "Resume with the same options, or start a new run in another folder."
            )
        for half_written in out.glob(".*.part"):
            half_written.unlink()
        return
    if taken:
        raise InvalidArgument(f"{out} holds files but no run to resume. Give another folder with --out.")
    out.mkdir(parents=True, exist_ok=True)
    with storage.replacing(record) as temporary:
        temporary.write_text(json.dumps(options, indent=2) + "\n")


def _clear_demo(out: Path) -> None:
    """Removes the files of an earlier demo, and nothing else."""
    record = out / "run.json"
    if record.exists() and json.loads(record.read_text()).get("demo"):
        names = ("plan.safetensors", "checkpoint.safetensors", "history.jsonl", "pairs.png", "convergence.png")
        for name in names:
            (out / name).unlink(missing_ok=True)
        record.unlink()


def _columns(samples: Samples) -> dict[str, np.ndarray]:
    """One column for each coordinate: x1_0, x1_1, …, x2_0, …"""
    flat = [x.flatten(1).cpu().numpy() for x in samples]
    return {f"x{k + 1}_{j}": x[:, j] for k, x in enumerate(flat) for j in range(x.shape[1])}


def _write_npz(file: Path, samples: Samples) -> None:
    with file.open("wb") as stream:
        arrays: dict[str, Any] = {f"x{k + 1}": x.cpu().numpy() for k, x in enumerate(samples)}
        np.savez(stream, **arrays)


def _write_parquet(file: Path, samples: Samples) -> None:
    pa.parquet.write_table(pa.table(_columns(samples)), file)


def _write_csv(file: Path, samples: Samples) -> None:
    pa.csv.write_csv(pa.table(_columns(samples)), file)


if __name__ == "__main__":
    main()
