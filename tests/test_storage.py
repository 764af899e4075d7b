"""Files are whole or not there, and a damaged one is never believed."""

import errno
import json

import pytest
import torch
from safetensors.torch import save_file

from torchspot import storage
from torchspot.errors import CorruptFile, InvalidArgument, TorchspotError

STATE = {"a": {"w": torch.arange(6.0).reshape(2, 3), "n": 3}, "list": [torch.tensor(1), "text", None, 0.5]}


def test_there_and_back(tmp_path):
    file = tmp_path / "x.safetensors"
    storage.write(file, "thing", 1, STATE)
    back = storage.read(file, "thing", 1)
    assert torch.equal(back["a"]["w"], STATE["a"]["w"])
    assert back["a"]["n"] == 3
    assert torch.equal(back["list"][0], torch.tensor(1))
    assert back["list"][1:] == ["text", None, 0.5]
    assert [f.name for f in tmp_path.iterdir()] == ["x.safetensors"]


def test_tensors_that_share_memory_are_stored_apart(tmp_path):
    base = torch.arange(4.0)
    storage.write(tmp_path / "x.safetensors", "thing", 1, {"a": base[:2], "b": base})
    assert storage.read(tmp_path / "x.safetensors", "thing", 1)["a"].tolist() == [0, 1]


def test_every_flipped_byte_is_noticed(tmp_path):
    file = tmp_path / "x.safetensors"
    storage.write(file, "thing", 1, STATE)
    whole = file.read_bytes()
    for place in range(0, len(whole), 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CorruptFile):
            storage.read(file, "thing", 1)


def test_a_file_cut_anywhere_is_noticed(tmp_path):
    file = tmp_path / "x.safetensors"
    storage.write(file, "thing", 1, STATE)
    whole = file.read_bytes()
    for length in range(0, len(whole), 31):
        file.write_bytes(whole[:length])
        with pytest.raises(CorruptFile, match="damaged"):
            storage.read(file, "thing", 1)


def test_other_files_are_named(tmp_path):
    file = tmp_path / "x.safetensors"
    with pytest.raises(InvalidArgument, match="no file"):
        storage.read(file, "thing", 1)
    save_file({"w": torch.zeros(2)}, file)
    with pytest.raises(CorruptFile, match="not written by torchspot"):
        storage.read(file, "thing", 1)
    storage.write(file, "other", 1, STATE)
    with pytest.raises(CorruptFile, match="holds a 'other', not a 'thing'"):
        storage.read(file, "thing", 1)
    storage.write(file, "thing", 9, STATE)
    with pytest.raises(CorruptFile, match="format version 9; this torchspot reads version 1"):
        storage.read(file, "thing", 1)


def test_others_may_read_what_they_may_read_elsewhere(tmp_path):
    (tmp_path / "plain").touch()
    storage.write(tmp_path / "a.safetensors", "thing", 1, {"x": torch.ones(2)})
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "x.safetensors"
    storage.write(file, "thing", 1, {"n": 1})

    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, "save_file", full)
    with pytest.raises(TorchspotError, match=r"the disk is full: .* intact"):
        storage.write(file, "thing", 1, {"n": 2})
    assert storage.read(file, "thing", 1) == {"n": 1}
    assert [f.name for f in tmp_path.iterdir()] == ["x.safetensors"]


def test_too_little_disk_is_said_before_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "free_space", lambda folder: 1000)
    with pytest.raises(TorchspotError, match=r"not enough disk space .* 0\.0 MiB are free"):
        storage.write(tmp_path / "x.safetensors", "thing", 1, STATE)
    assert not list(tmp_path.iterdir())


def test_a_missing_tensor_is_noticed(tmp_path):
    body = json.dumps({"kind": "thing", "version": 1, "state": {"w": "tensor:w"}})
    file = tmp_path / "x.safetensors"
    save_file({}, file, metadata={"torchspot": body, "digest": storage._digest(body, {})})
    with pytest.raises(CorruptFile, match="missing"):
        storage.read(file, "thing", 1)


def test_an_empty_tensor_is_stored_too(tmp_path):
    storage.write(tmp_path / "x.safetensors", "thing", 1, {"rows": torch.empty(0, dtype=torch.int64), "n": 1})
    assert storage.read(tmp_path / "x.safetensors", "thing", 1)["rows"].shape == (0,)
