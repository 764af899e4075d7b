"""Samples with labels: rows of a table, and what each of them is."""

__all__ = ["BalancedRows", "LabelledRows", "Labels", "as_labels"]

import hashlib
import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.utils.multiclass import type_of_target
from torch import Tensor

from torchspot.data.arrays import Rows
from torchspot.errors import InvalidArgument


@dataclass(frozen=True)
class Labels:
    """The different labels, sorted, and for each row the number of its label."""

    classes: np.ndarray
    codes: Int[np.ndarray, " rows"]

    @property
    def shares(self) -> Float[np.ndarray, " classes"]:
        """Of rows with each label."""
        return np.bincount(self.codes, minlength=len(self.classes)) / len(self.codes)

    def fingerprint(self) -> str:
        """What tells these labels from others."""
        return hashlib.blake2b(repr(self.classes.tolist()).encode() + self.codes.tobytes(), digest_size=16).hexdigest()


def as_labels(labels: Any, rows: int, name: str = "ys") -> Labels:
    """Labels of any type (numbers, text, booleans), one a row; or an error that says what is wrong with them."""
    if labels is None:
        raise InvalidArgument(f"{name} is missing: give one label for each of the {rows} source rows.")
    values = np.asarray(labels)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise InvalidArgument(f"{name} must be one label a row, of shape ({rows},), and has shape {values.shape}.")
    if len(values) != rows:
        raise InvalidArgument(f"there are {rows} source rows and {len(values)} labels. Give one label a row, in order.")
    _check_present(values, name)
    classes, codes = np.unique(values, return_inverse=True)
    if len(classes) < 2:
        raise InvalidArgument(f"{name} has the single class {classes[0]!r}: there is nothing to tell apart. Give two.")
    return Labels(classes, codes)


class LabelledRows:
    """Draws rows as flat numbers, the number of their class at the end, uniformly and with replacement."""

    def __init__(self, rows: Rows, codes: Int[np.ndarray, " rows"]) -> None:
        self.rows, self.device = rows, rows.device
        self.codes = torch.from_numpy(codes).to(rows.device)

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch numbers"]:
        """Samples with their labels."""
        return self.take(torch.randint(len(self.rows), (size,), generator=generator, device=self.device))

    def take(self, chosen: Int[Tensor, " batch"]) -> Float[Tensor, "batch numbers"]:
        """The rows with these numbers."""
        x = self.rows.take(chosen).flatten(1)
        x = x if x.is_floating_point() else x.float()
        return torch.cat((x, self.codes[chosen, None].to(x.dtype)), dim=1)

    def to(self, device: torch.device, dtype: torch.dtype) -> "LabelledRows":
        """The same on another device, where rows can be there."""
        return LabelledRows(self.rows.to(device, dtype), self.codes.cpu().numpy())


class BalancedRows:
    """Draws as many rows of each class as of any other."""

    def __init__(self, rows: LabelledRows, classes: int) -> None:
        self.rows, self.device = rows, rows.device
        self._order = torch.argsort(rows.codes, stable=True)
        self._counts = torch.bincount(rows.codes, minlength=classes)
        self._starts = self._counts.cumsum(0) - self._counts

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch numbers"]:
        """Samples with their labels, class after class in turn."""
        k = torch.arange(size, device=self.device) % len(self._counts)
        share = torch.rand(size, generator=generator, device=self.device)
        within = (share * self._counts[k]).long().minimum(self._counts[k] - 1)
        return self.rows.take(self._order[self._starts[k] + within])


def _is_nan(value: Any) -> bool:
    return isinstance(value, Real) and math.isnan(value)


def _check_present(values: np.ndarray, name: str) -> None:
    """No label is missing, and numbers are classes rather than measurements."""
    if values.dtype.kind == "O":
        missing = [k for k, value in enumerate(values) if value is None or _is_nan(value)]
        kinds = {type(value) for value in values}
        if not missing and len(kinds) > 1:
            named = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise InvalidArgument(f"{name} mixes labels of types {named}. Give labels of one type.")
    else:
        missing = np.flatnonzero(np.isnan(values)).tolist() if values.dtype.kind == "f" else []
    if missing:
        raise InvalidArgument(f"the label of row {missing[0]} is missing ({len(missing)} are). Drop such rows first.")
    if values.dtype.kind in "fc" and type_of_target(values).startswith("continuous"):
        raise InvalidArgument(f"{name} holds fractions such as {values[0]}: classes are needed, not measurements.")
