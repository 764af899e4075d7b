"""The one place that looks at what kind of data it was given."""

__all__ = ["as_sampler", "check_order", "column_names", "rows_in"]

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from torchspot.data.arrays import Rows
from torchspot.data.distributions import CallableSampler, DistributionSampler
from torchspot.data.images import PictureFolder, image_files, read_images
from torchspot.data.loaders import Items, IterableSampler
from torchspot.data.parquet import (
    file_column_names,
    parquet_files,
    spooled,
    table_column_names,
    table_columns,
)
from torchspot.data.workers import Workers
from torchspot.errors import CorruptFile, InvalidArgument
from torchspot.types import Sampler

_ANY_ORDER = (SequentialSampler, RandomSampler, DistributedSampler)
"""Samplers of a DataLoader that only set the order of all rows, or deal them out to processes."""
_FILE_TYPES = ".npy, .npz, .csv, .parquet, or a folder of pictures or Parquet files"


def as_sampler(source: Any, *, weights: Any = None, name: str = "the data") -> Sampler:
    """An endless, seeded supply of samples from any kind of source.

    Args:
        source: a NumPy array, torch tensor, np.memmap, pandas or Arrow table, a path, a Dataset or DataLoader,
            a torch.distributions object, or a function `n -> samples`.
        weights: one number ≥ 0 for each row, for tables and arrays.
        name: how errors call the source.

    >>> sampler = as_sampler(np.zeros((5, 2)), name="X")
    >>> sampler.draw(3, torch.Generator()).shape
    torch.Size([3, 2])
    """
    rows = rows_in(source, name)
    if rows is not None:
        values, scale = rows
        return _row_sampler(values, weights, name, scale)
    if weights is not None:
        raise InvalidArgument(
            f"weights for {name} need rows to go with: an array, a table or a file, not {_kind(source)}."
        )
    return _endless(source, name)


def rows_in(source: Any, name: str) -> tuple[np.ndarray | Tensor | Items, float] | None:
    """Values with one row a sample, and a factor on them; None for sources without rows."""
    match source:
        case np.ndarray() | Tensor():
            return source, 1.0
        case str() | Path():
            return _open(Path(source), name)
        case PictureFolder():
            return source.read(), 1 / 255
        case pa.Table():
            return table_columns(source, name), 1.0
        case _ if hasattr(source, "to_numpy") and hasattr(source, "columns"):
            return _frame(source, name), 1.0
        case list() | tuple():
            return _from_list(source, name), 1.0
        case IterableDataset() | DataLoader(dataset=IterableDataset()):
            return None
        case DataLoader():
            return _from_loader(source, name), 1.0
        case Dataset():
            return Items(source, name=name), 1.0
    return None


def column_names(source: Any) -> list[str]:
    """Of a table or a file of one; none for what has no names."""
    match source:
        case str() | Path():
            path = Path(source)
            table = path.suffix.lower() in (".csv", ".parquet") or (path.is_dir() and parquet_files(path))
            return file_column_names(path) if table else []
        case pa.Table():
            return table_column_names(source.schema)
        case _ if hasattr(source, "to_numpy") and hasattr(source, "columns"):
            return list(map(str, source.columns))
    return []


def check_order(named: Sequence[tuple[str, Any]], of_all: Callable[[Any], list[Any]]) -> None:
    """Tables that have the same columns must have them in the same order: columns go by their place.

    Args:
        named: the sources, and how errors call them.
        of_all: gives what each of the processes that train together has, in their order.
    """
    here = [(name, column_names(source)) for name, source in named]
    known = [
        (f"{name} of process {rank}" if rank else name, columns)
        for rank, there in enumerate(of_all(here))
        for name, columns in there
        if columns
    ]
    for name, columns in known[1:]:
        first, usual = known[0]
        if columns != usual and sorted(columns) == sorted(usual):
            raise InvalidArgument(
                f"{name} has the columns of {first} in another order: {', '.join(columns)}, not {', '.join(usual)}. "
                "Columns go by their place: bring them into one order."
            )


def _endless(source: Any, name: str) -> Sampler:
    match source:
        case torch.distributions.Distribution():
            return DistributionSampler(source, name=name)
        case IterableDataset():
            return IterableSampler(DataLoader(source, batch_size=256), name=name)
        case DataLoader(dataset=IterableDataset()):
            return IterableSampler(source, name=name)
        case Sampler():
            return source
        case Callable():
            return CallableSampler(source, name=name)
    raise InvalidArgument(
        f"{name} is {_kind(source)}, which is not a kind of data torchspot reads. Pass a NumPy array, a torch tensor, "
        f"a pandas or Arrow table, a path ({_FILE_TYPES}), a Dataset or DataLoader, a torch.distributions object, "
        "or a function n -> samples."
    )


def _open(path: Path, name: str) -> tuple[np.ndarray, float]:
    if not path.exists():
        raise InvalidArgument(f"{name}: there is no file or folder {path}. Check the path.")
    if path.is_dir():
        return _open_folder(path, name)
    match path.suffix.lower():
        case ".npy":
            return _mapped(path), 1.0
        case ".npz":
            return _only_array(path), 1.0
        case ".csv" | ".parquet":
            return spooled(path), 1.0
    raise InvalidArgument(f"{name}: {path.name} is of a type torchspot does not read. Use {_FILE_TYPES}.")


