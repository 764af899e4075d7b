"""`python -m torchspot_paper fig2 …`: one command for each experiment, `data` and `report`."""

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from torchspot.errors import TorchspotError
from torchspot_paper import (
    comparison,
    datasets,
    dimension,
    downloads,
    fig2_convergence,
    fig3_hidden_units,
    fig4_density,
    fig5_mnist_mnistm,
    fig6_synthetic,
    fig7_pictures,
    map_comparison,
    maps,
    marginals,
    report,
    runtime,
    table1_adaptation,
    tabular,
)
from torchspot_paper.recipe import Call, Outcome

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="The paper's experiments. `report` draws what they measured."
)
console = Console(soft_wrap=True)

EXPERIMENTS = {
    "fig2": (fig2_convergence, "Distance against epochs and seconds, SPOT beside ROT."),
    "fig3": (fig3_hidden_units, "Error against the number of hidden units."),
    "fig4": (fig4_density, "Densities of entropic plans beside the truth."),
    "fig5": (fig5_mnist_mnistm, "Paired digits of MNIST and MNIST-M, SPOT beside CoGAN; needs the data."),
    "fig6": (fig6_synthetic, "Pairs of two problems in the plane."),
    "fig7": (fig7_pictures, "Photographs with paintings, shoes with their edges; needs the data."),
    "table1": (table1_adaptation, "Labels of one set of digits from another: DASPOT and others; needs the data."),
    "runtime": (runtime, "Seconds to 95 % on MNIST to USPS, DASPOT beside DeepJDOT; needs the data."),
    "tabular": (tabular, "Adaptation of vectors: two moons that turn, and a covariate shift; beside POT's mappings."),
    "comparison": (comparison, "Error against time and memory as the data grows, on one core: four methods."),
    "dimension": (dimension, "Hard problems in 2 to 256 dimensions."),
    "marginals": (marginals, "Three to six marginals at once, and their barycenters."),
    "maps": (maps, "Where given points go: maps and conditional laws beside known ones."),
    "map_comparison": (map_comparison, "Maps of other methods as the data grows, on one core."),
}


def _add(name: str, module: ModuleType, about: str) -> None:
    """A command for an experiment; all take the same options."""

    @app.command(name, help=about)
    def experiment(
        quick: Annotated[bool, typer.Option(help="A few steps on little data, to see that everything runs.")] = False,
        seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each setting.")] = None,
        device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
        out: Annotated[
            Path | None, typer.Option(help="Folder for results; default: results, with --quick a temporary one.")
        ] = None,
        jobs: Annotated[int, typer.Option(min=1, help="Settings that run at the same time.")] = 1,
        only: Annotated[str, typer.Option(help="Only settings whose name, between slashes, has this in it.")] = "",
        data: Annotated[Path | None, typer.Option(help="Folder of the real data sets; or TORCHSPOT_DATA.")] = None,
    ) -> None:
        folder = out or (Path(tempfile.mkdtemp(prefix="torchspot-quick-")) if quick else Path("results"))
        place = "cpu" if module in (comparison, map_comparison) else device
        call = Call(quick, seeds, place, folder, jobs, only, data=data)
        settings = module.settings(quick)
        if not (asked := call.asked(settings)):
            names = ", ".join(f"/{setting}/" for setting in settings[-10:])
            raise typer.BadParameter(f"no setting has {only!r} in its name. Names are such as {names}.")
        with _in_words():
            _finish(name, call, call.outcomes(module.run, asked))


@contextmanager
def _in_words() -> Iterator[None]:
    """Errors that say what to do are printed, each once and without a traceback; all others are raised."""
    try:
        yield
    except TorchspotError as error:
        _end([error])
    except ExceptionGroup as group:
        known, others = group.split(TorchspotError)
        if known is None or others is not None:
            raise
        console.print(group.message, highlight=False)
        _end(known.exceptions)


def _end(errors: Sequence[BaseException]) -> NoReturn:
    """Says what went wrong and, of experiments, in which setting or in how many."""
    notes = defaultdict(list)
    for error in errors:
        notes[str(error)].append(" ".join(getattr(error, "__notes__", ())))
    for message, where in notes.items():
        about = where[0] if len(where) == 1 else f"This was so in {len(where)} settings."
        console.print(f"Error: {message}\n{about}".rstrip(), markup=False, highlight=False)
    raise typer.Exit(1)


def _finish(experiment: str, call: Call, outcomes: Iterable[Outcome]) -> None:
    """Stores, says and draws what came out."""
    table = Table(title=experiment)
    for column in ("setting", "seeds", "seconds", "what was measured"):
        table.add_column(column)
    try:
        for outcome in call.keep(experiment, outcomes):
            about = ", ".join(f"{name} {value}" for name, value in outcome.setting.items())
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in outcome.metrics.items())
            table.add_row(about, str(outcome.seeds), f"{outcome.seconds:.1f}", numbers)
    finally:  # what came before an error or Ctrl-C is shown as well
        if table.row_count:
            console.print(table)
            console.print(f"Rows: {call.out / experiment}.jsonl")
            for file in report.figures(call.out, call.out, [experiment]):
                console.print(f"Figure: {file}")


@app.command("data")
def list_data(
    names: Annotated[list[str] | None, typer.Argument(help="Some of the sets; all by default.")] = None,
    data: Annotated[Path | None, typer.Option(help="Their folder; or TORCHSPOT_DATA.")] = None,
    fetch: Annotated[bool, typer.Option(help="Download what is not there, where there is internet.")] = False,
) -> None:
    """The real data sets: which are there, whether they are those that results are from, and fetching of others."""
    with _in_words():
        folder = datasets.data_folder(data)
    if unknown := set(names or ()) - set(datasets.SETS):
        raise typer.BadParameter(f"there is no data set {', '.join(unknown)}. There are: {', '.join(datasets.SETS)}.")
    failed = False
    for name in names or datasets.SETS:
        state = datasets.check(name, folder)
        if fetch and not state.startswith(("ok", "there")):
            console.print(f"{name}: fetching …")
            try:
                downloads.fetch(name, folder)
                state = datasets.check(name, folder)
            except TorchspotError as error:
                state, failed = str(error), True
        console.print(f"{name}: {state}", highlight=False)
    if failed:
        raise typer.Exit(1)


@app.command("report")
def write_report(
    out: Annotated[Path, typer.Option(help="Folder with results.")] = Path("results"),
    docs: Annotated[Path, typer.Option(help="Folder for results.md and its figures.")] = Path("docs"),
) -> None:
    """Measured beside published, from the stored rows: results.md and figures."""
    console.print(f"Wrote {report.write(out, docs)}")


for _name, (_module, _about) in EXPERIMENTS.items():
    _add(_name, _module, _about)

if __name__ == "__main__":
    app(prog_name="python -m torchspot_paper")
