"""The table and the figure of the comparison with peers, from its rows.

    python benchmarks/peer_report.py results/peers.jsonl --table docs/peers_table.md --figure docs/images/peers.png

Of rows of one setting the last ones count. What the rows of the data leave open of the distance, whoever asks them, is
shown beside the errors: one standard deviation, by the optimal potentials.
"""

import argparse
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

from peer_problems import laws

Cells = dict[tuple[Any, ...], dict[str, Any]]
KEYS = ("device", "cost", "problem", "d", "method", "n")
DEVICES = ("cuda", "cpu")
COSTS = {"euclidean": "Euclidean", "squared_euclidean": "squared Euclidean", "learned": "learned"}


def read(file: Path) -> Cells:
    """Metrics (or a reason) of each cell, and where it ran and with how much time."""
    rows = list(map(json.loads, file.read_text().splitlines()))
    cells: Cells = {}
    for row in rows:
        key = tuple(row["setting"][name] for name in KEYS)
        if row["metric"] in cells.get(key, {}) or "reason" in row:
            cells[key] = {}
        cells.setdefault(key, {})[row["metric"]] = row["value"]
        cells[key]["where"] = f"{row['hardware']}, {row['budget_seconds']:g} s"
        if "reason" in row:
            cells[key]["reason"] = row["reason"]
    return cells


@cache
def left_open(cost: str, problem: str, d: int) -> float:
    """What one row of each law leaves open of the distance, over the distance."""
    world, device = laws(problem, "squared_euclidean" if cost == "learned" else cost, d), torch.device("cpu")
    return world.spread_of_a_row(device) / world.truth(device)


def table(cells: Cells) -> str:
    """Markdown: one table for each device and cost; of methods that never have an answer, why."""
    parts = []
    for device in DEVICES:
        for cost, name in COSTS.items():
            mine = {key: found for key, found in cells.items() if key[:2] == (device, cost)}
            if mine:
                where = "; ".join(dict.fromkeys(found["where"] for found in mine.values()))
                parts.append(f"### {name} cost: {where}\n\n{one_table(mine)}")
    return "\n".join(parts)


def one_table(cells: Cells) -> str:
    cost = next(key[1] for key in cells)
    sizes = sorted({key[5] for key in cells})
    lines = [
        "| problem | d | method | " + " | ".join(f"n = {short_number(n)}" for n in sizes) + " |",
        "|" + "---|" * (3 + len(sizes)),
    ]
    left_out: list[str] = []
    for (problem, d), some in itertools.groupby(unique(key[2:5] for key in cells), key=lambda named: named[:2]):
        spread = left_open(cost, problem, d)
        own = [f"± {100 * spread / math.sqrt(n):.2g} %" for n in sizes]
        lines.append(table_row(problem, d, "*the rows themselves*", own))
        for _, _, method in some:
            found = [next((v for k, v in cells.items() if k[2:] == (problem, d, method, n)), None) for n in sizes]
            why = never(found)
            if why is None:
                lines.append(table_row(problem, d, method, map(entry, found)))
            else:
                left_out.append(f"Not in the table: {method}: {why}.\n")
    return "\n".join([*lines, "", *dict.fromkeys(left_out)])


def table_row(problem: str, d: int, method: str, entries: Iterable[str | None]) -> str:
    return f"| {problem} | {d} | {method} | " + " | ".join(one or "" for one in entries) + " |"


def never(found: Sequence[dict[str, Any] | None]) -> str | None:
    """Why a method has no answer of any size, where that is neither time nor memory nor a crash."""
    if not all(one is None or "reason" in one for one in found):
        return None
    why = short(next(one["reason"] for one in found if one is not None))
    return None if why.startswith(("time", "memory", "crashed")) else why


def unique(keys: Iterable[Any]) -> list[Any]:
    """Sorted: mixtures first, then by dimension; methods in the order in which they were run."""
    seen = list(dict.fromkeys(keys))
    order = {method: k for k, method in enumerate(dict.fromkeys(key[2] for key in seen))}
    return sorted(seen, key=lambda key: (key[0] != "mixture", key[1], key[2] != "torchspot", order[key[2]]))


