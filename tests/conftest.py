"""One thread, and a cache of its own, for every test."""

from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread_and_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("TORCHSPOT_CACHE", str(tmp_path / "cache"))
