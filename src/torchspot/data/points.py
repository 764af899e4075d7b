"""Points that a user holds, one a row: to be moved, or to be told the density at."""

__all__ = ["all_rows", "as_points"]

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchspot.data.arrays import Rows
from torchspot.data.sources import check_real, rows_in
from torchspot.errors import InvalidArgument
from torchspot.types import Shape


def as_points(x: Any, shape: Shape, name: str) -> Tensor:
    """Points of this shape, in float64: an array, tensor, table or file.

    A flat list of numbers will do where a point is one number.
    """
    try:
        points = all_rows(x).double() if isinstance(x, str | Path) else _converted(x)
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(f"{name} is no array of numbers ({error}).") from error
    if points.ndim == 1 and shape == (1,):
        points = points[:, None]
    if tuple(points.shape[1:]) != shape or points.ndim == 0:
        raise InvalidArgument(
            f"{name} must have shape (rows, {', '.join(map(str, shape))}), and has {tuple(points.shape)}. "
            "For one point put it into a list: [x]."
        )
    if len(points) == 0:
        raise InvalidArgument(f"{name} has no rows. Give at least one point.")
    bad = (~torch.isfinite(points.flatten(1)).all(1)).nonzero()
    if len(bad):
        raise InvalidArgument(f"row {int(bad[0])} of {name} has a number that is not finite.")
    return points


def all_rows(file: str | Path | Rows) -> Tensor:
    """Every row of a file, in order; or of rows that are open."""
    if isinstance(file, Rows):
        return file.take(np.arange(len(file)))
    found = rows_in(Path(file), str(file))
    assert found is not None  # files have rows
    values, scale = found
    check_real(values, str(file))
    rows = Rows(values[:, None] if isinstance(values, np.ndarray) and values.ndim == 1 else values, scale=scale)
    return rows.take(np.arange(len(rows)))


def _converted(x: Any) -> Tensor:
    return x.detach().double() if isinstance(x, Tensor) else torch.from_numpy(np.array(x, dtype=np.float64))
