"""Samples with labels: rows of a table, and what each of them is."""

__all__ = ["BalancedRows", "LabelledRows", "Labels", "as_labels"]

import functools
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from torchspot.data.arrays import Rows
from torchspot.errors import InvalidArgument


@dataclass(frozen=True)
class Labels:
    """The different labels, sorted, and for each row the number of its label."""

    classes: np.ndarray
    codes: Int[np.ndarray, " rows"]

    def shares(self, rows: Rows | None = None) -> Float[np.ndarray, " classes"]:
        """Of each label, by the weights of the rows where these have some."""
        return np.bincount(self.codes, None if rows is None else rows.shares(), len(self.classes)) / (
            len(self.codes) if rows is None else 1.0
        )

    def fingerprint(self) -> str:
        """What tells these labels from others."""
        return hashlib.blake2b(repr(self.classes.tolist()).encode() + self.codes.tobytes(), digest_size=16).hexdigest()


def as_labels(labels: Any, rows: int, name: str = "ys") -> Labels:
    """Labels that are whole numbers, text or booleans, one a row; or an error that says what is wrong with them."""
    if labels is None:
        raise InvalidArgument(f"{name} is missing: give one label for each of the {rows} source rows.")
    values = _array(labels)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise InvalidArgument(f"{name} must be one label a row, of shape ({rows},), and has shape {values.shape}.")
    if len(values) != rows:
        raise InvalidArgument(f"there are {rows} source rows and {len(values)} labels. Give one label a row, in order.")
    classes, codes = np.unique(_of_one_kind(values, name), return_inverse=True)
    if len(classes) < 2:
        raise InvalidArgument(f"{name} has the single class {classes[0]}: there is nothing to tell apart. Give two.")
    return Labels(classes, codes)


class LabelledRows:
    """Draws rows as flat numbers, the number of their class at the end, as the rows are drawn (by weight, say)."""

    def __init__(self, rows: Rows, codes: Int[np.ndarray, " rows"]) -> None:
        self.rows, self.device, self.slow = rows, rows.device, rows.slow
        self.codes = torch.from_numpy(codes).to(rows.device)

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch numbers"]:
        """Samples with their labels."""
        return self.take(self.rows.draw_indices(size, generator))

    def later(self, size: int, generator: torch.Generator) -> Callable[[], Float[Tensor, "batch numbers"]]:
        """Draws which rows are taken, and gives what reads them."""
        self.rows.begin()
        return functools.partial(self.take, self.rows.draw_indices(size, generator))

    def close(self) -> None:
        """Ends worker processes that read rows."""
        self.rows.close()

    def take(self, chosen: Int[Tensor, " batch"]) -> Float[Tensor, "batch numbers"]:
        """The rows with these numbers."""
        x = self.rows.take(chosen).flatten(1)
        x = x.to(torch.float64 if not x.is_floating_point() else torch.promote_types(x.dtype, torch.float32))
        return torch.cat((x, self.codes[chosen, None].to(x.dtype)), dim=1)

    def to(self, device: torch.device, dtype: torch.dtype) -> "LabelledRows":
        """The same on another device, where rows can be there."""
        return LabelledRows(self.rows.to(device, dtype), self.codes.cpu().numpy())


class BalancedRows:
    """Draws as many rows of each class as of any other; within a class as the rows are drawn (by weight, say)."""

    def __init__(self, rows: LabelledRows, classes: int) -> None:
        self.rows, self.device, self.slow = rows, rows.device, rows.slow
        codes = rows.codes.cpu().numpy()
        order = np.argsort(codes, kind="stable")
        until = np.cumsum(rows.rows.shares()[order])
        ends = np.append(0.0, until)[np.searchsorted(codes[order], np.arange(classes), side="right")]
        sizes = np.diff(ends, prepend=0.0)
        seen = sizes > 0
        tables = (order, until, ends[seen], sizes[seen])
        self._order, self._until, self._ends, self._sizes = (torch.from_numpy(a).to(self.device) for a in tables)

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch numbers"]:
        """Samples with their labels, class after class in an order of its own for each draw."""
        return self.rows.take(self._draw_indices(size, generator))

    def later(self, size: int, generator: torch.Generator) -> Callable[[], Float[Tensor, "batch numbers"]]:
        """Draws which rows are taken, and gives what reads them."""
        self.rows.rows.begin()
        return functools.partial(self.rows.take, self._draw_indices(size, generator))

    def close(self) -> None:
        """Ends worker processes that read rows."""
        self.rows.close()

    def _draw_indices(self, size: int, generator: torch.Generator) -> Int[Tensor, " batch"]:
        turn = torch.rand(len(self._sizes), generator=generator, device=self.device).argsort()
        k = turn[torch.arange(size, device=self.device) % len(turn)]
        above = torch.rand(size, generator=generator, device=self.device, dtype=torch.float64)
        place = torch.searchsorted(self._until, self._ends[k] - above * self._sizes[k])
        return self._order[place]


def _array(labels: Any) -> np.ndarray:
    if isinstance(labels, Tensor):
        return labels.detach().cpu().numpy()
    # A list of numbers and text would become text without a word.
    return np.array(labels, dtype=object) if isinstance(labels, list | tuple) else np.asarray(labels)


def _of_one_kind(values: np.ndarray, name: str) -> np.ndarray:
    """None is missing, all are text or all are numbers, and numbers are classes rather than measurements."""
    missing = [k for k, value in enumerate(values.tolist()) if _is_missing(value)]
    if missing:
        raise InvalidArgument(f"the label of row {missing[0]} is missing ({len(missing)} are). Drop such rows first.")
    if values.dtype.kind == "O":
        kinds = {_kind(value) for value in values}
        if len(kinds) > 1:
            raise InvalidArgument(f"{name} mixes labels of kinds {', '.join(sorted(kinds))}. Give labels of one kind.")
        values = np.array(values.tolist())
    if values.dtype.kind not in "biufU":
        raise InvalidArgument(
            f"{name} holds labels of type {values.dtype}. Give whole numbers, text or booleans: ys.astype(str), say."
        )
    if values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.round(values))).all():
        raise InvalidArgument(f"{name} holds fractions such as {values[0]}: classes are needed, not measurements.")
    return values


def _is_missing(value: Any) -> bool:
    """None, nan, and what pandas has for them."""
    nan = isinstance(value, float) and math.isnan(value)
    return value is None or nan or type(value).__name__ in ("NAType", "NaTType")


def _kind(value: Any) -> str:
    return "text" if isinstance(value, str) else "numbers" if isinstance(value, Real) else type(value).__name__
