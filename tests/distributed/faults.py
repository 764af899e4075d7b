"""One of several processes in which something goes wrong; says what became of it.

torchrun … faults.py CASE: each process writes a line "RANK what it saw".
"""

import contextlib
import itertools
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from distributed.worker import data, estimator
from torchspot import DASPOT, costs, engines, presets
from torchspot.baselines import Supervised
from torchspot.errors import Diverged, TorchspotError
from torchspot.estimators.problem import pose
from torchspot.training.callbacks import Checkpoint
from torchspot.training.loop import Training


def say(rank: int, text: str) -> None:
    sys.stdout.write(f"{rank} {text}\n")
    sys.stdout.flush()


class Always:
    """A callback that does something at each logged step after the first."""

    def __init__(self, act) -> None:
        self.act = act

    def __call__(self, training, record) -> None:
        if training.step:
            self.act(training, record)


def fails_alone(engine) -> None:
    """The second process meets an error that it survives; the first must hear of it, and neither trains on."""

    def cost(x, y):
        if engine.ranks.rank == 1 and torch.is_grad_enabled():
            raise ValueError("bad luck")
        return (x - y).square().sum(1)

    for _ in range(2):
        try:
            estimator(engine).set_params(cost=cost).fit(*data())
        except (ValueError, TorchspotError) as error:
            say(engine.ranks.rank, f"{type(error).__name__}: {error}")


def diverges(engine) -> None:
    """All of them see the same error, of the same class, and can go on with another run."""

    def stop(training, record):
        raise Diverged("far too far", training.step)

    try:
        estimator(engine, callbacks=[Always(stop)]).fit(*data())
    except Diverged as error:
        say(engine.ranks.rank, f"Diverged at {error.step}: {error}")
    spot = estimator(engine).fit(*data())
    say(engine.ranks.rank, f"then {spot.distance_.value:.12f}")


def changes(engine) -> None:
    """A callback of the first process changes parameters, and writes what cannot be sent only at the end."""
    parameters = []

    def halve(training, record):
        parameters[:] = [turn.flat.vector for turn in training.turns]
        if training.step == 50:
            parameters[0].mul_(0.5)

    spot = estimator(engine, callbacks=[Always(halve)]).fit(*data())
    say(engine.ranks.rank, f"ended {sum(p.abs().sum().item() for p in spot.critics_.parameters()):.12f}")


def unsendable(engine) -> None:
    def write(training, record):
        record["f"] = lambda: 0

    try:
        estimator(engine, callbacks=[Always(write)]).fit(*data())
    except Exception as error:
        say(engine.ranks.rank, f"{type(error).__name__}: {error}")


def adapts(engine) -> None:
    """A run of pictures, whose batch norm and alignment have statistics of their own in each process, is resumed."""
    games: list[Training] = []
    plain = Training.__init__

    def noted(self, *arguments, **options):
        plain(self, *arguments, **options)
        games.append(self)

    Training.__init__ = noted
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 60)
    source, target = (rng.random((120, 1, 16, 16)).astype(np.float32) + k * labels[:, None, None, None] for k in (1, 2))

    def fit(folder, stop_at=None):
        def stop(training, record):
            if training.step == stop_at:
                raise Diverged("enough for now", stop_at)

        callbacks = [Always(stop), Checkpoint(folder, every_seconds=0)]
        daspot = DASPOT(preset=presets.adaptation(), steps=8, batch_size=16, engine=engine, callbacks=callbacks)
        with contextlib.suppress(Diverged):
            daspot.fit(source, labels, target, resume=folder)
        return games[-1]

    folder = Path(os.environ["FOLDER"])
    straight = fit(folder / "straight")
    stopped = fit(folder / "stopped", stop_at=4)
    resumed = fit(folder / "stopped")
    states = [[x for turn in game.turns for x in (turn.flat.vector, *turn.buffers)] for game in (straight, resumed)]
    same = all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    say(engine.ranks.rank, f"stopped at {stopped.step}, ended at {resumed.step} of {straight.step}: {same}")


