"""Tables on disk (Parquet, CSV), copied once to a memory map: draws stay uniform, nothing is loaded whole."""

__all__ = ["file_column_names", "parquet_files", "spooled", "table_column_names", "table_columns"]

import hashlib
import itertools
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from jaxtyping import Float

from torchspot.errors import CorruptFile, InvalidArgument, TorchspotError
from torchspot.storage import free_space, replacing

_NUMBERS = 1 << 22
"""That are read at once, whatever the number of columns."""
_BLOCK = 1 << 24
"""Bytes of a CSV file that are read at once: a header must fit."""
_DAY = 86_400.0


def spooled(path: Path) -> Float[np.ndarray, "rows columns"]:
    """The numbers of a Parquet or CSV file (or a folder of Parquet files) as a memory map; made at most once."""
    with _reading(path):
        cache = _cache_file(path)
    if _is_whole(cache):
        return np.load(cache, mmap_mode="r")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        _sweep(cache)
        _spool(path, cache)
        return np.load(cache, mmap_mode="r")
    except OSError as error:
        raise TorchspotError(
            f"{path} is copied to {cache.parent} to be drawn from, and that failed: {error}. Set TORCHSPOT_CACHE to a "
            "folder that can be written to."
        ) from error


def file_column_names(path: Path) -> list[str]:
    """Of a Parquet or CSV file, or of the first file of a folder; of a CSV file without a header they are made up."""
    if path.suffix.lower() == ".csv":
        with _reading(path):
            return list(_open_csv(path).schema.names)
    return table_column_names(_opened(_files(path)[0]).schema_arrow)


def table_column_names(schema: pa.Schema) -> list[str]:
    """Without those in which pandas keeps the index of a frame."""
    return [schema.field(k).name for k in _fields(schema)]


def table_columns(table: pa.Table | pa.RecordBatch, name: str) -> Float[np.ndarray, "rows columns"]:
    """The columns of an Arrow table side by side, as float64 (float32 if all are); an index of pandas is none."""
    table = table.select(_fields(table.schema))
    for field in table.schema:
        if not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_boolean(field.type)):
            raise InvalidArgument(
                f"{name}: column {field.name!r} holds {field.type}, not numbers. Drop it or encode it as numbers first."
            )
    kind = np.float32 if all(f.type in (pa.float32(), pa.float16()) for f in table.schema) else np.float64
    columns = [np.asarray(column.to_numpy(zero_copy_only=False), dtype=kind) for column in _arrays(table)]
    return np.stack(columns, axis=1) if columns else np.empty((table.num_rows, 0), dtype=kind)


def _fields(schema: pa.Schema) -> list[int]:
    """Numbers of the columns, without those in which pandas keeps the index of a frame."""
    index = set(map(str, (schema.pandas_metadata or {}).get("index_columns", ())))
    return [k for k, field in enumerate(schema) if field.name not in index]


def _arrays(table: pa.Table | pa.RecordBatch) -> list[pa.Array]:
    if isinstance(table, pa.Table):
        return [
            pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0) for column in table.columns
        ]
    return list(table.columns)


def _spool(path: Path, cache: Path) -> None:
    """Copies the numbers into the cache, which is there whole or not at all."""
    before = _stats(path)
    count = _row_count(path)
    batches = _batches(path)
    first = next(batches, None)
    if first is None or count == 0:
        raise InvalidArgument(f"{path} has no rows. Pass a file with at least 2.")
    needed = count * first.shape[1] * first.itemsize
    if needed > free_space(cache.parent):
        raise TorchspotError(
            f"not enough disk space to open {path}: its {count} rows need {needed / 2**20:.0f} MiB under "
            f"{cache.parent}. Free some space, or set TORCHSPOT_CACHE to a folder on a larger disk."
        )
    with replacing(cache) as temporary:
        written = _write(temporary, itertools.chain([first], batches), first, count)
        with _reading(path):
            after = _stats(path)
        if after != before:
            raise CorruptFile(f"{path} was changed while it was read. Wait until it is complete, and start again.")
        if written != count:
            raise CorruptFile(f"{path} says that it has {count} rows, and holds {written}. It is damaged.")


def _sweep(cache: Path) -> None:
    """Removes copies of this table as it was before, and what is left of any that were ended half-way.

    Those of the last day stay: they may be in use, or about to be.
    """
    table, _, _ = cache.name.partition("-")
    for old in (*cache.parent.glob(".*.part"), *cache.parent.glob(f"{table}-*.npy")):
        with suppress(OSError):  # another process has just finished it, or has it open where that forbids it
            if time.time() - old.stat().st_mtime > _DAY:
                old.unlink()


