"""Plans on the command line: `torchspot fit` and `torchspot demo`."""

__all__ = ["demo", "fit"]

import math
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape

from torchspot.cli.consoles import console, say
from torchspot.cli.drawings import draw_run
from torchspot.cli.folders import claim, clear_demo
from torchspot.cli.options import anchors_named, choice, cost_named
from torchspot.cli.pictures import opened
from torchspot.cli.processes import claim_together, say_how_to_go_on, with_others
from torchspot.cli.tables import result_table
from torchspot.errors import InvalidArgument, TorchspotError
from torchspot.estimators import SPOT, EntropicSPOT, presets
from torchspot.evaluation import audit
from torchspot.plots import SampleSheet
from torchspot.training.callbacks import Checkpoint, Progress
from torchspot.training.engine import Captured, Compiled, Eager, choose_engine
from torchspot.training.ranks import ranks_of
from torchspot.types import Engine

_PRESETS: dict[str, Callable[[], presets.Preset | None]] = {
    "default": lambda: None,
    "paper": presets.paper,
    "clipping": presets.clipping,
}
_ENGINES: dict[str, Callable[[str], Engine]] = {
    "auto": choose_engine,
    "eager": Eager,
    "captured": Captured,
    "compiled": Compiled,
}


def fit(
    sources: Annotated[
        list[Path], typer.Argument(help="Two or more data sets: .npy, .npz, .csv, .parquet, or a folder.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the run.")],
    cost: Annotated[
        str,
        typer.Option(
            help="euclidean, squared_euclidean, cosine, p_norm:P or contour (of pictures), summed over pairs for three "
            "or more data sets; or barycentric[:W,W,…]."
        ),
    ] = "euclidean",
    map_: Annotated[
        str | None,
        typer.Option(
            "--map",
            help="Learn where given points go: forward (from the first data set), backward (from the second), both.",
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Entropic plan with a density: ε > 0 in units of the cost, larger is smoother.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Bring the pictures of all folders to so many pixels in height and width.")
    ] = None,
    skip_corrupt: Annotated[
        bool, typer.Option("--skip-corrupt", help="Leave out pictures that cannot be read, instead of stopping.")
    ] = False,
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

    Two folders of pictures: [bold]torchspot fit cats dogs --cost contour --size 64 --out runs/pets[/bold]

    Stopped by Ctrl-C or by anything else? The same command with [bold]--resume[/bold] goes on to the same result.

    On several GPUs or machines: [bold]torchrun --nproc-per-node=4 -m torchspot fit …[/bold], with --batch samples
    a step on each of them.
    """
    options = {
        "sources": [str(source.resolve()) for source in sources],
        "cost": cost,
        "epsilon": epsilon,
        "map": map_,
        "steps": steps,
        "batch": batch,
        "seed": seed,
        "preset": preset,
        "replicas": replicas,
        "size": size,
        "skip_corrupt": skip_corrupt,
    }
    if epsilon is not None and not 0 < epsilon < math.inf:
        raise InvalidArgument(f"--epsilon must be above 0, and is {epsilon}. Leave it out for a plan without entropy.")
    if epsilon is not None and map_:
        raise InvalidArgument("--epsilon gives a density and --map a map: give one of them.")
    spot = SPOT(latent=anchors_named(map_)) if epsilon is None else EntropicSPOT(epsilon=epsilon)
    spot.set_params(
        cost=cost_named(cost, len(sources)),
        steps=steps,
        batch_size=batch,
        replicas=replicas,
        preset=choice("preset", preset, _PRESETS)(),
        seed=seed,
        engine=with_others(choice("engine", engine, _ENGINES)(device)),
    )
    claim_together(out, options, resume, ranks_of(spot.engine))
    data, notes = opened(sources, size, skip_corrupt)
    say(notes)
    pictures = not any(isinstance(one, Path) for one in data)
    if pictures and engine == "auto":
        spot.set_params(engine=with_others(choose_engine(device, pictures=True)))
    watching = [SampleSheet(out / "sheet.png")] if pictures else []
    if watching:
        console.print(escape(f"{out}/sheet.png shows pairs as they stand, anew every 30 seconds."), soft_wrap=True)
    spot.set_params(callbacks=[Progress(console), *watching, Checkpoint(out, every_seconds=checkpoint_every)])
    _fit(spot, data, out, paths=sources)


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
        clear_demo(out)
    claim(out, {"demo": True, "n": n, "steps": steps, "seed": seed}, resume)
    spot = SPOT(steps=steps, seed=seed, engine=choose_engine(), callbacks=[Progress(console)])
    _fit(spot, [x, y], out, truth=5.0)


def _fit(
    spot: SPOT | EntropicSPOT,
    sources: list[Any],
    out: Path,
    *,
    paths: Sequence[Path] = (),
    truth: float | None = None,
) -> None:
    """Fits in the folder, saves plan and pictures, and shows the result; on Ctrl-C says how to go on."""
    started = time.perf_counter()
    try:
        spot.fit(*sources, resume=out)
    except KeyboardInterrupt as stop:
        say_how_to_go_on(stop, out, ranks_of(spot.engine))
        raise typer.Exit(1) from stop
    if ranks_of(spot.engine).rank > 0:
        return
    seconds = time.perf_counter() - started
    plan = spot.plan_
    plan.save(out)
    try:
        files = ["plan.safetensors", "history.jsonl", *draw_run(plan, spot.history_, sources, out, truth)]
        table = result_table(plan, audit(plan, *sources), truth)
    except TorchspotError as error:
        raise TorchspotError(f"the plan is saved in {out}, but could not be drawn and judged: {error}") from error
    table.add_row("steps ran", escape(plan.facts["engine"]))
    table.add_row("time", f"{seconds:.0f} s")
    table.add_row("files", escape(f"{out}/: {', '.join(files)}"))
    console.print(table)
    if paths:
        again = shlex.join(["torchspot", "evaluate", str(out), *map(str, paths)])
        of_what = "the optimal cost without entropy" if "epsilon" in plan.facts else "the true value"
        console.print(escape(f"An interval for {of_what}, and how right the plan is:\n  {again}"), soft_wrap=True)
    if "anchored" in plan.facts:
        first = plan.facts["anchored"][0]
        start = ["--start", str(first + 1)] if first else []
        move = shlex.join(["torchspot", "transport", str(out), "points.parquet", *start, "--out", "moved.parquet"])
        console.print(escape(f"Where points of your own go:\n  {move}"), soft_wrap=True)
    if "epsilon" in plan.facts:
        console.print(
            escape(f"A table of the density:\n  {shlex.join(['torchspot', 'density', str(out)])}"), soft_wrap=True
        )
