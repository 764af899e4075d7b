"""How often certificates hold the truth, and how wide they are. Writes one JSON object a line.

    python benchmarks/interval_coverage.py --out results/coverage.jsonl [--problems 207] [--jobs 2] [--quick]
    python benchmarks/interval_coverage.py --widths --out results/certificate_widths.jsonl [--figure widths.png]

Coverage: random problems with known truth (tests/random_problems.py: nine kinds in 1 to 8 dimensions, both costs), 6000
rows a side, with plans that are untrained, badly trained and trained in turn. Widths: dimensions 1 to 64, 10⁵ rows.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from accuracy import provenance
from random_problems import KINDS, random_problem
from torchspot import SPOT, costs, engines, evaluation

ROWS, WIDTH_ROWS = 6000, 100_000
STEPS = {"untrained": 1, "badly trained": 50, "trained": 1500}
DIMENSIONS = (1, 2, 4, 8, 16, 32, 64)


def covered(number: int, n: int, quick: bool) -> dict[str, Any]:
    """The certificate of one random problem."""
    torch.set_num_threads(1)
    problem = random_problem(number, n)
    plan_kind = list(STEPS)[(number // len(KINDS)) % len(STEPS)]
    steps = 1 if quick else STEPS[plan_kind]
    spot = SPOT(cost=problem.cost, steps=steps, batch_size=256, seed=number, engine=engines.Eager("cpu"))
    plan = spot.fit(*problem.xs).plan_
    setting = {
        "number": number,
        "kind": problem.kind,
        "dim": problem.dim,
        "cost": str(problem.cost),
        "plan": plan_kind,
        "n": n,
    }
    return {"experiment": "coverage", "setting": setting} | certified(plan, problem.xs, problem.value)


def certified(plan: Any, xs: Any, truth: float) -> dict[str, Any]:
    started = time.perf_counter()
    certificate = evaluation.certify(plan, *xs)
    return {
        "truth": truth,
        "covered": certificate.lower <= truth <= certificate.upper,
        **certificate.as_dict(),
        "seconds": round(time.perf_counter() - started, 1),
    }


def width_problem(name: str, dim: int, n: int) -> tuple[tuple[np.ndarray, np.ndarray], Any, float]:
    """Three problems that exist in every dimension."""
    rng = np.random.default_rng(dim)
    x, y = rng.normal(size=(n, dim)), rng.normal(size=(n, dim))
    shift = np.eye(dim)[0] * 5
    if name == "translation, Euclidean":
        return (x, y + shift), costs.euclidean, 5.0
    if name == "translation, squared":
        return (x, y + shift), costs.squared_euclidean, 25.0
    r = rng.uniform(1, 3, size=(n, 1))
    return (x, y + r * y / np.linalg.norm(y, axis=1, keepdims=True)), costs.euclidean, 2.0


WIDTHS = ("translation, Euclidean", "translation, squared", "stretch, Euclidean")


def width(name: str, dim: int, n: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    xs, cost, truth = width_problem(name, dim, n)
    plan = SPOT(cost=cost, steps=1, engine=engines.Eager("cpu")).fit(*xs).plan_
    setting = {"problem": name, "dim": dim, "cost": str(cost), "n": n}
    return {"experiment": "certificate width", "setting": setting} | certified(plan, xs, truth)


def coverage_table(rows: list[dict[str, Any]]) -> None:
    names = ("problems", "covered", "width", "below", "above", "seconds")
    print(f"\n{'kind (medians)':15s}" + "".join(f"{name:>9s}" for name in names))
    kinds = [*KINDS, "all"]
    for kind in kinds:
        mine = [row for row in rows if kind in (row["setting"]["kind"], "all")]
        if not mine:
            continue
        below = np.median([1 - row["lower"] / row["truth"] for row in mine])
        above = np.median([row["upper"] / row["truth"] - 1 for row in mine])
        seconds = np.median([row["seconds"] for row in mine])
        count = sum(row["covered"] for row in mine)
        middle = np.median([row["width"] for row in mine])
        print(f"{kind:15s}{len(mine):9d}{count:9d}{middle:9.1%}{below:9.1%}{above:9.1%}{seconds:9.0f}")


def width_table(rows: list[dict[str, Any]]) -> None:
    print(f"\n{'problem':24s} {'dim':>4s} {'lower':>8s} {'upper':>8s} {'seconds':>8s}")
    for row in sorted(rows, key=lambda row: (row["setting"]["problem"], row["setting"]["dim"])):
        below, above = (row[side] / row["truth"] - 1 for side in ("lower", "upper"))
        name, dim = row["setting"]["problem"], row["setting"]["dim"]
        print(f"{name:24s} {dim:4d} {below:+8.2%} {above:+8.2%} {row['seconds']:8.0f}")


def draw_widths(rows: list[dict[str, Any]], file: Path) -> None:
    """How far either bound is from the truth, against the dimension."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    for k, name in enumerate(WIDTHS):
        mine = sorted((r for r in rows if r["setting"]["problem"] == name), key=lambda r: r["setting"]["dim"])
        dims = [row["setting"]["dim"] for row in mine]
        above = [100 * (row["upper"] / row["truth"] - 1) for row in mine]
        below = [100 * (1 - row["lower"] / row["truth"]) for row in mine]
        axes.loglog(dims, np.maximum(above, 0.01), f"C{k}o-", label=f"{name}: upper bound")
        axes.loglog(dims, np.maximum(below, 0.01), f"C{k}s--", label=f"{name}: lower bound")
    axes.set(xlabel="dimension", ylabel="distance from the truth, %", title="Bounds of certify, $10^5$ rows a side")
    axes.set_xticks(DIMENSIONS, [str(dim) for dim in DIMENSIONS])
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("coverage.jsonl"))
    parser.add_argument("--problems", type=int, default=207)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--widths", action="store_true")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--hardware", default="CPU")
    parser.add_argument("--quick", action="store_true", help="few problems on little data, to see that it runs")
    arguments = parser.parse_args()
    facts = provenance() | {"hardware": arguments.hardware}
    rows: list[dict[str, Any]] = []
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(arguments.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        if arguments.widths:
            n, dims = (1000, DIMENSIONS[:2]) if arguments.quick else (WIDTH_ROWS, DIMENSIONS)
            runs = [pool.submit(width, name, dim, n) for dim in dims[::-1] for name in WIDTHS]
        else:
            n, count = (500, 9) if arguments.quick else (ROWS, arguments.problems)
            runs = [
                pool.submit(covered, k, n, arguments.quick) for k in range(arguments.first, arguments.first + count)
            ]
        for done in as_completed(runs):
            rows.append(done.result() | facts)
            arguments.out.write_text("".join(json.dumps(r) + "\n" for r in rows))
    (width_table if arguments.widths else coverage_table)(rows)
    if arguments.figure:
        draw_widths(rows, arguments.figure)


if __name__ == "__main__":
    main()
