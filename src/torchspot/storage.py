"""One file that holds tensors and JSON together: safetensors, written atomically, checked when read."""

__all__ = ["free_space", "read", "replacing", "write"]

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from torchspot.errors import CorruptFile, InvalidArgument, TorchspotError

State = dict[str, Any]
"""Nested dictionaries (string keys) whose leaves are tensors or plain JSON values."""

_TENSOR = "tensor:"


def write(path: Path, kind: str, version: int, state: State) -> None:
    """Writes `state` under `path`: afterwards there is the whole new file, or the old one unchanged."""
    tensors: dict[str, Tensor] = {}
    body = json.dumps({"kind": kind, "version": version, "state": _split(state, "", tensors)})
    needed = sum(t.numel() * t.element_size() for t in tensors.values()) + len(body) + 2**16
    if needed > free_space(path.parent):
        raise TorchspotError(
            f"not enough disk space for {path}: {needed / 2**20:.1f} MiB are needed and "
            f"{free_space(path.parent) / 2**20:.1f} MiB are free. Free some space; what was saved before is intact."
        )
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={"torchspot": body, "digest": _digest(body, tensors)})


def read(path: Path, kind: str, version: int) -> State:
    """Reads what `write` wrote; raises CorruptFile for anything else. Never runs code from the file."""
    if not path.is_file():
        raise InvalidArgument(f"there is no file {path}. Check the path.")
    try:
        content = path.read_bytes()
        tensors = load(content)
        metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        body = metadata["torchspot"]
        header = json.loads(body)
        found = header["kind"], header["version"]
        digest_holds = metadata["digest"] == _digest(body, tensors)
    except (SafetensorError, KeyError, TypeError, ValueError, OSError, RecursionError) as error:
        raise CorruptFile(f"{path} is damaged or was not written by torchspot ({error}).") from error
    if found[0] != kind:
        raise CorruptFile(f"{path} holds a {found[0]!r}, not a {kind!r}.")
    if found[1] != version:
        raise CorruptFile(
            f"{path} has format version {found[1]!r}; this torchspot reads version {version}. "
            "Open it with the release that wrote it."
        )
    if not digest_holds:
        raise CorruptFile(f"{path} is damaged: its content does not match its checksum.")
    try:
        joined = _join(header["state"], tensors)
    except (KeyError, AttributeError, TypeError, RecursionError) as error:
        raise CorruptFile(f"{path} is damaged: {error} is missing.") from error
    return joined


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; put under the final name only when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        temporary.touch()
        usual = temporary.stat().st_mode
        yield temporary
        temporary.chmod(usual)  # safetensors leaves files to their owner alone
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error):
            raise TorchspotError(
                f"the disk is full: {path} was not written; what was saved before is intact."
            ) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def free_space(folder: Path) -> int:
    """Bytes free on the disk that holds `folder` (or that will hold it)."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _split(state: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(state, Tensor):
        tensors[name] = state.detach().cpu().clone().contiguous()
        return _TENSOR + name
    if isinstance(state, dict):
        return {key: _split(value, f"{name}/{key}" if name else key, tensors) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [_split(value, f"{name}/{k}", tensors) for k, value in enumerate(state)]
    return state


def _join(state: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(state, str) and state.startswith(_TENSOR):
        return tensors[state.removeprefix(_TENSOR)]
    if isinstance(state, dict):
        return {key: _join(value, tensors) for key, value in state.items()}
    if isinstance(state, list):
        return [_join(value, tensors) for value in state]
    return state


def _digest(body: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(body.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        if tensors[name].numel():
            digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
