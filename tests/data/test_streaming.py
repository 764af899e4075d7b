"""Data that stays on disk or behind worker processes: read ahead, drawn uniformly, and watched for trouble."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy import stats
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from torchspot import SPOT, latents
from torchspot.data import as_sampler
from torchspot.errors import CorruptFile, InvalidArgument, TorchspotError
from torchspot.random import Key
from torchspot.training.callbacks import Checkpoint
from torchspot.training.checkpoint import checkpoint_file
from torchspot.training.players import Draw, Stream

CPU = torch.device("cpu")


def mapped(folder: Path, values: np.ndarray, name: str = "x.npy") -> Path:
    np.save(folder / name, values)
    return folder / name


def drawing(*sources, size=64, key=None) -> Draw:
    streams = [Stream(as_sampler(source), size, torch.float64) for source in sources]
    noise = Stream(latents.normal(2), size, torch.float64)
    return Draw(key or Key(0, "critics"), noise, *streams, device=CPU)


def batches(draw: Draw, count: int) -> list[tuple[torch.Tensor, ...]]:
    found = []
    for _ in range(count):
        draw.advance()
        found.append(tuple(part.clone() for part in draw()))
    draw.close()
    return found


class Squares(Dataset):
    """Item i is (i, i²)."""

    def __init__(self, count: int, dies_at: int | None = None) -> None:
        self.count, self.dies_at = count, dies_at

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i):
        if self.dies_at is not None and i >= self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor([float(i), float(i) ** 2])


class Endless(IterableDataset):
    def __iter__(self):
        return (torch.tensor([float(k), 1.0]) for k in range(300))


@pytest.mark.parametrize("kind", ["mapped", "parquet", "dataset", "workers"])
def test_what_is_read_ahead_is_what_an_array_gives(kind, tmp_path):
    values = np.stack([np.arange(500.0), np.arange(500.0) ** 2], axis=1)
    pq.write_table(pa.table({"a": values[:, 0], "b": values[:, 1]}), tmp_path / "x.parquet")
    source = {
        "mapped": lambda: mapped(tmp_path, values),
        "parquet": lambda: tmp_path / "x.parquet",
        "dataset": lambda: Squares(500),
        "workers": lambda: DataLoader(Squares(500), batch_size=7, num_workers=2),
    }[kind]()
    other = np.random.default_rng(0).normal(size=(300, 2))
    plain = batches(drawing(values, other), 6)
    ahead = drawing(source, other)
    assert as_sampler(source).slow == (kind != "dataset") and not as_sampler(values).slow
    for one, two in zip(plain, batches(ahead, 6), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    resumed = drawing(source, other)
    batches(resumed, 2)
    resumed.load_state_dict({"k": 4})
    assert all(torch.equal(a, b) for a, b in zip(batches(resumed, 1)[0], plain[4], strict=True))


def test_rows_that_a_plan_starts_from_are_read_ahead_too(tmp_path):
    values = np.random.default_rng(0).normal(size=(400, 2))
    other = np.random.default_rng(1).normal(size=(400, 2)) + 2
    fitted = [
        SPOT(latent=latents.anchored(), steps=5, batch_size=32).fit(source, other)
        for source in (values, mapped(tmp_path, values))
    ]
    assert fitted[0].history_[-1]["cost"] == fitted[1].history_[-1]["cost"]


def test_a_stream_is_read_ahead_in_its_order():
    draw = Draw(Key(0, "a"), Stream(as_sampler(Endless()), 7, torch.float64), device=CPU)
    seen = torch.cat([batch[0][:, 0] for batch in batches(draw, 50)])
    assert torch.equal(seen, torch.arange(350.0, dtype=torch.float64) % 300)


@pytest.mark.parametrize("layout", ["file", "folder"])
def test_draws_from_a_sorted_file_are_uniform(layout, tmp_path):
    """χ² over 50 equal stretches of the file, for single rows and for neighbours within a batch."""
    rows = np.arange(100_000, dtype=np.float64)
    target = tmp_path / "sorted"
    parts = [rows] if layout == "file" else np.array_split(rows, 7)
    target.mkdir()
    for k, part in enumerate(parts):
        pq.write_table(pa.table({"x": part}), target / f"{k}.parquet", row_group_size=9000)
    source = target / "0.parquet" if layout == "file" else target
    draw = Draw(Key(3, "critics"), Stream(as_sampler(source), 500, torch.float64), device=CPU)
    drawn = torch.stack([batch[0][:, 0] for batch in batches(draw, 200)]).numpy()
    stretch = (drawn // 2000).astype(int)
    assert stats.chisquare(np.bincount(stretch.ravel(), minlength=50)).pvalue > 1e-3
    pairs = 10 * (stretch[:, :-1:2] // 5) + stretch[:, 1::2] // 5
    assert stats.chisquare(np.bincount(pairs.ravel(), minlength=100)).pvalue > 1e-3
    of_batches = drawn.mean(1)
    assert stats.kstest((of_batches - 49_999.5) / (100_000 / np.sqrt(12 * 500)), "norm").pvalue > 1e-3


def test_a_worker_that_dies_is_said_and_the_checkpoint_is_intact(tmp_path):
    other = np.random.default_rng(0).normal(size=(300, 2))
    good = DataLoader(Squares(300), num_workers=2)
    estimator = SPOT(steps=6, batch_size=16, seed=1, callbacks=[Checkpoint(tmp_path, every_seconds=0)])

    class Kill:
        def __call__(self, training, record):
            if training.step == 3:
                for process in multiprocessing.active_children():
                    os.kill(process.pid, signal.SIGKILL)

    estimator.callbacks.append(Kill())
    with pytest.raises(TorchspotError, match="a worker process that reads data set 1 has died"):
        estimator.fit(good, other, resume=tmp_path)
    again = SPOT(steps=6, batch_size=16, seed=1).fit(Squares(300), other, resume=tmp_path)
    straight = SPOT(steps=6, batch_size=16, seed=1).fit(Squares(300), other)
    assert again.history_[-1]["cost"] == straight.history_[-1]["cost"]


def test_a_dataset_that_kills_its_worker_is_said():
    rows = as_sampler(DataLoader(Squares(300, dies_at=200), num_workers=2))
    with pytest.raises(TorchspotError, match="a worker process that reads the data has died"):
        rows.take(np.array([1, 250]))
    rows.close()


class OpensLate(Dataset):
    """Reads a file that it opens when it is first asked, as datasets over HDF5 or LMDB do."""

    def __init__(self, file: Path) -> None:
        self.file, self.handle = file, None

    def __len__(self) -> int:
        return self.file.stat().st_size // 8

    def __getitem__(self, i):
        self.handle = self.handle or self.file.open("rb", buffering=0)
        self.handle.seek(8 * i)
        time.sleep(1e-5)
        return torch.frombuffer(bytearray(self.handle.read(8)), dtype=torch.float64)


@pytest.mark.parametrize("workers", [0, 2])
def test_handles_that_a_dataset_opens_are_used_by_one_reader_alone(workers, tmp_path):
    np.arange(2000.0).tofile(tmp_path / "x.bin")
    loader = DataLoader(OpensLate(tmp_path / "x.bin"), num_workers=workers)
    draw = Draw(Key(0, "a"), *(Stream(as_sampler(loader), 256, torch.float64) for _ in range(2)), device=CPU)
    plain = Draw(Key(0, "a"), *(Stream(as_sampler(np.arange(2000.0)), 256, torch.float64),) * 2, device=CPU)
    for one, two in zip(batches(draw, 5), batches(plain, 5), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    if workers == 0:
        loader.dataset.handle.close()


def test_without_workers_a_dataset_is_read_where_it_was_made(tmp_path):
    threads = set()

    class Noting(Squares):
        def __getitem__(self, i):
            threads.add(threading.get_ident())
            return super().__getitem__(i)

    SPOT(steps=3, batch_size=16).fit(Noting(300), np.random.default_rng(0).normal(size=(300, 2)))
    assert threads == {threading.get_ident()}


class Drawing(Dataset):
    """Items that it draws itself."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, i):
        return torch.rand(2, dtype=torch.float64)


