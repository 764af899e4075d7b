"""How processes that were started together find each other, and what they know of how they were started."""

__all__ = ["GO_ON", "LostTouch", "check_launcher", "launch", "launched", "leave", "local_rank", "meet", "restarts"]

import atexit
import functools
import hashlib
import itertools
import os
import signal
import socket
import threading
import time
import uuid
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from torchspot.errors import InvalidArgument, TorchspotError

GO_ON = (
    "The same command with --resume (in Python: fit with the same resume=) goes on from the last checkpoint, and "
    "torchrun --max-restarts=3 does so by itself, as long as it is there."
)
_LOOK_AGAIN = 0.05
"""Seconds between two looks at what others have said."""
_meetings = itertools.count()


class LostTouch(TorchspotError):
    """Another process ended, or cannot be reached."""


def meet(backend: str, timeout: timedelta) -> None:
    """Sets up the process group, and takes it down when Python ends: a process that leaves it up may crash then.

    After a restart torchrun's store still holds the addresses of processes that are gone, so those that are there
    agree on a part of it that is theirs. (How often each was restarted is no name for it: torchrun counts that on each
    machine by itself.)
    """
    try:
        store, rank, count = _store(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], timeout)
        hall = dist.PrefixStore(f"torchspot/{next(_meetings)}", store)  # type: ignore[attr-defined]
        room = dist.PrefixStore(_agreed(hall, rank, count, timeout), hall)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=room, rank=rank, world_size=count, timeout=timeout)
    except RuntimeError as error:
        raise LostTouch(
            f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} could not reach the others at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}. Are all of them running, and have all of them "
            f"made as many engines.Distributed()? ({str(error).strip().splitlines()[0]})"
        ) from error
    atexit.register(leave)
    _mind_the_end()


def _agreed(hall: Any, rank: int, count: int, timeout: timedelta) -> str:
    """A name that all processes that are there know, and none that was there before.

    Each leaves a word of its own. The first calls out all words, again when one has changed, and who finds its own
    among them answers with the call. The dead may have left words, calls and answers, but none with the new words.
    """
    word, call = uuid.uuid4().hex, ""
    hall.set(f"word of {rank}", word)
    end = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < end:
        if rank == 0:
            words = [_said(hall, f"word of {k}") for k in range(count)]
            if all(words) and " ".join(words) != call:
                call = " ".join(words)
                hall.set("call", call)
            if call and all(_said(hall, f"answer of {k}") == call for k in range(1, count)):
                hall.set("agreed", call)
                break
        else:
            heard = _said(hall, "call")
            if heard != call and heard.split()[rank : rank + 1] == [word]:
                call = heard
                hall.set(f"answer of {rank}", call)
            if call and _said(hall, "agreed") == call:
                break
        time.sleep(_LOOK_AGAIN)
    else:
        raise RuntimeError(f"not all {count} have come within {timeout.total_seconds():.0f} s")
    return hashlib.blake2b(call.encode(), digest_size=16).hexdigest()


def _said(hall: Any, key: str) -> str:
    """What was said under this key; nothing if nobody has."""
    return str(hall.get(key).decode()) if hall.check([key]) else ""


@functools.cache
def _store(address: str, port: str, timeout: timedelta) -> Any:
    """What the processes there tell each other through, this one's rank, and how many they are.

    It is kept as long as Python runs: the first process may itself keep what others are connected to, and one that
    leaves a group and meets again would still reach the former one as it goes down.
    """
    from torch.distributed.rendezvous import rendezvous  # not there in a PyTorch without torch.distributed

    return next(rendezvous("env://", timeout=timeout))


def _mind_the_end() -> None:
    """Says what it means when torchrun ends this process."""
    mine = threading.current_thread() is threading.main_thread() and launch() is not None
    if mine and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _told_to_end)


def _told_to_end(number: int, frame: FrameType | None) -> None:
    raise TorchspotError(
        f"this process was told to end, as happens when another one has died or the job is over its time. {GO_ON}"
    )


def check_launcher(parent: int) -> None:
    """Raises if what started this process, which this was the number of, is gone: nobody would end it any more."""
    if os.getppid() != parent:
        raise TorchspotError(
            f"the torchrun (or script) that started this process is gone, and so this one ends. {GO_ON}"
        )


def leave() -> None:
    """Takes the process group down, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def launched() -> bool:
    """Whether this process was started as one of several, by torchrun or alike."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def local_rank() -> int:
    """The number of this process among those on its machine, which is that of its GPU."""
    rank, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if gpus == 1 and named != [""] and len(named) == 1:
        return 0  # each process was given one GPU of its own
    if gpus and rank >= gpus:
        raise InvalidArgument(
            f"this machine has {gpus} GPU{'s' if gpus > 1 else ''} and was asked for more processes. Start at most one "
            f"for each GPU: torchrun --nproc-per-node={gpus}, or hide the GPUs with CUDA_VISIBLE_DEVICES=''."
        )
    return rank


def launch() -> str | None:
    """What tells the torchrun that started this process from all others; the same after it has started it again."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    launcher = os.getppid()
    while _was_launched(launcher):  # a script in between
        launcher = int(_stat(launcher)[1])
    return f"{socket.gethostname()}/{launcher}/{_stat(launcher)[19]}"


def _was_launched(process: int) -> bool:
    """Whether torchrun started this process, or one above it."""
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(variable.startswith(b"TORCHELASTIC_RUN_ID=") for variable in variables)


def _stat(process: int) -> list[str]:
    """What Linux says of a process, from its state on: its parent comes second, when it began 20th."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["?"] * 20


def restarts() -> int:
    """How often torchrun has started this run again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
