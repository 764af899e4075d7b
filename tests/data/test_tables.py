"""Tables on disk: copied once, whole or not at all, and what is wrong with them is said."""

import errno
import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from torchspot import DASPOT, SPOT
from torchspot.data import as_sampler, parquet
from torchspot.errors import CorruptFile, InvalidArgument, TorchspotError


def large_parquet(file: Path) -> None:
    values = np.random.default_rng(0).normal(size=40_000)
    pq.write_table(pa.table({"x": values}), file, row_group_size=10_000, compression="snappy")


def test_a_damaged_row_group_is_named(tmp_path):
    file = tmp_path / "x.parquet"
    large_parquet(file)
    group = pq.ParquetFile(file).metadata.row_group(2).column(0)
    start = group.dictionary_page_offset or group.data_page_offset
    content = bytearray(file.read_bytes())
    content[start : start + group.total_compressed_size // 2] = b"\0" * (group.total_compressed_size // 2)
    file.write_bytes(content)
    with pytest.raises(CorruptFile, match="row group 3 of 4 is cut short or damaged"):
        as_sampler(file)
    assert not list((tmp_path / "cache").iterdir())


def test_a_parquet_file_that_is_cut_short_is_named(tmp_path):
    file = tmp_path / "x.parquet"
    large_parquet(file)
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(CorruptFile, match=r"x\.parquet cannot be read"):
        as_sampler(file)


def test_rows_that_are_missing_are_not_made_up(tmp_path, monkeypatch):
    large_parquet(tmp_path / "x.parquet")
    monkeypatch.setattr(parquet, "_row_count", lambda path: 40_001)
    with pytest.raises(CorruptFile, match="says that it has 40001 rows, and holds 40000"):
        as_sampler(tmp_path / "x.parquet")
    assert not list((tmp_path / "cache").iterdir())


def test_a_table_that_changes_while_it_is_read_is_said(tmp_path, monkeypatch):
    file = tmp_path / "x.csv"
    file.write_text("a\n1\n2\n3\n")
    read = parquet._batches

    def changing(path):
        yield from read(path)
        with file.open("a") as stream:
            stream.write("4\n")

    monkeypatch.setattr(parquet, "_batches", changing)
    with pytest.raises(CorruptFile, match="was changed while it was read"):
        as_sampler(file)
    assert not list((tmp_path / "cache").iterdir())


def test_a_disk_that_fills_up_while_a_table_is_copied_is_said(tmp_path, monkeypatch):
    large_parquet(tmp_path / "x.parquet")

    def full(target, batches, like, count):
        target.write_bytes(next(iter(batches)).tobytes())
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(parquet, "_write", full)
    with pytest.raises(TorchspotError, match="the disk is full"):
        as_sampler(tmp_path / "x.parquet")
    assert not list((tmp_path / "cache").iterdir())


def test_a_cache_that_cannot_be_written_to_is_not_the_files_fault(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSPOT_CACHE", str(tmp_path / "x.parquet" / "cache"))
    large_parquet(tmp_path / "x.parquet")
    with pytest.raises(TorchspotError, match="Set TORCHSPOT_CACHE to a folder that can be written to") as raised:
        as_sampler(tmp_path / "x.parquet")
    assert not isinstance(raised.value, CorruptFile)


def test_a_copy_in_the_cache_that_was_cut_short_is_made_anew(tmp_path):
    large_parquet(tmp_path / "x.parquet")
    whole = as_sampler(tmp_path / "x.parquet").take(np.arange(40_000))
    copy = next((tmp_path / "cache").iterdir())
    for size in (0, 50, 4000):
        os.truncate(copy, size)
        assert torch.equal(as_sampler(tmp_path / "x.parquet").take(np.arange(40_000)), whole)


def test_an_empty_file_in_a_folder_is_named(tmp_path):
    large_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").touch()
    with pytest.raises(CorruptFile, match=r"b\.parquet cannot be read: the file is cut short or damaged"):
        as_sampler(tmp_path)


def test_columns_that_may_be_empty_are_the_same_columns(tmp_path):
    (tmp_path / "x").mkdir()
    for k, nullable in enumerate((True, False)):
        schema = pa.schema([pa.field("x", pa.float64(), nullable=nullable)])
        pq.write_table(pa.table({"x": np.full(5, float(k))}, schema=schema), tmp_path / "x" / f"{k}.parquet")
    assert as_sampler(tmp_path / "x").take(np.arange(10)).sum() == 5


def test_an_index_of_pandas_is_no_column(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": np.arange(9.0), "b": np.arange(9.0) ** 2}, index=range(100, 109))
    frame[frame.a > 2].to_parquet(tmp_path / "x.parquet")
    frame.set_index("a").to_parquet(tmp_path / "y.parquet")
    assert as_sampler(tmp_path / "x.parquet").take(np.arange(2)).tolist() == [[3.0, 9.0], [4.0, 16.0]]
    assert as_sampler(tmp_path / "y.parquet").shape == (1,)
    assert as_sampler(pq.read_table(tmp_path / "x.parquet")).shape == (2,)


def test_files_in_folders_of_a_folder_are_read_and_hidden_ones_are_not(tmp_path):
    folder = tmp_path / "x"
    for k, name in enumerate(("day=1/a.parquet", "day=2/a.parquet", "b.parquet")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": np.full(2, float(k))}), folder / name)
    for name in (".b.parquet", "_temporary/c.parquet"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("nothing")
    assert sorted(as_sampler(folder).take(np.arange(6))[:, 0].tolist()) == [0, 0, 1, 1, 2, 2]
    (folder / "gone.parquet").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CorruptFile, match="cannot be read"):
        as_sampler(folder)


def test_where_there_is_no_home_the_cache_is_asked_for(tmp_path, monkeypatch):
    large_parquet(tmp_path / "x.parquet")
    monkeypatch.delenv("TORCHSPOT_CACHE", raising=False)

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(TorchspotError, match=r"no home folder .* Set TORCHSPOT_CACHE"):
        as_sampler(tmp_path / "x.parquet")
    monkeypatch.setenv("TORCHSPOT_CACHE", str(tmp_path / "cache"))
    assert len(as_sampler(tmp_path / "x.parquet")) == 40_000


def test_what_is_left_of_copies_that_were_ended_long_ago_is_removed(tmp_path):
    cache = tmp_path / "cache"
    large_parquet(tmp_path / "x.parquet")
    cache.mkdir()
    for name, age in (("old", 1e6), ("new", 10.0)):
        part = cache / f".{name}.npy.1.part"
        part.touch()
        os.utime(part, (time.time() - age,) * 2)
    as_sampler(tmp_path / "x.parquet")
    assert [part.name for part in cache.glob(".*.part")] == [".new.npy.1.part"]


def test_what_checksums_tell_of_damage_is_said(tmp_path):
    values = np.random.default_rng(0).normal(size=40_000)
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": values}), file, compression="none", use_dictionary=False, write_page_checksum=True)
    damaged = bytearray(file.read_bytes())
    damaged[100_000:104_000] = bytes(4000)
    file.write_bytes(damaged)
    with pytest.raises(CorruptFile, match=r"row group 1 of 1 is cut short or damaged .*CRC"):
        as_sampler(file)


def test_copies_of_a_table_as_it_was_are_removed_after_a_day(tmp_path):
    cache = tmp_path / "cache"
    large_parquet(tmp_path / "other.parquet")
    as_sampler(tmp_path / "other.parquet")
    kept = set(cache.glob("*.npy"))
    for age in (2 * 86_400, 3600, 0):
        large_parquet(tmp_path / "x.parquet")
        as_sampler(tmp_path / "x.parquet")
        for copy in set(cache.glob("*.npy")) - kept:
            os.utime(copy, (time.time() - age,) * 2)
            kept |= {copy} if age < 86_400 else set()
    assert set(cache.glob("*.npy")) == kept and len(kept) == 3


def test_a_list_of_paths_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="a list of paths"):
        as_sampler([tmp_path / "a.parquet", "b.parquet"])


def test_columns_of_one_name_are_two_columns(tmp_path):
    twice = pa.table([np.arange(5.0), np.arange(5.0) ** 2], names=["x", "x"])
    pq.write_table(twice, tmp_path / "x.parquet")
    for source in (twice, tmp_path / "x.parquet"):
        assert as_sampler(source).take(np.array([3])).tolist() == [[3.0, 9.0]]


def test_a_table_without_columns_is_refused(tmp_path):
    pd = pytest.importorskip("pandas")
    pd.DataFrame(index=pd.Index(["a", "b"], name="name")).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(InvalidArgument, match="has no columns"):
        as_sampler(tmp_path / "x.parquet")


def test_links_to_folders_are_followed_and_may_lead_back(tmp_path):
    for k, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"x": np.full(2, float(k))}), tmp_path / name / "a.PARQUET")
    (tmp_path / "one" / "more").symlink_to(tmp_path / "two")
    (tmp_path / "two" / "back").symlink_to(tmp_path / "one")
    assert sorted(as_sampler(tmp_path / "one").take(np.arange(4))[:, 0].tolist()) == [0, 0, 1, 1]
    assert len(as_sampler(tmp_path / "one")) == 4