def test_what_workers_draw_differs_from_one_set_of_them_to_the_next():
    rows = as_sampler(DataLoader(Drawing(), num_workers=2))
    first = rows.take(np.arange(50))
    assert len(torch.unique(first)) == 100
    rows.close()
    assert not torch.isin(rows.take(np.arange(50)), first).any()
    rows.close()


class Telling(Squares):
    """Item 0 is the number of the worker that reads it, and of how many."""

    told: float = -1

    def __getitem__(self, i):
        info = torch.utils.data.get_worker_info()
        return torch.tensor([self.told, float(info.num_workers)])


def tell(number: int) -> None:
    torch.utils.data.get_worker_info().dataset.told = float(number)


def fail_to_begin(number: int) -> None:
    raise OSError("no such host")


class Awkward(Exception):
    def __init__(self, one, two) -> None:
        super().__init__(f"{one} {two}")


class Raising(Squares):
    def __getitem__(self, i):
        if i:
            raise Awkward("cannot", "open")
        return super().__getitem__(i)


def test_workers_know_who_they_are():
    rows = as_sampler(DataLoader(Telling(300), num_workers=2, worker_init_fn=tell))
    said = rows.take(np.arange(64))
    rows.close()
    assert set(said[:, 0].tolist()) <= {0.0, 1.0} and set(said[:, 1].tolist()) == {2.0}