def compiles_in_part(engine) -> None:
    """The second process cannot compile; then none does, and they stay together."""

    def backend(graph, inputs):
        if engine.ranks.rank == 1:
            raise ValueError("not today")
        return graph.forward

    compiled = engines.Distributed(engines.Compiled("cpu", dtype=torch.float64, backend=backend))
    spot = estimator(compiled).fit(*data())
    say(engine.ranks.rank, f"{spot.distance_.value:.12f} {spot.plan_.facts['engine']}")
    plain = estimator(engine).fit(*data())
    say(engine.ranks.rank, f"{plain.distance_.value:.12f} plain")


def bad_input(engine) -> None:
    """What all of them refuse leaves them apart; new engines meet again."""
    for _ in range(3):
        try:
            estimator(engine).set_params(cost="nonsense").fit(*data())
        except TorchspotError as error:
            say(engine.ranks.rank, f"{type(error).__name__}")
        engine = engines.Distributed(engines.Eager("cpu", dtype=torch.float64))
    say(engine.ranks.rank, f"then {estimator(engine).fit(*data()).distance_.value:.12f}")


class Counting(IterableDataset):
    """1, 2, 3, … the same in every process unless it is divided among them."""

    def __init__(self, start: int, step: int) -> None:
        self.start, self.step = start, step

    def __iter__(self):
        return (torch.tensor([float(k), 0.0], dtype=torch.float64) for k in itertools.count(self.start, self.step))


def streams(engine) -> None:
    """No two processes draw the same sample, nor one that judges."""
    rank = engine.ranks.rank
    for name, source in {"alike": Counting(1, 1), "divided": Counting(1 + rank, 2)}.items():
        problem = pose([source, data()[1]], None, seed=0, engine=engine)
        judges = problem.units.to_data(problem.judges)[0][:, 0].round()
        drawn = problem.samplers[0].draw(500, torch.Generator())[:, 0]
        say(rank, f"{name} {' '.join(str(int(k)) for k in (*judges, *drawn))}")


def baseline(engine) -> None:
    """Callbacks are the first process's alone, also those of a baseline."""
    called = []
    callbacks = [lambda training, record: called.append(training.step)]
    x, _ = data()
    Supervised(steps=3, batch_size=16, engine=engine, callbacks=callbacks).fit(x, (x[:, 0] > 0).astype(int))
    say(engine.ranks.rank, f"called {len(called)}")


def shares(engine) -> None:
    """What the fit says of the data is the same everywhere."""
    x, y = data()
    daspot = DASPOT(steps=4, batch_size=16, engine=engine).fit(x, (x[:, 0] > 0).astype(int), y - 2)
    say(engine.ranks.rank, f"{daspot.overlap_} {daspot.conflict_} {daspot.target_shares_}")


def parts(engine) -> None:
    """Each process has rows of its own; the run is resumed, but not with others."""
    rank, folder = engine.ranks.rank, os.environ["FOLDER"]
    mine = [x[rank::2] for x in data()]

    def stop(training, record):
        if training.step == 50:
            raise Diverged("enough for now", 50)

    with contextlib.suppress(Diverged):
        estimator(engine, callbacks=[Always(stop), Checkpoint(folder, every_seconds=0)]).fit(*mine, resume=folder)
    straight, resumed = estimator(engine).fit(*mine), estimator(engine).fit(*mine, resume=folder)
    say(rank, f"{straight.distance_.value:.12f} {resumed.distance_.value:.12f}")
    try:
        estimator(engine).fit(mine[0] + 1, mine[1], resume=folder)
    except TorchspotError as error:
        say(rank, f"{type(error).__name__}: {error}")


def unlike(engine) -> None:
    """What is not the same in all processes is named by all."""
    rank = engine.ranks.rank
    for name, value in {"seed": rank, "batch_size": 32 + rank, "steps": 90 + rank, "cost": None}.items():
        chosen = {name: value} if name != "cost" else {name: costs.euclidean if rank else costs.squared_euclidean}
        try:
            estimator(engine).set_params(**chosen).fit(*data())
        except TorchspotError as error:
            say(rank, f"{name} {type(error).__name__}: {error}")
        engine = engines.Distributed(engines.Eager("cpu", dtype=torch.float64))


