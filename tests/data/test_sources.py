"""Every kind of input becomes a sampler that gives the same kind of batches; bad input is named."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from torchspot.data import as_sampler
from torchspot.data.arrays import Rows
from torchspot.errors import CorruptFile, InvalidArgument, TorchspotError
from torchspot.random import Key, generator

VALUES = np.random.default_rng(0).normal(size=(500, 3))


def rng(role: str = "test") -> torch.Generator:
    return generator(Key(0, role))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.from_numpy(VALUES))


def _memmap(tmp_path):
    mapped = np.memmap(tmp_path / "raw", dtype=np.float64, mode="w+", shape=VALUES.shape)
    mapped[:] = VALUES
    return mapped


def _npy(tmp_path):
    np.save(tmp_path / "x.npy", VALUES)
    return tmp_path / "x.npy"


def _npz(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", VALUES)
    return str(tmp_path / "x.npz")


def _csv(tmp_path):
    pd.DataFrame(VALUES, columns=list("abc")).to_csv(tmp_path / "x.csv", index=False, float_format="%.17g")
    return tmp_path / "x.csv"


def _parquet(tmp_path):
    pa.parquet.write_table(
        pa.table({c: VALUES[:, k] for k, c in enumerate("abc")}), tmp_path / "x.parquet", row_group_size=64
    )
    return tmp_path / "x.parquet"


def _parquet_folder(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in range(5):
        rows = VALUES[part * 100 : (part + 1) * 100]
        pa.parquet.write_table(pa.table({c: rows[:, k] for k, c in enumerate("abc")}), folder / f"{part}.parquet")
    return folder


FINITE = {
    "array": lambda tmp_path: VALUES,
    "read-only array": lambda tmp_path: _frozen(VALUES),
    "float32": lambda tmp_path: VALUES.astype(np.float32),
    "list": lambda tmp_path: VALUES.tolist(),
    "tensor": lambda tmp_path: torch.from_numpy(VALUES),
    "memmap": _memmap,
    "pandas": lambda tmp_path: pd.DataFrame(VALUES, columns=list("abc")),
    "arrow": lambda tmp_path: pa.table({c: VALUES[:, k] for k, c in enumerate("abc")}),
    "npy": _npy,
    "npz": _npz,
    "csv": _csv,
    "parquet": _parquet,
    "parquet folder": _parquet_folder,
}
STREAMS = {
    "dataset": lambda tmp_path: TensorDataset(torch.from_numpy(VALUES)),
    "loader": lambda tmp_path: DataLoader(TensorDataset(torch.from_numpy(VALUES), torch.arange(500)), batch_size=7),
    "iterable": lambda tmp_path: Stream(),
    "iterable loader": lambda tmp_path: DataLoader(Stream(), batch_size=7),
    "distribution": lambda tmp_path: torch.distributions.MultivariateNormal(torch.zeros(3), torch.eye(3)),
    "function": lambda tmp_path: lambda n: np.zeros((n, 3)),
    "seeded function": lambda tmp_path: lambda n, generator: torch.randn(n, 3, generator=generator),
}


def _frozen(values):
    copy = values.copy()
    copy.flags.writeable = False
    return copy


@pytest.mark.parametrize("kind", [*FINITE, *STREAMS])
def test_every_source_is_an_endless_sampler(kind, tmp_path):
    sampler = as_sampler((FINITE | STREAMS)[kind](tmp_path), name=kind)
    batch = sampler.draw(1200, rng())
    assert sampler.shape == (3,)
    assert batch.shape == (1200, 3)
    assert torch.isfinite(batch).all()
    if sampler.repeatable:
        assert torch.equal(batch, sampler.draw(1200, rng()))
        assert torch.equal(batch, sampler.draw(1200, rng("other"))) == bool((batch == batch[0]).all())


@pytest.mark.parametrize("kind", FINITE)
def test_rows_come_from_the_data_and_all_sources_agree(kind, tmp_path):
    sampler = as_sampler(FINITE[kind](tmp_path))
    assert isinstance(sampler, Rows)
    expected = as_sampler(VALUES).draw(100, rng())
    assert torch.allclose(sampler.draw(100, rng()).double(), expected, atol=1e-6)
    if kind != "float32":
        assert sampler.fingerprint() == as_sampler(VALUES).fingerprint()


def test_a_file_on_disk_is_mapped_not_loaded(tmp_path):
    for make in (_npy, _parquet, _csv):
        assert isinstance(as_sampler(make(tmp_path)).values, np.memmap)


def test_an_array_is_not_copied():
    values = VALUES.copy()
    assert as_sampler(values).values.base is values or as_sampler(values).values is values


def test_one_column_may_come_flat():
    assert as_sampler(np.arange(10.0)).shape == (1,)
    assert as_sampler(torch.distributions.Normal(0, 1)).shape == (1,)
    assert as_sampler(lambda n: np.zeros(n)).shape == (1,)


def test_a_folder_of_pictures_gives_numbers_between_0_and_1(tmp_path):
    for k in range(4):
        Image.fromarray(np.full((6, 5, 3), 85 * k, dtype=np.uint8)).save(tmp_path / f"{k}.png")
    sampler = as_sampler(tmp_path)
    assert sampler.shape == (3, 6, 5)
    assert sampler.values.dtype == np.uint8
    assert set(np.round(sampler.draw(50, rng()).unique().tolist(), 4)) == {0.0, 0.3333, 0.6667, 1.0}


def test_distributions_leave_the_global_generator_alone():
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    sampler = as_sampler(torch.distributions.Normal(torch.zeros(2), 1.0))
    first = sampler.draw(5, rng())
    torch.manual_seed(5)
    assert torch.equal(first, sampler.draw(5, rng()))
    torch.manual_seed(0)
    assert torch.equal(before, torch.random.get_rng_state())


BAD = [
    (np.array([[0.0, 1], [2, np.nan]]), InvalidArgument, "row 1, column 1"),
    (np.array([[0.0, np.inf], [2, 3]]), InvalidArgument, r"\(inf\) at row 0, column 1"),
    (torch.tensor([[0.0, 1], [float("nan"), 2]]), InvalidArgument, "row 1, column 0"),
    (np.empty((0, 2)), InvalidArgument, "empty"),
    (np.empty((5, 0)), InvalidArgument, "no columns"),
    (np.zeros((1, 2)), InvalidArgument, "single sample"),
    (np.array(["a", "b"]), InvalidArgument, "not real numbers"),
    (np.zeros((3, 2), dtype=complex), InvalidArgument, "complex128, not real numbers"),
    (torch.zeros(3, 2, dtype=torch.complex64), InvalidArgument, "complex64, not real numbers"),
    ([[1, 2], [3]], InvalidArgument, "do not agree in length"),
    (pd.DataFrame({"a": [1.0, 2], "name": ["x", "y"]}), InvalidArgument, "column 'name'"),
    (pa.table({"a": [1.0, 2], "name": ["x", "y"]}), InvalidArgument, "column 'name' holds string"),
    (lambda n: np.zeros((n + 1, 2)), InvalidArgument, "n rows"),
    (object(), InvalidArgument, "of type object"),
    (7, InvalidArgument, "of type int"),
    ("nowhere.npy", InvalidArgument, "no file or folder nowhere.npy"),
]


@pytest.mark.parametrize(("source", "error", "message"), BAD, ids=[message for _, _, message in BAD])
def test_bad_input_is_named(source, error, message):
    with pytest.raises(error, match=message):
        as_sampler(source, name="X")


def test_nan_far_into_a_large_file_is_found(tmp_path):
    values = np.zeros((200_000, 2), dtype=np.float32)
    values[150_001, 1] = np.nan
    np.save(tmp_path / "x.npy", values)
    with pytest.raises(InvalidArgument, match="row 150001, column 1"):
        as_sampler(tmp_path / "x.npy")


def test_a_csv_without_header_loses_no_row(tmp_path):
    (tmp_path / "x.csv").write_text("1,2\n3,4\n5,6\n")
    assert as_sampler(tmp_path / "x.csv").values.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_a_csv_that_turns_from_whole_numbers_to_others(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n" + "1,2\n" * 300_000 + "1.5,2.5\n")
    assert as_sampler(tmp_path / "x.csv").values[-1].tolist() == [1.5, 2.5]


def test_parquet_files_that_do_not_go_together_are_named(tmp_path):
    pa.parquet.write_table(pa.table({"a": [1.0, 2], "b": [1.0, 2]}), tmp_path / "0.parquet")
    pa.parquet.write_table(pa.table({"b": [1.0, 2], "a": [1.0, 2]}), tmp_path / "1.parquet")
    with pytest.raises(InvalidArgument, match=r"1\.parquet has other columns"):
        as_sampler(tmp_path)


def test_a_sampler_is_taken_as_it_is_and_tables_may_mix_numbers():
    sampler = as_sampler(torch.distributions.Normal(torch.zeros(2), 1.0))
    assert as_sampler(sampler) is sampler
    assert as_sampler(pd.DataFrame({"a": [1.5, 2], "b": [True, False]})).values.tolist() == [[1.5, 1], [2, 0]]


def test_odd_kinds_of_numbers():
    for kind in (np.int32, np.uint8, np.float16, np.longdouble, bool, ">f8"):
        values = (VALUES > 0).astype(kind)
        assert torch.equal(as_sampler(values).draw(9, rng()).double(), as_sampler(values.astype(float)).draw(9, rng()))
    learned = torch.from_numpy(VALUES).clone().requires_grad_()
    assert not as_sampler(learned).draw(3, rng()).requires_grad


def test_bad_files_are_named(tmp_path):
    (tmp_path / "x.txt").write_text("1 2")
    with pytest.raises(InvalidArgument, match=r"x\.txt is of a type .* Use \.npy"):
        as_sampler(tmp_path / "x.txt")
    for make in (_npy, _npz, _parquet):
        whole = make(tmp_path)
        path = tmp_path / f"cut{str(whole)[-8:].replace('/', '')}"
        path.write_bytes((tmp_path / whole).read_bytes()[:400])
        with pytest.raises(CorruptFile, match="cut"):
            as_sampler(path)
    np.savez(tmp_path / "two.npz", a=VALUES, b=VALUES)
    with pytest.raises(InvalidArgument, match=r"2 arrays \(a, b\)"):
        as_sampler(tmp_path / "two.npz")
    (tmp_path / "words.csv").write_text("a,b\n1,x\n2,y\n")
    with pytest.raises(InvalidArgument, match="column 'b'"):
        as_sampler(tmp_path / "words.csv")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidArgument, match="neither pictures nor Parquet"):
        as_sampler(tmp_path / "folder")


def test_a_pickle_in_a_numpy_file_is_not_opened(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}, None]), allow_pickle=True)
    with pytest.raises(CorruptFile, match="Python objects"):
        as_sampler(tmp_path / "x.npy")


def test_pictures_that_do_not_fit_are_named(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    Image.new("RGB", (5, 4)).save(tmp_path / "b.png")
    with pytest.raises(InvalidArgument, match=r"b\.png is 5 × 4 pixels"):
        as_sampler(tmp_path)
    (tmp_path / "b.png").write_bytes(b"no picture")
    with pytest.raises(CorruptFile, match=r"1 of 2 files are not readable pictures .*b\.png"):
        as_sampler(tmp_path)


def test_a_full_disk_is_said_before_anything_is_written(tmp_path, monkeypatch):
    path = _parquet(tmp_path)
    monkeypatch.setattr("torchspot.data.parquet.free_space", lambda folder: 100)
    with pytest.raises(TorchspotError, match=r"not enough disk space .* TORCHSPOT_CACHE"):
        as_sampler(path)
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (-np.ones(500), "weight of row 0 of X is -1"),
        (np.zeros(500), "sum to zero"),
        (np.full(500, np.nan), "finite"),
        (np.ones(3), "500 rows and its weights are 3"),
    ],
)
def test_bad_weights_are_named(weights, message):
    with pytest.raises(InvalidArgument, match=message):
        as_sampler(VALUES, weights=weights, name="X")


def test_weights_need_rows():
    with pytest.raises(InvalidArgument, match="need rows"):
        as_sampler(lambda n: np.zeros((n, 2)), weights=np.ones(3))