def test_what_fails_in_a_worker_is_said_in_its_words():
    with pytest.raises(InvalidArgument, match="worker_init_fn failed with OSError: no such host"):
        as_sampler(DataLoader(Squares(300), num_workers=1, worker_init_fn=fail_to_begin))
    rows = as_sampler(DataLoader(Raising(300), num_workers=1))
    with pytest.raises(TorchspotError, match="Awkward: cannot open"):
        rows.take(np.array([5]))
    rows.close()


def test_what_cannot_be_sent_to_workers_is_said():
    loader = DataLoader(
        Squares(300), num_workers=1, collate_fn=lambda items: torch.stack(items), multiprocessing_context="spawn"
    )
    with pytest.raises(InvalidArgument, match="the data cannot be sent to worker processes"):
        as_sampler(loader)


def test_a_loader_that_chooses_its_rows_is_refused():
    data = Squares(10)
    for chooser in (
        {"sampler": WeightedRandomSampler([1.0, *[0.0] * 9], 10)},
        {"sampler": SubsetRandomSampler([0, 1])},
        {"batch_sampler": [[0, 1], [1, 0]]},
    ):
        with pytest.raises(InvalidArgument, match="torchspot draws rows itself"):
            as_sampler(DataLoader(data, **chooser))
    assert len(as_sampler(DataLoader(data, shuffle=True, batch_size=3))) == 10


def test_the_collate_function_is_used_also_with_batches_of_a_sampler():
    batched = BatchSampler(SequentialSampler(range(10)), 5, drop_last=False)
    rows = as_sampler(DataLoader(Squares(10), batch_sampler=batched, collate_fn=lambda items: -torch.stack(items)))
    assert rows.take(np.array([3])).tolist() == [[-3.0, -9.0]]


def test_a_collate_function_that_leaves_items_out_is_refused():
    dropping = DataLoader(Squares(10), collate_fn=lambda items: torch.stack([x for x in items if x[0] < 5]))
    with pytest.raises(InvalidArgument, match="made 5 rows of 10 items"):
        as_sampler(dropping).take(np.arange(10))


def test_ctrl_c_while_workers_read_saves_and_stops_between_steps(tmp_path):
    """As the terminal sends it: to this process and to its workers."""
    other = np.random.default_rng(0).normal(size=(300, 2))

    class Press:
        def __call__(self, training, record):
            if training.step == 50:
                for process in (*multiprocessing.active_children(), multiprocessing.current_process()):
                    os.kill(process.pid, signal.SIGINT)

    spot = SPOT(steps=1000, batch_size=16, callbacks=[Press(), Checkpoint(tmp_path, every_seconds=1e9)])
    with pytest.raises(KeyboardInterrupt, match="stopped at step"):
        spot.fit(DataLoader(Squares(300), num_workers=2), other, resume=tmp_path)
    assert (tmp_path / "checkpoint.safetensors").exists()