def kinds(engine) -> None:
    """One has a stream where the other has rows; then, only one is to keep a checkpoint."""
    rank, (x, y) = engine.ranks.rank, data()
    for source, folder in ((Counting(1, 1) if rank else x, None), (x, os.environ["FOLDER"] if rank else None)):
        try:
            estimator(engine).fit(source, y, resume=folder)
        except TorchspotError as error:
            say(rank, f"{type(error).__name__}: {error}")
        engine = engines.Distributed(engines.Eager("cpu", dtype=torch.float64))


def halves(engine) -> None:
    """Each process has half of a sorted table; what sizes and judges the run is of both halves, and the same."""
    x = np.sort(np.random.default_rng(0).normal(size=(4000, 2)), axis=0)
    mine = np.array_split(x, 2)[engine.ranks.rank]
    problem = pose([mine, x], None, seed=0, engine=engine)
    (judges, _), (probe, _) = problem.units.to_data(problem.judges), problem.probe
    means = [float(some.double().mean()) for some in (judges, probe, problem.samplers[0].take(np.arange(2000)))]
    say(engine.ranks.rank, " ".join(f"{mean:.12f}" for mean in means))


def columns(engine) -> None:
    """One table has its columns in another order than those of the first process."""
    tables = [pa.table({"a": x[:, 0], "b": x[:, 1]}) for x in data()]
    if engine.ranks.rank == 1:
        tables = [table.select(["b", "a"]) for table in tables]
    try:
        estimator(engine).fit(*tables)
    except TorchspotError as error:
        say(engine.ranks.rank, f"{type(error).__name__}: {error}")


def rounds(engine) -> None:
    """What the second process computes of the cost's slope is a little different, as on another processor."""

    def cost(x, y):
        return (1 + 1e-9 * engine.ranks.rank) * (x - y).square().sum(1)

    spot = estimator(engine).set_params(cost=cost).fit(*data())
    say(engine.ranks.rank, repr(spot.marginal_weights_.eta))


def refuses_alone(engine) -> None:
    """The second process refuses what the first takes, and goes on: it does not join the other's run with another."""
    for replicas in (0 if engine.ranks.rank == 1 else 1, 1):
        try:
            estimator(engine).set_params(replicas=replicas).fit(*data())
            say(engine.ranks.rank, "trained")
        except TorchspotError as error:
            say(engine.ranks.rank, f"{type(error).__name__}: {error}")


def turns(engine) -> None:
    """Two machines with two processes each: the first of all, then the first of the other, then the rest."""
    times = []

    def work() -> None:
        times.append(time.monotonic())
        time.sleep(0.3)
        times.append(time.monotonic())

    engine.ranks.in_turn(work)
    say(engine.ranks.rank, " ".join(map(str, times)))


class Sleeping(IterableDataset):
    """Some samples; then, if it is to sleep, nothing for a long time."""

    def __init__(self, sleeps: bool) -> None:
        self.sleeps = sleeps

    def __iter__(self):
        while True:
            yield from torch.randn(30_000, 2)
            if self.sleeps:
                time.sleep(600)


def killed_beside_a_stream(engine) -> None:
    """The second process dies while the worker of its stream sleeps."""
    killed(engine, DataLoader(Sleeping(engine.ranks.rank == 1), batch_size=256, num_workers=1))


def killed(engine, loader: DataLoader | None = None) -> None:
    """The second process dies while workers read for it."""

    def die(training, record):
        say(engine.ranks.rank, f"workers of {os.getpid()}")

    x, y = data()
    if loader is None:
        loader = DataLoader(TensorDataset(torch.from_numpy(x.astype(np.float32))), num_workers=1)
    spot = estimator(engine, callbacks=[Always(die)]).set_params(steps=100_000)
    if engine.ranks.rank == 1:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.alarm(8)
    started = time.monotonic()
    try:
        spot.fit(loader, y)
    except TorchspotError as error:
        say(engine.ranks.rank, f"after {time.monotonic() - started:.0f} s: {error}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    globals()[sys.argv[1]](engines.Distributed(engines.Eager("cpu", dtype=torch.float64)))
