"""How accurate SPOT is with its defaults, on problems with known answers. Writes one JSON object a line.

    python benchmarks/accuracy.py --out results/accuracy_cpu.jsonl [--seeds 10] [--only stretch-16] [--jobs 2] [--quick]

Every row carries the value at step 0 and each marginal's sliced W2 beside its noise floor: a right number with wrong
marginals does not count. The last iterate's average is reported; nothing is selected.
"""

import argparse
import json
import multiprocessing
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import problems
from torchspot import SPOT, costs, engines, evaluation
from torchspot.exact import emd

N = 100_000
EMD_POINTS = 10_000


@dataclass(frozen=True)
class Case:
    """A problem drawn anew for each seed, its cost, and what to reach on average over the seeds."""

    draw: Callable[[int, int], tuple[np.ndarray, ...]]
    truth: float | None
    """None: exact EMD between 10⁴ points."""
    cost: Any
    target: float
    most_seeds: int


def cases() -> dict[str, Case]:
    gaussians = lambda n, seed: problems.two_gaussians(n, seed=seed).xs  # noqa: E731
    mixture = lambda n, seed: problems.mixture_of_three(n, seed=seed)  # noqa: E731
    three = lambda n, seed: problems.three_gaussians(n, seed=seed).xs  # noqa: E731
    stretch = lambda dim: lambda n, seed: problems.stretch(n, dim=dim, seed=seed).xs  # noqa: E731
    pairs = costs.sum_over_pairs(costs.squared_euclidean)
    return {
        "stretch-16": Case(stretch(16), 2.0, costs.euclidean, 0.03, 3),
        "three-gaussians": Case(three, problems.three_gaussians(2).value, pairs, 0.02, 3),
        "gaussians-euclidean": Case(gaussians, 5.0, costs.euclidean, 0.01, 10),
        "gaussians-squared": Case(gaussians, 25.0, costs.squared_euclidean, 0.01, 3),
        "mixture-euclidean": Case(mixture, None, costs.euclidean, 0.02, 3),
        "mixture-squared": Case(mixture, None, costs.squared_euclidean, 0.02, 3),
        "stretch-2": Case(stretch(2), 2.0, costs.euclidean, 0.03, 3),
    }


def run(name: str, seed: int, n: int, steps: int | None, device: str) -> dict[str, Any]:
    """One fit with defaults, and everything that is reported of it."""
    torch.set_num_threads(1)
    case = cases()[name]
    xs = case.draw(n, seed)
    started = time.perf_counter()
    spot = SPOT(cost=case.cost, steps=steps, seed=seed, engine=engines.choose_engine(device)).fit(*xs)
    seconds = time.perf_counter() - started
    audited = evaluation.audit(spot.plan_, *xs)
    row = {
        "experiment": "accuracy",
        "setting": {
            "problem": name,
            "cost": str(case.cost),
            "n": n,
            "steps": spot.plan_.facts["steps"],
            "device": device,
        },
        "seed": seed,
        "value": spot.distance_.value,
        "value_at_step_0": spot.history_[0]["cost"],
        "monte_carlo_error": spot.distance_.monte_carlo_error,
        "marginals": audited.as_dict()["marginals"],
        "seconds": round(seconds, 1),
    }
    if name.startswith("gaussians"):
        row["moments"] = [moments(x, sign * 2.5) for x, sign in zip(spot.sample(N, seed=0), (-1, 1), strict=True)]
    if name == "gaussians-squared":
        x, y = spot.sample(N, seed=0)
        row["pair_error"] = float((y - x - torch.tensor([5.0, 0.0]).to(x)).square().sum(1).mean())
    return row


def moments(x: torch.Tensor, first: float) -> dict[str, float]:
    """Errors of mean and deviations of a marginal whose law is N((first, 0), I)."""
    mean_error = float((x.mean(0) - torch.tensor([first, 0.0]).to(x)).norm())
    return {"mean_error": mean_error, "deviation_error": float((x.std(0) - 1).abs().max())}


def truth(name: str, points: int) -> float:
    """The known value, or exact EMD between fresh points."""
    case = cases()[name]
    if case.truth is not None:
        return case.truth
    x, y = (torch.from_numpy(a) for a in case.draw(points, 10**6))
    return emd(case.cost, x, y)


def judged(row: dict[str, Any], value: float) -> dict[str, Any]:
    errors = {"error": row["value"] / value - 1, "error_at_step_0": row["value_at_step_0"] / value - 1}
    return row | {"truth": value} | errors


def provenance() -> dict[str, str]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {"commit": commit.stdout.strip() or "unknown", "torch": torch.__version__, "processor": platform.machine()}


def summary(rows: list[dict[str, Any]]) -> None:
    print(f"\n{'problem':22s} {'seeds':>5s} {'mean':>7s} {'worst':>7s} {'goal':>6s} {'step 0':>7s} {'SW2/floor':>9s}")
    for name, case in cases().items():
        mine = [row for row in rows if row["setting"]["problem"] == name]
        if not mine:
            continue
        errors = [abs(row["error"]) for row in mine]
        start = statistics.mean(abs(row["error_at_step_0"]) for row in mine)
        ratio = max(marginal["ratio"] for row in mine for marginal in row["marginals"])
        means = f"{statistics.mean(errors):7.2%} {max(errors):7.2%} {case.target:6.1%} {start:7.1%}"
        print(f"{name:22s} {len(mine):5d} {means} {ratio:9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("accuracy.jsonl"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="*", choices=list(cases()), default=list(cases()))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--hardware", default=platform.processor() or platform.machine())
    parser.add_argument("--quick", action="store_true", help="a few steps on little data, to see that it runs")
    arguments = parser.parse_args()
    n, steps, points = (2000, 20, 200) if arguments.quick else (N, None, EMD_POINTS)
    facts = provenance() | {"hardware": arguments.hardware}
    rows: list[dict[str, Any]] = []
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(arguments.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        known = {name: pool.submit(truth, name, points) for name in arguments.only}
        runs = [
            pool.submit(run, name, seed, n, steps, arguments.device)
            for name in arguments.only
            for seed in range(min(arguments.seeds, cases()[name].most_seeds))
        ]
        for done in as_completed(runs):
            rows.append(judged(done.result(), known[done.result()["setting"]["problem"]].result()) | facts)
            arguments.out.write_text("".join(json.dumps(r) + "\n" for r in rows))
            print("{setting[problem]} seed {seed}: {error:+.2%} in {seconds} s".format(**rows[-1]), flush=True)
    summary(rows)


if __name__ == "__main__":
    main()