def test_no_worker_is_left_after_a_fit():
    before = set(multiprocessing.active_children())
    loader = DataLoader(Squares(300), num_workers=2)
    other = np.random.default_rng(0).normal(size=(300, 2))
    spot = SPOT(steps=3, batch_size=16, latent=latents.anchored()).fit(loader, other)
    deadline = time.monotonic() + 20
    while set(multiprocessing.active_children()) - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert set(multiprocessing.active_children()) <= before
    assert spot.sample(5)[0].shape == (5, 2)


def test_a_worker_of_a_stream_that_dies_is_said():
    class Dying(IterableDataset):
        def __iter__(self):
            yield torch.zeros(2)
            if torch.utils.data.get_worker_info() is not None:
                os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(TorchspotError, match="a worker process that reads the data has died"):
        as_sampler(DataLoader(Dying(), batch_size=1, num_workers=1)).draw(50, torch.Generator())


class Random(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randn(2)


def test_a_worker_of_a_stream_that_dies_under_way_is_said_and_the_checkpoint_is_intact(tmp_path):
    """PyTorch raises its error wherever the main thread is when it is told: seldom where the stream is read."""

    def kill(training, record):
        if training.step == 50:
            for process in multiprocessing.active_children():
                os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.2)

    other = np.random.default_rng(0).normal(size=(300, 2))
    loader = DataLoader(Random(), batch_size=64, num_workers=1)
    spot = SPOT(steps=1000, batch_size=16, callbacks=[Checkpoint(tmp_path, every_seconds=0), kill])
    with (
        pytest.warns(UserWarning, match="not bit for bit"),
        pytest.raises(
            TorchspotError, match=r"a worker process that reads .* has died.* goes on from its last checkpoint"
        ),
    ):
        spot.fit(loader, other, resume=tmp_path)
    assert checkpoint_file(tmp_path).exists()


@pytest.mark.parametrize("how", ["cut short", "written over"])
def test_a_mapped_file_that_changes_under_way_ends_the_run_with_its_checkpoint(how, tmp_path):
    rng = np.random.default_rng(0)
    values, other = rng.normal(size=(5000, 2)), rng.normal(size=(500, 2))
    file = mapped(tmp_path, values)

    class Change:
        def __call__(self, training, record):
            if training.step == 5:
                stat = file.stat()
                if how == "cut short":
                    os.truncate(file, 4096)
                else:
                    with file.open("r+b") as stream:
                        stream.seek(4096)
                        stream.write(b"\0" * 4096)
                os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))

    saving = Checkpoint(tmp_path / "run", every_seconds=0)
    with pytest.raises(CorruptFile, match=r"data set 1: the file .*x\.npy was changed while it was read"):
        SPOT(steps=20, batch_size=16, callbacks=[Change(), saving]).fit(file, other, resume=tmp_path / "run")
    mapped(tmp_path, values)
    again = SPOT(steps=20, batch_size=16).fit(file, other, resume=tmp_path / "run")
    straight = SPOT(steps=20, batch_size=16).fit(values, other)
    assert again.history_[-1]["cost"] == straight.history_[-1]["cost"]


def test_a_mapped_file_may_be_deleted_or_replaced(tmp_path):
    rows = as_sampler(mapped(tmp_path, np.arange(20.0)[:, None]))
    mapped(tmp_path, np.zeros((5, 1)), "other.npy").replace(tmp_path / "x.npy")
    assert rows.take(np.array([19])).item() == 19
    (tmp_path / "x.npy").unlink()
    assert rows.take(np.array([19])).item() == 19


def test_a_map_that_is_written_to_by_its_owner_is_read_as_it_is(tmp_path):
    values = np.lib.format.open_memmap(tmp_path / "w.npy", mode="w+", dtype=np.float64, shape=(10, 1))
    rows = as_sampler(values)
    values[:] = 3
    values.flush()
    assert rows.take(np.array([9])).item() == 3


