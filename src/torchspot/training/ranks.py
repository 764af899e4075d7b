"""The processes that train together: who this one is, and the little they say to each other."""

__all__ = ["ALONE", "Alone", "Ranks", "ranks_of"]

import functools
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from torchspot.errors import InvalidArgument, TorchspotError, naming_dead_workers
from torchspot.training.meeting import GO_ON, LostTouch, check_launcher, launch, launched, leave, meet

T = TypeVar("T")


class Alone:
    """A process that trains by itself."""

    rank, count = 0, 1

    def lead(self, work: Callable[[], T]) -> T:
        """What the work of the first process gives, on all of them. Where it fails, all of them end."""
        return work()

    def in_turn(self, work: Callable[[], T]) -> T:
        """What the work of this process gives, begun when that of the first one on its machine is done."""
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
        with naming_dead_workers():
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
            meet(backend or usual, timedelta(seconds=timeout))
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self._launcher = os.getppid() if launch() is not None else None
        self._told: BaseException | None = None
        """An error that all processes raise."""

    def lead(self, work: Callable[[], T]) -> T:
        """What the work of the first process gives, on all of them. Where it fails, all of them end."""
        if self._launcher is not None:
            check_launcher(self._launcher)
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
        """What the work of this process gives, begun when that of the first one on its machine is done."""
        done: list[T] = []
        self.lead(lambda: done.append(work()))
        if not done and os.environ.get("LOCAL_RANK") == "0":
            done.append(work())
        self.gather(None)
        return done[0] if done else work()

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
            with naming_dead_workers():
                yield
        except BaseException as error:
            if self._told is None or self._told not in (error, error.__cause__):
                leave()
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
            with naming_dead_workers():
                talk()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise LostTouch(
                f"process {self.rank} of 0 to {self.count - 1} lost touch with another one, which was killed, "
                f"failed (then its own message says why) or cannot be reached. {GO_ON} "
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


def ranks_of(engine: Any) -> Alone | Ranks:
    """The processes that an engine trains with."""
    return getattr(engine, "ranks", ALONE)