def _open_folder(path: Path, name: str) -> tuple[np.ndarray, float]:
    if parquet_files(path):
        return spooled(path), 1.0
    if image_files(path):
        return read_images(path), 1 / 255
    raise InvalidArgument(f"{name}: the folder {path} holds neither pictures nor Parquet files.")


def _only_array(path: Path) -> np.ndarray:
    with _reading(path), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        names = list(archive.files)
        if len(names) == 1:
            return archive[names[0]]
    raise InvalidArgument(
        f"{path.name} holds {len(names)} arrays ({', '.join(names)}), and one is needed. "
        f"Pass the one you mean as an array: np.load({path.name!r})[…]."
    )


def _mapped(path: Path) -> np.ndarray:
    with _reading(path):
        return np.load(path, mmap_mode="r", allow_pickle=False)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever goes wrong inside is the file's fault."""
    try:
        yield
    except Exception as error:
        raise CorruptFile(f"{path} is cut short, damaged or not a NumPy file of numbers: {error}.") from error


def _frame(source: Any, name: str) -> np.ndarray:
    """The columns of a pandas-like frame as numbers."""
    for column, kind in zip(source.columns, source.dtypes, strict=True):
        if not (hasattr(kind, "kind") and kind.kind in "iufb"):
            raise InvalidArgument(
                f"{name}: column {column!r} holds {kind}, not numbers. Drop it or encode it as numbers first."
            )
    return source.to_numpy(dtype=float if len({kind.kind for kind in source.dtypes}) > 1 else None)


def _from_loader(loader: DataLoader[Any], name: str) -> Items:
    """Its dataset, collate function and workers; rows are drawn by torchspot, so a choice of rows would be lost."""
    batches = loader.batch_sampler
    for chosen, usual in ((loader.sampler, _ANY_ORDER), (batches, (BatchSampler, type(None)))):
        if type(chosen) not in usual:
            raise InvalidArgument(
                f"{name}: the DataLoader chooses its samples by a {type(chosen).__name__}, and torchspot draws rows "
                "itself, all alike. Pass torch.utils.data.Subset(dataset, indices) to leave rows out, or "
                "fit(…, weights=…), one number a row, to have some more often."
            )
    if batches is None:
        raise InvalidArgument(
            f"{name}: the DataLoader has batch_size=None, so an item of its dataset may be one sample or many. Give it "
            "a batch_size (any: torchspot draws its own batches) and a dataset whose items are single samples."
        )
    return Items(loader.dataset, name=name, collate=loader.collate_fn, workers=Workers.of(loader))


def _from_list(source: Any, name: str) -> np.ndarray:
    if any(isinstance(one, str | Path) for one in source):
        raise InvalidArgument(f"{name} is a list of paths or text. Pass one path: a file, or the folder of all files.")
    try:
        return np.asarray(source)
    except ValueError as error:
        raise InvalidArgument(f"{name} is a list whose rows do not agree in length: {error}.") from error


def _row_sampler(values: np.ndarray | Tensor | Items, weights: Any, name: str, scale: float) -> Rows:
    check_real(values, name)
    if len(values) == 1:
        raise InvalidArgument(f"{name} has a single sample (shape {tuple(values.shape)}). Pass at least 2, one a row.")
    if 0 in values.shape:
        raise InvalidArgument(f"{name} has no columns (shape {tuple(values.shape)}). Pass at least one.")
    weights = _check_weights(weights, len(values), name)
    if isinstance(values, Items):
        return Rows(values, name=name, weights=weights)
    values = values.detach() if isinstance(values, Tensor) else values
    rows = Rows(values[:, None] if values.ndim == 1 else values, name=name, weights=weights, scale=scale)
    rows.check_finite()
    return rows


def check_real(values: np.ndarray | Tensor | Items, name: str) -> None:
    """Real numbers, and rows of them."""
    if not isinstance(values, Items):
        complex_or_text = values.is_complex() if isinstance(values, Tensor) else values.dtype.kind not in "iufb"
        if complex_or_text:
            raise InvalidArgument(f"{name} holds values of type {values.dtype}, not real numbers. Convert them first.")
    if len(values.shape) == 0 or len(values) == 0:
        raise InvalidArgument(f"{name} is empty (shape {tuple(values.shape)}). Pass some rows.")


def _check_weights(weights: Any, count: int, name: str) -> np.ndarray | None:
    if weights is None:
        return None
    w = np.asarray(weights, dtype=np.float64).reshape(-1)
    if len(w) != count:
        raise InvalidArgument(f"{name} has {count} rows and its weights are {len(w)}. Pass one weight a row.")
    if not np.isfinite(w).all() or (w < 0).any():
        k = int(np.flatnonzero(~np.isfinite(w) | (w < 0))[0])
        raise InvalidArgument(f"the weight of row {k} of {name} is {w[k]}. Weights must be finite and at least 0.")
    if w.sum() <= 0:
        raise InvalidArgument(f"the weights of {name} sum to zero. At least one must be above 0.")
    return w


def _kind(source: Any) -> str:
    return f"of type {type(source).__name__}"