def test_a_file_that_is_gone_while_it_is_read_is_said(tmp_path, monkeypatch):
    file = tmp_path / "x.parquet"
    large_parquet(file)
    read = parquet._batches

    def vanishing(path):
        yield from read(path)
        file.unlink()

    monkeypatch.setattr(parquet, "_batches", vanishing)
    with pytest.raises(CorruptFile, match=r"x\.parquet cannot be read: .* Was it moved"):
        as_sampler(file)
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("kind", ["frame", "arrow", "parquet", "csv"])
def test_columns_in_another_order_are_refused(kind, tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(300, 2)), columns=["a", "b"])

    def given(name, table):
        if kind == "parquet":
            table.to_parquet(tmp_path / f"{name}.parquet")
        if kind == "csv":
            table.to_csv(tmp_path / f"{name}.csv", index=False)
        return {"frame": table, "arrow": pa.Table.from_pandas(table)}.get(kind, tmp_path / f"{name}.{kind}")

    first, other = given("first", frame), given("other", frame[["b", "a"]])
    with pytest.raises(
        InvalidArgument, match="data set 2 has the columns of data set 1 in another order: b, a, not a, b"
    ):
        SPOT(steps=2).fit(first, other)
    with pytest.raises(InvalidArgument, match="Xt has the columns of Xs in another order"):
        DASPOT(steps=2).fit(first, np.repeat([0, 1], 150), other)
    SPOT(steps=2).fit(first, given("renamed", frame.rename(columns={"a": "b", "b": "c"})))