def _is_whole(cache: Path) -> bool:
    """Whether the copy is there; one that was cut short is made anew."""
    try:
        np.load(cache, mmap_mode="r")
    except (OSError, EOFError, ValueError):
        return False
    return True


@contextmanager
def _reading(path: Path, what: str = "the file") -> Iterator[None]:
    """Whatever goes wrong inside is the file's fault."""
    try:
        yield
    except FileNotFoundError as error:
        raise CorruptFile(f"{path} cannot be read: {error}. Was it moved, or is it a link to what was?") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptFile(f"{path} cannot be read: {what} is cut short or damaged ({error}).") from error


def _write(target: Path, batches: Iterable[np.ndarray], like: np.ndarray, count: int) -> int:
    """The rows as a .npy file of `count` rows; gives how many there were.

    They are written, not mapped: on a full disk a write fails, where a map would end the process.
    """
    filled = 0
    header = {"descr": like.dtype.str, "fortran_order": False, "shape": (count, like.shape[1])}
    with target.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for batch in batches:
            file.write(np.ascontiguousarray(batch).data)
            filled += len(batch)
    return filled


def _row_count(path: Path) -> int:
    if path.suffix.lower() == ".csv":
        return sum(batch.num_rows for batch in _csv_batches(path))
    return sum(_opened(file).metadata.num_rows for file in _files(path))


def _batches(path: Path) -> Iterator[np.ndarray]:
    if path.suffix.lower() == ".csv":
        for batch in _csv_batches(path):
            yield table_columns(batch, str(path))
        return
    first, *_ = files = _files(path)
    columns = _columns(_opened(first).schema_arrow)
    if not columns:
        raise InvalidArgument(f"{path} has no columns. Pass a file with at least one of numbers.")
    for file in files:
        opened = _opened(file)
        if _columns(opened.schema_arrow) != columns:
            raise InvalidArgument(
                f"{file} has other columns than {first}: {_columns(opened.schema_arrow)}, not {columns}. "
                "Give all files of a folder the same columns, in the same order and of the same types."
            )
        for k in range(opened.num_row_groups):
            with _reading(file, f"row group {k + 1} of {opened.num_row_groups}"):
                for batch in opened.iter_batches(max(1, _NUMBERS // len(opened.schema)), row_groups=[k]):
                    yield table_columns(batch, str(file))


def _opened(file: Path) -> pa.parquet.ParquetFile:
    with _reading(file):
        return pa.parquet.ParquetFile(file, page_checksum_verification=True)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{schema.field(k).name} ({schema.field(k).type})" for k in _fields(schema))


def _csv_batches(path: Path) -> Iterator[pa.RecordBatch]:
    with _reading(path):
        yield from _open_csv(path)


def _open_csv(path: Path) -> pa.csv.CSVStreamingReader:
    """A reader of the file, whose first line is a header unless it is all numbers. Integers become floats."""
    reading = pa.csv.ReadOptions(block_size=_BLOCK)
    reading.autogenerate_column_names = all(map(_is_number, pa.csv.open_csv(path, read_options=reading).schema.names))
    schema = pa.csv.open_csv(path, read_options=reading).schema
    floats = {field.name: pa.float64() for field in schema if pa.types.is_integer(field.type)}
    return pa.csv.open_csv(path, read_options=reading, convert_options=pa.csv.ConvertOptions(column_types=floats))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def parquet_files(folder: Path) -> list[Path]:
    """Of a folder and those in it, links to others included, without hidden ones and what writers leave beside them."""
    found: list[Path] = []
    seen: set[Path] = set()
    for place, inner, names in os.walk(folder, followlinks=True):
        here = Path(place)
        if here.resolve() in seen:  # links may lead back
            inner.clear()
            continue
        seen.add(here.resolve())
        inner[:] = sorted(name for name in inner if name[0] not in "._")
        found += [here / name for name in names if name[0] not in "._" and name.lower().endswith(".parquet")]
    return sorted(found)


def _files(path: Path) -> list[Path]:
    return parquet_files(path) if path.is_dir() else [path]


def _cache_file(path: Path) -> Path:
    """A name of which the second part changes when a file does."""
    try:
        folder = Path(os.environ.get("TORCHSPOT_CACHE") or Path.home() / ".cache" / "torchspot")
    except RuntimeError as error:
        raise TorchspotError(
            f"{path} is copied to a cache to be drawn from, and there is no home folder to keep it in. Set "
            "TORCHSPOT_CACHE to a folder that can be written to."
        ) from error
    whole = path.resolve()
    table, state = (hashlib.blake2b(repr(x).encode(), digest_size=16).hexdigest() for x in (str(whole), _stats(whole)))
    return folder / f"{table}-{state}.npy"


def _stats(path: Path) -> list[tuple[str, int, int]]:
    """Of each file: name, size and when it was last written to."""
    return [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in _files(path)]