def test_a_quiet_stream_is_not_read_further_than_needed(tmp_path):
    class Ending(IterableDataset):
        """Twenty samples, then silence."""

        def __iter__(self):
            yield from (torch.zeros(2) for _ in range(20))
            raise AssertionError("nobody needs more")

    stream = as_sampler(DataLoader(Ending(), batch_size=1))
    draw = Draw(
        Key(0, "a"),
        *(Stream(s, 4, torch.float64) for s in (stream, as_sampler(mapped(tmp_path, np.ones((9, 2)))))),
        device=CPU,
    )
    assert len(batches(draw, 5)) == 5


ORPHANS = """
import multiprocessing, os, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchspot.data import as_sampler

if __name__ == "__main__":
    loader = DataLoader(TensorDataset(torch.zeros(300, 2)), num_workers=2, multiprocessing_context=sys.argv[1])
    rows = as_sampler(loader)
    rows.take(torch.arange(8).numpy())
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(60)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes under /proc")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_end_with_who_reads_however_they_were_started(method, tmp_path):
    (tmp_path / "reads.py").write_text(ORPHANS)
    reader = subprocess.Popen([sys.executable, tmp_path / "reads.py", method], stdout=subprocess.PIPE, text=True)
    workers = [int(pid) for pid in reader.stdout.readline().split()]
    assert len(workers) == 2 and all(map(is_alive, workers))
    reader.kill()
    reader.communicate()
    deadline = time.monotonic() + 30
    while any(map(is_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_alive, workers))


class Odd(Squares):
    """Item 0 is usual; others hang, or end their process."""

    def __init__(self, how: str) -> None:
        super().__init__(300)
        self.how = how

    def __getitem__(self, i):
        if i:
            if self.how == "exits":
                raise SystemExit(3)
            time.sleep(600)
        return super().__getitem__(i)


def test_a_worker_that_is_late_is_said_and_ended():
    before = set(multiprocessing.active_children())
    rows = as_sampler(DataLoader(Odd("hangs"), num_workers=1, timeout=1))
    with pytest.raises(TorchspotError, match=r"took more than 1 s .* longer timeout="):
        rows.take(np.array([1]))
    rows.close()
    deadline = time.monotonic() + 20
    while set(multiprocessing.active_children()) - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert set(multiprocessing.active_children()) <= before


class Slow(Squares):
    def __getitem__(self, i):
        time.sleep(0.01)
        return super().__getitem__(i)


def test_the_time_of_a_worker_is_for_a_batch_of_its_loader():
    """Not for all of a larger draw, nor for what others have asked for before."""
    rows = as_sampler(DataLoader(Slow(300), batch_size=10, num_workers=1, timeout=1))
    reads = [threading.Thread(target=rows.take, args=(np.arange(100),)) for _ in range(2)]
    for read in reads:
        read.start()
    assert rows.take(np.arange(150))[:, 0].tolist() == list(range(150))
    for read in reads:
        read.join()
    rows.close()


def test_a_dataset_that_would_end_its_process_is_said():
    rows = as_sampler(DataLoader(Odd("exits"), num_workers=1))
    with pytest.raises(TorchspotError, match="SystemExit: 3"):
        rows.take(np.array([1]))
    rows.close()


def test_what_was_opened_is_let_go_of_where_something_fails(tmp_path):
    before = set(multiprocessing.active_children())
    loader = DataLoader(Squares(300), num_workers=1)
    with pytest.raises(InvalidArgument, match="there is no file"):
        SPOT(steps=3).fit(loader, tmp_path / "nothing.npy")
    with pytest.raises(InvalidArgument, match="latent"):
        SPOT(steps=3, latent="nonsense").fit(loader, np.zeros((300, 2)) + np.arange(300)[:, None])
    deadline = time.monotonic() + 20
    while set(multiprocessing.active_children()) - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert set(multiprocessing.active_children()) <= before


def test_a_loader_without_batches_and_a_dataset_without_a_length_are_refused():
    with pytest.raises(InvalidArgument, match="batch_size=None"):
        as_sampler(DataLoader(Squares(300), batch_size=None))

    class Endless(Dataset):
        def __getitem__(self, i):
            return torch.zeros(2)

    with pytest.raises(InvalidArgument, match="a Dataset without a length"):
        as_sampler(Endless())


class Passing(IterableDataset):
    """One pass over these items, and no other."""

    def __init__(self, *items) -> None:
        self.items = iter([torch.tensor(item) for item in items])

    def __iter__(self):
        return self.items


class Failing(IterableDataset):
    def __iter__(self):
        yield torch.zeros(2)
        raise RuntimeError("bad record")


def test_what_is_wrong_with_a_stream_is_said_as_it_is():
    rng = torch.Generator()
    with pytest.raises(InvalidArgument, match="ended after 3 samples and gives no more"):
        as_sampler(Passing([1.0], [2.0], [3.0])).draw(5, rng)
    with pytest.raises(InvalidArgument, match=r"samples of shape \(1,\) and now \(2,\)"):
        as_sampler(DataLoader(Passing([1.0], [2.0, 3.0]), batch_size=1)).draw(2, rng)
    with pytest.raises(InvalidArgument, match="not finite"):
        as_sampler(Passing([1.0], [float("nan")])).draw(2, rng)
    with pytest.raises(InvalidArgument, match="gives no samples"):
        as_sampler(DataLoader(Passing([0.0]), collate_fn=lambda items: torch.zeros(0, 2)))
    with pytest.raises(RuntimeError, match="bad record") as raised:
        as_sampler(DataLoader(Failing(), batch_size=1, num_workers=1)).draw(5, rng)
    assert not isinstance(raised.value, TorchspotError)


def test_numbers_of_a_dataset_that_are_not_finite_are_said():
    class Broken(Squares):
        def __getitem__(self, i):
            return super().__getitem__(i) / (0.0 if i == 7 else 1.0)

    with pytest.raises(InvalidArgument, match="data set 1 gave a sample with a number that is not finite"):
        SPOT(steps=50, batch_size=64).fit(Broken(50), np.random.default_rng(0).normal(size=(300, 2)))


class Ragged(Squares):
    """Items from the third on have one more number."""

    def __getitem__(self, i):
        return torch.zeros(2 if i < 2 else 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_items_of_several_shapes_are_said(workers):
    rows = as_sampler(DataLoader(Ragged(10), num_workers=workers))
    with pytest.raises(InvalidArgument, match=r"[42] items of the data could not be put together"):
        rows.take(np.array([0, 5, 1, 6]))
    with pytest.raises(InvalidArgument, match=r"the data gave samples of shape \(2,\) and now \(3,\)"):
        rows.take(np.array([5, 6]))
    with pytest.raises(InvalidArgument, match=r"could not be put together|of shape \(2,\) and now \(3,\)"):
        rows.take(np.array([0, 5]))
    rows.close()


def test_a_dataset_that_changes_its_items_is_told_from_one_that_does_not(tmp_path):
    assert as_sampler(Drawing()).random and not as_sampler(Squares(300)).random
    other = np.random.default_rng(0).normal(size=(300, 2))
    with pytest.warns(UserWarning, match="data set 1 does not give the same samples when it is drawn again"):
        SPOT(steps=2).fit(Drawing(), other, resume=tmp_path / "a")
    SPOT(steps=2).fit(Squares(300), other, resume=tmp_path / "b")


def test_one_sample_or_many_is_asked_of_a_stream_without_batches():
    with pytest.raises(InvalidArgument, match="one sample or many"):
        as_sampler(DataLoader(Passing([1.0, 2.0]), batch_size=None))
    many = as_sampler(DataLoader(Passing([[1.0, 2.0], [3.0, 4.0]]), batch_size=None))
    assert many.draw(2, torch.Generator()).tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_items_that_are_lists_of_numbers_are_refused():
    class Lists(Squares):
        def __getitem__(self, i):
            return [float(i), float(i) ** 2]

    with pytest.raises(InvalidArgument, match="items that are lists of 2 numbers"):
        as_sampler(Lists(10))

    class Labelled(Squares):
        def __getitem__(self, i):
            return super().__getitem__(i), i

    assert as_sampler(Labelled(10)).take(np.array([3])).tolist() == [[3.0, 9.0]]
