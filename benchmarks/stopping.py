"""What it brings to let the audit end training and double η. Writes one JSON object a line.

    python benchmarks/stopping.py --out results/stopping.jsonl [--seeds 3] [--device cuda] [--jobs 1] [--quick]

Each problem is fitted with defaults, and with `StopAtNoiseFloor`; in the last one η is given far too small, so that the
marginals collapse unless it is doubled.
"""

import argparse
import json
import multiprocessing
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import problems
from accuracy import provenance
from torchspot import SPOT, callbacks, costs, engines, evaluation

N = 100_000


def sheared(n: int, seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)), rng.normal(size=(n, 2)) @ np.array([[2, 0], [1, 1]])


CASES = {
    "section 5.1": (lambda n, seed: problems.two_gaussians(n, seed=seed).xs, costs.euclidean, 5.0, None),
    "stretch": (lambda n, seed: problems.stretch(n, dim=2, seed=seed).xs, costs.euclidean, 2.0, None),
    "sheared Gaussian": (sheared, costs.squared_euclidean, 1.6754, None),
    "η too small": (lambda n, seed: problems.two_gaussians(n, seed=seed).xs, costs.squared_euclidean, 25.0, 6.0),
}


def run(name: str, audited: bool, seed: int, n: int, steps: int | None, device: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    draw, cost, truth, eta = CASES[name]
    xs = draw(n, seed)
    watch = [callbacks.StopAtNoiseFloor(lambda plan: evaluation.audit(plan, *xs))] if audited else []
    started = time.perf_counter()
    spot = SPOT(
        cost=cost,
        steps=steps,
        seed=seed,
        marginal_weight=eta,
        callbacks=watch,
        engine=engines.choose_engine(device),
    ).fit(*xs)
    seconds = time.perf_counter() - started
    changes = [change | {"step": r["step"]} for r in spot.history_ for change in r.get("eta_changes", [])]
    return {
        "experiment": "stopping",
        "setting": {"problem": name, "audited": audited, "n": n, "device": device},
        "seed": seed,
        "truth": truth,
        "value": spot.distance_.value,
        "error": spot.distance_.value / truth - 1,
        "steps": spot.history_[-1]["step"],
        "stopped": spot.history_[-1].get("stopped"),
        "audits": sum("audit" in record for record in spot.history_),
        "eta": list(spot.marginal_weights_.eta),
        "eta_changes": changes,
        "verdicts": [marginal.verdict for marginal in evaluation.audit(spot.plan_, *xs).marginals],
        "seconds": round(seconds, 1),
    }


def summary(rows: list[dict[str, Any]]) -> None:
    print(f"\n{'problem':18s} {'audited':>8s} {'mean error':>11s} {'worst':>7s} {'steps':>12s} {'doublings':>10s}")
    for name in CASES:
        for audited in (False, True):
            mine = [r for r in rows if (r["setting"]["problem"], r["setting"]["audited"]) == (name, audited)]
            if mine:
                errors = [abs(r["error"]) for r in mine]
                steps = "/".join(str(r["steps"]) for r in mine)
                doublings = "/".join(str(len(r["eta_changes"])) for r in mine)
                print(f"{name:18s} {audited!s:>8s} {np.mean(errors):11.2%} {max(errors):7.2%} {steps} {doublings}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("stopping.jsonl"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--hardware", default=platform.machine())
    parser.add_argument("--quick", action="store_true", help="a few steps on little data, to see that it runs")
    arguments = parser.parse_args()
    n, steps = (2000, 40) if arguments.quick else (N, None)
    facts = provenance() | {"hardware": arguments.hardware}
    rows: list[dict[str, Any]] = []
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(arguments.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        runs = [
            pool.submit(run, name, audited, seed, n, steps, arguments.device)
            for name in CASES
            for audited in (True, False)
            for seed in range(arguments.seeds)
        ]
        for done in as_completed(runs):
            rows.append(done.result() | facts)
            arguments.out.write_text("".join(json.dumps(r) + "\n" for r in rows))
    summary(rows)


if __name__ == "__main__":
    main()
