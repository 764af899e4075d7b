"""`python -m torchspot_paper fig2|fig3|fig6|comparison|dimension|report`."""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from torchspot_paper import comparison, dimension, fig2_convergence, fig3_hidden_units, fig6_synthetic, report
from torchspot_paper.recipe import Call, Outcome

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="The paper's experiments. `report` draws what they measured."
)
console = Console(soft_wrap=True)

Quick = Annotated[bool, typer.Option(help="A few steps on little data, to see that everything runs.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Runs of each setting.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Out = Annotated[Path | None, typer.Option(help="Folder for results; default: results, with --quick a temporary one.")]
Jobs = Annotated[int, typer.Option(min=1, help="Settings that run at the same time.")]
Only = Annotated[str, typer.Option(help="Only settings whose name has this in it.")]


def _call(quick: bool, seeds: int | None, device: str, out: Path | None, jobs: int, only: str) -> Call:
    folder = out or (Path(tempfile.mkdtemp(prefix="torchspot-quick-")) if quick else Path("results"))
    return Call(quick, seeds, device, folder, jobs, only)


def _finish(experiment: str, call: Call, outcomes: Iterable[Outcome]) -> None:
    """Stores, says and draws what came out."""
    table = Table(title=experiment)
    for column in ("setting", "seeds", "seconds", "what was measured"):
        table.add_column(column)
    for outcome in call.keep(experiment, outcomes):
        about = ", ".join(f"{name} {value}" for name, value in outcome.setting.items())
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in outcome.metrics.items())
        table.add_row(about, str(outcome.seeds), f"{outcome.seconds:.1f}", numbers)
    console.print(table)
    console.print(f"Rows: {call.out / experiment}.jsonl")
    for file in report.figures(call.out, call.out, [experiment]):
        console.print(f"Figure: {file}")


@app.command()
def fig2(
    quick: Quick = False, seeds: Seeds = None, device: Device = "auto", out: Out = None, jobs: Jobs = 1, only: Only = ""
) -> None:
    """Distance against epochs and seconds, SPOT beside ROT."""
    call = _call(quick, seeds, device, out, jobs, only)
    _finish("fig2", call, call.outcomes(fig2_convergence.run, fig2_convergence.settings(quick)))


@app.command()
def fig3(
    quick: Quick = False, seeds: Seeds = None, device: Device = "auto", out: Out = None, jobs: Jobs = 1, only: Only = ""
) -> None:
    """Error against the number of hidden units."""
    call = _call(quick, seeds, device, out, jobs, only)
    _finish("fig3", call, call.outcomes(fig3_hidden_units.run, fig3_hidden_units.settings(quick)))


@app.command()
def fig6(
    quick: Quick = False, seeds: Seeds = None, device: Device = "auto", out: Out = None, jobs: Jobs = 1, only: Only = ""
) -> None:
    """Pairs of two problems in the plane."""
    call = _call(quick, seeds, device, out, jobs, only)
    _finish("fig6", call, call.outcomes(fig6_synthetic.run, fig6_synthetic.settings()))


@app.command("comparison")
def compare(quick: Quick = False, out: Out = None, only: Only = "") -> None:
    """Error against time and memory as the data grows, on one core: exact transport, Sinkhorn, ROT, SPOT."""
    call = _call(quick, None, "cpu", out, 1, only)
    _finish("comparison", call, call.outcomes(comparison.run, comparison.settings(quick)))


@app.command("dimension")
def dimensions(
    quick: Quick = False, seeds: Seeds = None, device: Device = "auto", out: Out = None, jobs: Jobs = 1, only: Only = ""
) -> None:
    """Hard problems in 2 to 256 dimensions."""
    call = _call(quick, seeds, device, out, jobs, only)
    _finish("dimension", call, call.outcomes(dimension.run, dimension.settings(quick)))


@app.command("report")
def write_report(
    out: Annotated[Path, typer.Option(help="Folder with results.")] = Path("results"),
    docs: Annotated[Path, typer.Option(help="Folder for results.md and its figures.")] = Path("docs"),
) -> None:
    """Measured beside published, from the stored rows: results.md and figures."""
    console.print(f"Wrote {report.write(out, docs)}")


if __name__ == "__main__":
    app(prog_name="python -m torchspot_paper")