def entry(found: dict[str, Any] | None) -> str:
    """Error of the value in %, error of the pairs, seconds, memory."""
    if found is None:
        return ""
    if "reason" in found:
        return short(found["reason"])
    pairs = f"{found['pair_error']:.2g}" if "pair_error" in found else "–"
    error = 100 * found["error"]
    said = f"{error:+.0f}" if abs(error) >= 10 else f"{error:+.1f}"
    size = found["peak_bytes"] / 1e6
    memory = f"{size / 1000:.3g} GB" if size >= 1000 else f"{size:.0f} MB"
    return f"**{said} %**, {pairs}, {found['seconds']:.2g} s, {memory}"


def short(reason: str) -> str:
    kind, _, more = reason.partition(": ")
    return {"time": "time", "memory": "memory", "failed": "crashed", "cost not supported": "cost not supported"}.get(
        kind, reason if not more else f"{kind} {more}"
    )


def short_number(n: int) -> str:
    """Powers of ten as such."""
    zeros = len(str(n)) - 1
    return "10" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(zeros)) if n == 10**zeros else str(n)


def draw(cells: Cells, file: Path) -> None:
    """|error| against n for mixtures: a panel for each cost and dimension, filled on the GPU and open on the CPU."""
    dims = sorted({key[3] for key in cells})
    answered = {key[4] for key, found in cells.items() if "reason" not in found}
    methods = sorted(answered, key=lambda method: (method != "torchspot", method))
    colours = dict(zip(methods, ["black", *(f"C{k}" for k in range(10))], strict=False))
    sizes = sorted({key[5] for key in cells})
    figure, axes = plt.subplots(len(COSTS), len(dims), figsize=(12, 10), sharex=True, sharey=True, squeeze=False)
    for row, (cost, name) in zip(axes, COSTS.items(), strict=True):
        for axis, d in zip(row, dims, strict=True):
            for device, style in (("cuda", "-"), ("cpu", ":")):
                for method, colour in colours.items():
                    points = sorted(
                        (key[5], max(1e-4, abs(found["error"])))
                        for key, found in cells.items()
                        if key[:5] == (device, cost, "mixture", d, method) and "reason" not in found
                    )
                    if points:
                        filled = colour if device == "cuda" else "white"
                        axis.plot(*zip(*points, strict=True), style, color=colour, marker="o", mfc=filled)
            own = [left_open(cost, "mixture", d) / math.sqrt(n) for n in sizes]
            axis.plot(sizes, own, color="grey", linewidth=6, alpha=0.3, zorder=0)
            axis.set(title=f"{name} cost, {d} dimensions", xscale="log", yscale="log")
    for axis in axes[-1]:
        axis.set_xlabel("rows of each data set")
    for axis in axes[:, 0]:
        axis.set_ylabel("|error of the distance|")
    handles = [plt.Line2D([], [], color=colour, marker="o", label=method) for method, colour in colours.items()]
    devices = [plt.Line2D([], [], color="black", marker="o", label="filled: a GPU")]
    devices += [plt.Line2D([], [], color="black", marker="o", mfc="white", linestyle=":", label="open: a CPU core")]
    rows = plt.Line2D([], [], color="grey", linewidth=6, alpha=0.3, label="the rows themselves: one deviation")
    figure.legend(handles=[*handles, *devices, rows], loc="lower center", ncols=6, frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(file, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    report(arguments.rows, arguments.table, arguments.figure)


def report(rows: Path, text: Path | None = None, figure: Path | None = None) -> None:
    """Writes both beside the rows, or where they are asked for."""
    cells = read(rows)
    (text or rows.with_suffix(".md")).write_text(table(cells))
    draw(cells, figure or rows.with_suffix(".png"))


if __name__ == "__main__":
    main()
