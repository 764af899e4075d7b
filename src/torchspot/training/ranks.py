"""The processes that train together: who this one is, and the little they say to each other."""

__all__ = ["ALONE", "Alone", "LostTouch", "Ranks", "launch", "launched", "local_rank", "ranks_of", "restarts"]

import atexit
import functools
import itertools
import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from torchspot.errors import InvalidArgument, TorchspotError

T = TypeVar("T")

_GO_ON = (
    "Checkpoints are intact: the same command with --resume (fit with the same resume=) goes on from the last, and "
    "torchrun --max-restarts=3 does so by itself."
)
_meetings = itertools.count()


class LostTouch(TorchspotError):
    """Another process ended, or cannot be reached."""


class Alone:
    """A process that trains by itself."""

    rank, count = 0, 1

    def lead(self, work: Callable[[], T]) -> T:
        """What the work of the first process gives, on all of them. Where it fails, all of them end."""
        return work()

    def in_turn(self, work: Callable[[], T]) -> T:
        """What the work of this process gives, begun when that of the first one is done."""
        return work()

    def first(self, value: T) -> T:
        """The value of the first process, on all of them."""
        return value

    def gather(self, value: T) -> list[T]:
        """The values of all processes, in their order."""
        return [value]

    def share_(self, tensors: Sequence[Tensor]) -> None:
        """Gives all processes the values of the first one."""

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is done in here is done by all processes, or by none."""
        yield


class Ranks:
    """Some processes of torch.distributed, started by torchrun (or by anyone who sets up a process group).

    Args:
        device: that this process trains on.
        backend: of torch.distributed; None takes gloo between CPUs and NCCL between GPUs.
        timeout: seconds that a process waits for the others; opening large files on the first takes its time.
    """

    def __init__(self, device: torch.device, backend: str | None = None, *, timeout: float = 1800.0) -> None:
        if not dist.is_available():
            raise TorchspotError("this PyTorch was built without torch.distributed: train in one process.")
        if not dist.is_initialized():
            if not launched():
                raise InvalidArgument(
                    "several processes are needed to train together: start them with torchrun, for instance "
                    "torchrun --nproc-per-node=2 script.py, or leave out the engine Distributed()."
                )
            if device.type == "cuda":
                torch.cuda.set_device(device)
            usual = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            _meet(backend or usual, timedelta(seconds=timeout))
            _mind_the_end()
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self._told: BaseException | None = None
        """An error that all processes raise."""

    def lead(self, work: Callable[[], T]) -> T:
        """What the work of the first process gives, on all of them. Where it fails, all of them end."""
        if self.rank == 0:
            try:
                result = work()
                message = pickle.dumps((result, None))
            except Exception as error:
                self._told = error
                self._tell(pickle.dumps((None, _Failure.of(error))))
                raise
            self._tell(message)
            return result
        heard: list[Any] = [None]
        self._together(lambda: dist.broadcast_object_list(heard, src=0))
        result, failure = pickle.loads(heard[0])
        if failure is not None:
            self._told = failure.error(f"the first of {self.count} processes ended the run: ")
            raise self._told
        return result

    def in_turn(self, work: Callable[[], T]) -> T:
        """What the work of this process gives, begun when that of the first one is done."""
        first: list[T] = []
        self.lead(lambda: first.append(work()))
        return first[0] if first else work()

    def first(self, value: T) -> T:
        """The value of the first process, on all of them."""
        return self.lead(lambda: value)

    def gather(self, value: T) -> list[T]:
        """The values of all processes, in their order."""
        values: list[Any] = [None] * self.count
        self._together(lambda: dist.all_gather_object(values, value))
        return values

    def average_(self, vector: Tensor) -> None:
        """Puts the mean over all processes in its place: one message."""
        vector.div_(self.count)
        self._together(lambda: dist.all_reduce(vector))

    def share_(self, tensors: Sequence[Tensor]) -> None:
        """Gives all processes the values of the first one."""
        for tensor in tensors:
            message = tensor.contiguous()
            self._together(functools.partial(dist.broadcast, message, src=0))
            if message is not tensor:
                tensor.copy_(message)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is done in here is done by all processes, or by none: one that fails alone leaves the others.

        They hear of it in the next message, instead of waiting for one that goes on with something else.
        """
        try:
            yield
        except BaseException as error:
            if self._told is None or self._told not in (error, error.__cause__):
                _part()
            raise

    def _tell(self, message: bytes) -> None:
        self._together(lambda: dist.broadcast_object_list([message], src=0))

    def _together(self, talk: Callable[[], Any]) -> None:
        if not dist.is_initialized():
            raise TorchspotError(
                f"process {self.rank} has left the others after an error, and cannot train with them any more. Start "
                "all processes again, or make a new engines.Distributed() in each of them."
            )
        try:
            talk()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise LostTouch(
                f"process {self.rank} of 0 to {self.count - 1} lost touch with another one, which was killed, "
                f"failed (then its own message says why) or cannot be reached. {_GO_ON} "
                f"({str(error).strip().splitlines()[0]})"
            ) from error


ALONE = Alone()


class _Failure(NamedTuple):
    """An error as it is sent: torchspot's own keep their class and what they hold."""

    kind: type[TorchspotError]
    message: str
    held: dict[str, Any]

    @classmethod
    def of(cls, error: Exception) -> "_Failure":
        if isinstance(error, TorchspotError):
            return cls(type(error), str(error), vars(error))
        return cls(TorchspotError, f"{type(error).__name__}: {error}", {})

    def error(self, prefix: str) -> TorchspotError:
        made = self.kind.__new__(self.kind, prefix + self.message)
        made.args, made.__dict__ = (prefix + self.message,), dict(self.held)
        return made


def _meet(backend: str, timeout: timedelta) -> None:
    """Sets up the process group, and takes it down when Python ends: a process that leaves it up may crash then.

    After a restart torchrun's store still holds the addresses of processes that are gone, so each attempt, and each
    meeting of one, has its own part of it.
    """
    try:
        store, rank, count = _store(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], timeout)
        part = dist.PrefixStore(f"torchspot/{restarts()}/{next(_meetings)}", store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=part, rank=rank, world_size=count, timeout=timeout)
    except RuntimeError as error:
        raise LostTouch(
            f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} could not reach the others at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}. Are all of them running, and have all of them "
            f"made as many engines.Distributed()? ({str(error).strip().splitlines()[0]})"
        ) from error
    atexit.register(_part)


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
        f"this process was told to end, as happens when another one has died or the job is over its time. {_GO_ON}"
    )


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
