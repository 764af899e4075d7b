"""Points as files and files as points: samples, grids, rows."""

__all__ = ["GRID", "SAMPLE_TYPES", "Grid", "rows_of", "writer"]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch

from torchspot.cli.options import choice
from torchspot.data.points import all_rows
from torchspot.errors import InvalidArgument
from torchspot.networks.generators import Shapes
from torchspot.plans import PooledPlan, PushforwardPlan
from torchspot.types import Samples

SAMPLE_TYPES = ".npz, .parquet or .csv"
GRID = "100"
"""Points along each coordinate, where no grid is given."""
_LARGEST, _SEEN = 10_000_000, 3000


@dataclass(frozen=True)
class Grid:
    """All combinations of some values of each coordinate of a joint sample."""

    lines: tuple[np.ndarray, ...]

    @classmethod
    def over(cls, plan: PushforwardPlan | PooledPlan, text: str) -> "Grid":
        """From words: a number of points, where the plan's samples lie; or low:high:points for every coordinate."""
        drawn = np.concatenate([x.flatten(1).double().cpu().numpy() for x in plan.sample(_SEEN, seed=0)], axis=1)
        lines = _around(drawn, text) if text.isdigit() else _between(text)
        if len(lines) != drawn.shape[1]:
            raise InvalidArgument(
                f"--grid names {len(lines)} coordinates, and a joint sample of this plan has {drawn.shape[1]}. "
                "Give low:high:points for each, with commas between."
            )
        points = math.prod(map(len, lines))
        if min(map(len, lines)) < 2 or points > _LARGEST:
            raise InvalidArgument(
                f"the grid has {points} points. Take at least 2 along each coordinate and at most {_LARGEST} in all, "
                "or give points of your own with --at."
            )
        return cls(lines)

    @property
    def cell(self) -> float:
        """What a point stands for, in length, area, volume, …"""
        return math.prod(float(line[1] - line[0]) for line in self.lines)

    def points(self, shapes: tuple[tuple[int, ...], ...]) -> Samples:
        """All of them, as samples of each marginal."""
        flat = torch.from_numpy(np.stack([axis.ravel() for axis in np.meshgrid(*self.lines, indexing="ij")], axis=1))
        return Shapes(len(self.lines), shapes).parted(torch.split(flat, [math.prod(s) for s in shapes], dim=1))


def _around(drawn: np.ndarray, count: str) -> tuple[np.ndarray, ...]:
    low, high = drawn.min(0), drawn.max(0)
    margin = 0.1 * (high - low)
    return tuple(np.linspace(a, b, int(count)) for a, b in zip(low - margin, high + margin, strict=True))


def _between(text: str) -> tuple[np.ndarray, ...]:
    try:
        parts = [(float(low), float(high), int(count)) for low, high, count in (p.split(":") for p in text.split(","))]
        if not all(-math.inf < low < high < math.inf and count > 0 for low, high, count in parts):
            raise ValueError("no range")
        return tuple(np.linspace(*part) for part in parts)
    except ValueError:
        raise InvalidArgument(
            f"--grid {text!r} is neither a number of points nor low:high:points, low < high, for every coordinate. "
            "Try --grid 200, or --grid=-3:3:200,-1:5:200."
        ) from None


def rows_of(plan: PushforwardPlan | PooledPlan, files: list[Path]) -> Samples:
    """All rows of these files, one file for each marginal."""
    if len(files) != len(plan.shapes):
        raise InvalidArgument(f"the plan has {len(plan.shapes)} marginals. Give --at FILE once for each.")
    return tuple(map(all_rows, files))


def writer(file: Path) -> Callable[..., None]:
    """What writes samples, columns beside them, and if need be the numbers of their marginals, into such a file."""
    types = {".npz": _write_npz, ".parquet": _write_parquet, ".csv": _write_csv}
    return choice("type of file", file.suffix, types, more="; pictures of a plan of pictures, a folder")


def _named(samples: Samples, numbers: Sequence[int] | None) -> dict[str, np.ndarray]:
    """x1, x2, …, or with these numbers."""
    numbers = range(1, len(samples) + 1) if numbers is None else numbers
    return {f"x{k}": x.cpu().numpy() for k, x in zip(numbers, samples, strict=True)}


def _table(samples: Samples, beside: dict[str, Any], numbers: Sequence[int] | None) -> pa.Table:
    """One column for each coordinate: x1_0, x1_1, …, x2_0, …"""
    flat = {name: x.reshape(len(x), -1) for name, x in _named(samples, numbers).items()}
    return pa.table({f"{name}_{j}": x[:, j] for name, x in flat.items() for j in range(x.shape[1])} | beside)


def _write_npz(file: Path, samples: Samples, beside: dict[str, Any], numbers: Sequence[int] | None = None) -> None:
    with file.open("wb") as stream:
        arrays: dict[str, Any] = _named(samples, numbers) | beside
        np.savez(stream, **arrays)


def _write_parquet(file: Path, samples: Samples, beside: dict[str, Any], numbers: Sequence[int] | None = None) -> None:
    pa.parquet.write_table(_table(samples, beside, numbers), file)


def _write_csv(file: Path, samples: Samples, beside: dict[str, Any], numbers: Sequence[int] | None = None) -> None:
    pa.csv.write_csv(_table(samples, beside, numbers), file)
