"""One of several processes that torchrun starts in the tests: fits together with the others, and notes every step.

torchrun … worker.py FOLDER SOURCE: writes FOLDER/RANK.npz with the parameters of both players after every step.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from torchspot import SPOT, costs, engines
from torchspot.training.players import Turn

STEPS, BATCH = 100, 32


def data(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 2)), rng.normal(size=(n, 2)) @ np.array([[1.0, 0.5], [0.0, 0.7]]) + 2


def estimator(engine, **options) -> SPOT:
    return SPOT(cost=costs.squared_euclidean, steps=STEPS, batch_size=BATCH, seed=3, engine=engine, **options)


def noting(steps: dict[str, list[np.ndarray]]) -> None:
    """From now on every player's parameters are kept after every step."""
    plain = Turn.update

    def update(turn, parts=None):
        plain(turn, parts)
        steps.setdefault(turn.name, []).append(turn.flat.vector.detach().numpy().copy())

    Turn.update = update


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    steps: dict[str, list[np.ndarray]] = {}
    noting(steps)
    engine = engines.Distributed(engines.Eager("cpu", dtype=torch.float64))
    xs = data()
    if sys.argv[2] == "stream":
        rng = np.random.default_rng(engine.ranks.rank)
        xs = (lambda n: rng.normal(size=(n, 2)), xs[1])
    spot = estimator(engine).fit(*xs)
    ending = {"distance": spot.distance_.value, "logged": [r["cost"] for r in spot.history_]}
    np.savez(folder / f"{engine.ranks.rank}.npz", **{name: np.stack(v) for name, v in steps.items()}, **ending)
    sys.stdout.write(f"{engine!r} {spot.plan_.facts['engine']}\n")


if __name__ == "__main__":
    main()
