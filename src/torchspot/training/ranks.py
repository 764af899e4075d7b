"""The processes that train together: who this one is, and the little they say to each other."""

__all__ = ["ALONE", "Alone", "Ranks", "launched", "local_rank", "ranks_of", "restarts"]

import atexit
import functools
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from torchspot.errors import InvalidArgument, TorchspotError

T = TypeVar("T")


class Alone:
    """A process that trains by itself."""

    rank, count = 0, 1

    def lead(self, work: Callable[[], T]) -> T:
        """What the work of the first process gives, on all of them. Where it fails, all of them end."""
        return work()

    def in_turn(self, work: Callable[[], T]) -> T:
        """What the work of this process gives, begun when that of the first one is done."""
        return work()


class Ranks:
    """Some processes of torch.distributed, started by torchrun (or by anyone who sets up a process group).

    Args:
        backend: of torch.distributed; None takes gloo between CPUs and NCCL between GPUs.
        timeout: seconds that a process waits for the others; opening large files on the first takes its time.
    """

    def __init__(self, backend: str | None = None, *, timeout: float = 1800.0) -> None:
        if not dist.is_available():
            raise TorchspotError("this PyTorch was built without torch.distributed: train in one process.")
        if not dist.is_initialized():
            if not launched():
                raise InvalidArgument(
                    "several processes are needed to train together: start them with torchrun, for instance "
                    "torchrun --nproc-per-node=2 script.py, or leave out the engine Distributed()."
                )
            if torch.cuda.is_available():
                torch.cuda.set_device(local_rank())
            usual = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            _meet(backend or usual, timedelta(seconds=timeout))
        self.rank, self.count = dist.get_rank(), dist.get_world_size()

    def lead(self, work: Callable[[], T]) -> T:
        """What the work of the first process gives, on all of them. Where it fails, all of them end."""
        if self.rank == 0:
            try:
                result = work()
            except Exception as error:
                self._tell(None, f"{error}")
                raise
            self._tell(result, None)
            return result
        heard: list[Any] = [None]
        self._together(lambda: dist.broadcast_object_list(heard, src=0))
        result, failure = heard[0]
        if failure is not None:
            raise TorchspotError(f"the first of {self.count} processes ended the run: {failure}")
        return result

    def in_turn(self, work: Callable[[], T]) -> T:
        """What the work of this process gives, begun when that of the first one is done."""
        first: list[T] = []
        self.lead(lambda: first.append(work()))
        return first[0] if first else work()

    def average_(self, vector: Tensor) -> None:
        """Puts the mean over all processes in its place: one message."""
        vector.div_(self.count)
        self._together(lambda: dist.all_reduce(vector))

    def share_(self, tensors: Sequence[Tensor]) -> None:
        """Gives all processes the values of the first one."""
        for tensor in tensors:
            self._together(functools.partial(dist.broadcast, tensor, src=0))

    def _tell(self, result: Any, failure: str | None) -> None:
        self._together(lambda: dist.broadcast_object_list([(result, failure)], src=0))

    def _together(self, talk: Callable[[], Any]) -> None:
        try:
            talk()
        except RuntimeError as error:
            raise TorchspotError(
                f"process {self.rank} of 0 to {self.count - 1} lost touch with another one, which ended or cannot be "
                "reached; its own message says why. Checkpoints are intact: the same command with --resume (fit with "
                "the same resume=) goes on from the last, and torchrun --max-restarts=3 does so by itself. "
                f"({str(error).strip().splitlines()[0]})"
            ) from error


ALONE = Alone()


def _meet(backend: str, timeout: timedelta) -> None:
    """Sets up the process group, and takes it down when Python ends: a process that leaves it up may crash then.

    After a restart torchrun's store still holds the addresses of processes that are gone, so each attempt has its own
    part of it.
    """
    from torch.distributed.rendezvous import rendezvous  # not there in a PyTorch without torch.distributed

    store, rank, count = next(rendezvous("env://", timeout=timeout))
    attempt = dist.PrefixStore(f"torchspot/{restarts()}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=attempt, rank=rank, world_size=count, timeout=timeout)
    atexit.register(_part)


def _part() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def ranks_of(engine: Any) -> Alone | Ranks:
    """The processes that an engine trains with."""
    return getattr(engine, "ranks", ALONE)


def launched() -> bool:
    """Whether this process was started as one of several, by torchrun or alike."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def local_rank() -> int:
    """The number of this process among those on its machine, which is that of its GPU."""
    rank, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if gpus and rank >= gpus:
        raise InvalidArgument(
            f"this machine has {gpus} GPU{'s' if gpus > 1 else ''} and was asked for more processes. Start at most one "
            f"for each GPU: torchrun --nproc-per-node={gpus}, or hide the GPUs with CUDA_VISIBLE_DEVICES=''."
        )
    return rank


def restarts() -> int:
    """How often torchrun has started this run again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
