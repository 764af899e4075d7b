"""The command line: `torchspot fit`, `sample`, `evaluate` and `demo`. Here strings become objects."""

__all__ = ["app", "main"]

import json
import shlex
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
from rich.markup import escape
from rich.table import Table

from torchspot import costs, plans, storage
from torchspot.data import as_sampler
from torchspot.errors import InvalidArgument, TorchspotError
from torchspot.estimators import SPOT, presets
from torchspot.evaluation import Audit, Certificate, MarginalAudit, TooFewRows, audit, certify
from torchspot.exact import MissingPOT
from torchspot.plans import PooledPlan, PushforwardPlan
from torchspot.plots import plot_convergence, plot_evaluation, plot_pairs
from torchspot.random import Key, generator
from torchspot.training.callbacks import Checkpoint, Progress
from torchspot.training.engine import Captured, Compiled, Eager, choose_engine
from torchspot.types import Cost, Engine, Reading, Samples

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
_ENGINES: dict[str, Callable[[str], Engine]] = {
    "auto": choose_engine,
    "eager": Eager,
    "captured": Captured,
    "compiled": Compiled,
}
_SAMPLE_TYPES = ".npz, .parquet or .csv"
_PICTURED, _PICTURED_DATA = 200, 3000
_RECORD = "run.json"
_RUN_FILES = {
    _RECORD,
    "plan.safetensors",
    "checkpoint.safetensors",
    "history.jsonl",
    "pairs.png",
    "convergence.png",
    "evaluation.json",
    "evaluation.png",
}


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
    replicas: Annotated[int, typer.Option(help="Independent runs, computed together; shows how far they differ.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")] = "auto",
    engine: Annotated[str, typer.Option(help="How steps run: auto, eager, captured (CUDA), compiled.")] = "auto",
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
        "replicas": replicas,
    }
    spot = SPOT(
        cost=_cost(cost, len(sources)),
        steps=steps,
        batch_size=batch,
        replicas=replicas,
        preset=_choice("preset", preset, _PRESETS)(),
        seed=seed,
        engine=_choice("engine", engine, _ENGINES)(device),
        callbacks=[Progress(console), Checkpoint(out, every_seconds=checkpoint_every)],
    )
    _claim(out, options, resume)
    _fit(spot, list(sources), out)


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
    plan = plans.load(run)
    judged = audit(plan, *sources)
    certified = _certify(plan, sources, confidence) if certificate else None
    file = out or (run if run.is_dir() else run.parent) / "evaluation.json"
    spread = plan.spread() if isinstance(plan, PooledPlan) else None
    bounds = None if certified is None else certified.as_dict()
    numbers = judged.as_dict() | {"spread": spread, "certificate": bounds, "truth": truth}
    with storage.replacing(file) as temporary:
        temporary.write_text(json.dumps(numbers, indent=2) + "\n")
    picture = plot_evaluation(judged, file.with_suffix(".png"), certificate=certified, truth=truth)
    console.print(_table(plan, judged, truth, certified))
    console.print(escape(f"The numbers are in {file}, the picture is {picture}."), soft_wrap=True)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run.")] = Path("runs/demo"),
    n: Annotated[int, typer.Option(help="Samples of each Gaussian.")] = 100_000,
    steps: Annotated[int | None, typer.Option(help="Generator steps.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a demo that was stopped.")] = False,
) -> None:
    """Solve section 5.1 of the paper: two Gaussians in the plane, five apart, Euclidean cost. The truth is 5."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal((-2.5, 0), 1, size=(n, 2)), rng.normal((2.5, 0), 1, size=(n, 2))
    console.print(
        f"Two Gaussians in the plane, means (-2.5, 0) and (2.5, 0), {n} samples of each.\n"
        "What is the least mean distance that moves one onto the other? (The truth is 5.)\n"
    )
    if not resume:
        _clear_demo(out)
    _claim(out, {"demo": True, "n": n, "steps": steps, "seed": seed}, resume)
    _fit(SPOT(steps=steps, seed=seed, callbacks=[Progress(console)]), [x, y], out, truth=5.0)


def main() -> None:
    """Runs the command line. Exit codes: 0 done, 1 the run failed or was stopped, 2 bad input."""
    try:
        app()
    except InvalidArgument as error:
        problems.print(f"[bold red]Error:[/bold red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except TorchspotError as error:
        problems.print(f"[bold red]Failed:[/bold red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1)


def _fit(spot: SPOT, sources: list[Any], out: Path, truth: float | None = None) -> None:
    """Fits in the folder, saves plan and pictures, and shows the result; on Ctrl-C says how to go on."""
    started = time.perf_counter()
    try:
        spot.fit(*sources, resume=out)
    except KeyboardInterrupt as stop:
        again = shlex.join(["torchspot", *(a for a in sys.argv[1:] if a != "--resume"), "--resume"])
        said = str(stop).capitalize() or "Stopped"
        problems.print(escape(f"\n{said}. What was done is saved in {out}. Go on with:\n  {again}"), soft_wrap=True)
        raise typer.Exit(1) from stop
    seconds = time.perf_counter() - started
    plan = spot.plan_
    plan.save(out)
    data = tuple(as_sampler(source).draw(_PICTURED_DATA, generator(Key(0, "picture"))) for source in sources)
    plot_pairs(plan.sample(_PICTURED, seed=0), out / "pairs.png", data=data, title=f"Paired samples, cost {plan.cost}")
    plot_convergence(spot.history_, out / "convergence.png", truth=truth)
    table = _table(plan, audit(plan, *sources), truth)
    table.add_row("steps ran", escape(plan.facts["engine"]))
    table.add_row("time", f"{seconds:.0f} s")
    table.add_row("files", escape(f"{out}/: plan.safetensors, history.jsonl, pairs.png, convergence.png"))
    console.print(table)
    if all(isinstance(source, Path) for source in sources):
        again = shlex.join(["torchspot", "evaluate", str(out), *map(str, sources)])
        console.print(escape(f"An interval for the true value, and how right the plan is:\n  {again}"), soft_wrap=True)


def _certify(plan: PushforwardPlan | PooledPlan, sources: list[Path], confidence: float) -> Certificate | None:
    """The certificate, with a line that says what is being done; None, and why, without POT or with too few rows."""
    with console.status("certificate") as status:
        try:
            return certify(
                plan, *sources, confidence=confidence, progress=lambda what, share: status.update(f"{what} {share:.0%}")
            )
        except (MissingPOT, TooFewRows) as error:
            problems.print(escape(f"No certificate: {error}"), soft_wrap=True)
            return None


def _table(
    plan: PushforwardPlan | PooledPlan,
    judged: Audit,
    truth: float | None = None,
    certified: Certificate | None = None,
) -> Table:
    """What a user wants to know first."""
    table = Table(show_header=False)
    table.add_row(
        f"expected cost ({plan.cost})", f"{judged.cost.value:.5g} ± {judged.cost.monte_carlo_error:.2g} (Monte Carlo)"
    )
    if isinstance(plan, PooledPlan):
        table.add_row(f"spread over {len(plan.plans)} runs", f"{plan.spread():.2g} (standard deviation)")
    if truth is not None:
        error = f"  (error {100 * (judged.cost.value / truth - 1):+.2f} %)" if truth else ""
        table.add_row("true value", f"{truth:g}{error}")
    if certified is not None:
        _add_certificate(table, certified)
    for k, marginal in enumerate(judged.marginals):
        table.add_row(f"marginal {k + 1}", marginal.verdict)
        table.add_row("    sliced W2", _read(marginal.sliced_w2))
        if certified is not None:
            _add_readings(table, marginal)
        table.add_row("    judged by", f"{marginal.rows} {'held-out rows' if marginal.held_out else 'rows'}")
    facts = plan.facts
    if facts.get("eta"):
        weights = ", ".join(f"{eta:.3g}" for eta in facts["eta"])
        table.add_row("marginal weights η", f"{weights}  (Lipschitz constant {facts['lipschitz_source']})")
    return table


def _add_certificate(table: Table, certified: Certificate) -> None:
    law = {"population": "the laws behind the data", "samples": "the samples themselves"}[certified.target]
    table.add_row("optimal cost", f"{certified.lower:.5g} to {certified.upper:.5g}  ({100 * certified.confidence:g} %)")
    if certified.lower_for_any_law is not None:
        table.add_row("    for any law at all", f"at least {certified.lower_for_any_law:.5g}")
    table.add_row("    between", law)
    table.add_row("    found by", escape(certified.method))
    table.add_row("    about the plan", certified.verdict)
    table.add_row("    rounded to data", f"{certified.rounded_cost:.5g}, at most {certified.gap:.3g} above optimal")
    if certified.objective is not None:
        table.add_row("    objective J", f"{certified.objective:.5g}")


def _add_readings(table: Table, marginal: MarginalAudit) -> None:
    table.add_row("    energy distance", _read(marginal.energy_distance))
    table.add_row("    mean off by", _read(marginal.mean_error))
    table.add_row("    covariance off by", _read(marginal.covariance_error))
    table.add_row("    W1, estimated", _read(marginal.w1_estimate))


def _read(reading: Reading) -> str:
    return f"{reading.value:.3g}  (noise floor {reading.floor:.2g} ± {reading.spread:.1g})"


def _cost(text: str, marginals: int) -> Cost:
    name, _, argument = text.partition(":")
    named: dict[str, Cost] = {
        "euclidean": costs.euclidean,
        "squared_euclidean": costs.squared_euclidean,
        "cosine": costs.cosine,
    }
    if name == "p_norm":
        named[text] = costs.p_norm(_number(argument))
    pair = _choice("cost", text, named, more=", p_norm:P")
    return pair if marginals == 2 else costs.sum_over_pairs(pair)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument(f"p_norm needs a number: p_norm:1.5, not p_norm:{text}.") from None


def _choice(what: str, name: str, choices: dict[str, Any], more: str = "") -> Any:
    if name not in choices:
        raise InvalidArgument(f"there is no {what} {name!r}. Choose one of: {', '.join(choices)}{more}.")
    return choices[name]


def _claim(out: Path, options: dict[str, Any], resume: bool) -> None:
    """Makes the folder this run's own, or makes sure that it already is."""
    if out.exists() and not out.is_dir():
        raise InvalidArgument(f"{out} is a file. Give a folder with --out.")
    record = out / _RECORD
    for half_written in (file for name in _RUN_FILES for file in out.glob(f".{name}.*.part")):
        half_written.unlink()
    held = {file.name for file in out.iterdir()} if out.is_dir() else set()
    if held <= {_RECORD} and not resume:
        with storage.replacing(record) as temporary:
            temporary.write_text(json.dumps(options, indent=2) + "\n")
        return
    if not resume:
        raise InvalidArgument(
            f"{out} already holds {'another run' if _RECORD in held else 'other files'}. "
            "Give another folder with --out, or go on with the run there with --resume."
        )
    if _RECORD not in held:
        raise InvalidArgument(f"{out} holds no run to resume. Give the folder of one, or leave out --resume.")
    before = json.loads(record.read_text())
    for name in sorted({*before, *options}):
        if before.get(name) != options.get(name):
            raise InvalidArgument(
                f"the run in {out} was begun with {name} = {before.get(name)!r}, not {options.get(name)!r}. "
                "Resume with the same options, or start a new run in another folder."
            )


def _clear_demo(out: Path) -> None:
    """Removes an earlier demo, if the folder holds that and nothing else."""
    record = out / _RECORD
    if record.exists() and json.loads(record.read_text()).get("demo"):
        files = [file for file in out.iterdir() if not file.name.endswith(".part")]
        if {file.name for file in files} <= _RUN_FILES:
            for file in files:
                file.unlink()


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
