"""Engines: where and how player steps run."""

__all__ = ["Eager", "choose_device"]

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from torchspot.errors import InvalidArgument


class Eager:
    """Runs every step as it is written.

    Args:
        device: "auto" takes a CUDA device where there is one, else the CPU.
        dtype: of the networks.
        threads: CPU threads while steps run; one is fastest for networks narrower than 128 units.
    """

    def __init__(self, device: str = "auto", *, dtype: torch.dtype = torch.float32, threads: int = 1) -> None:
        self.device = choose_device(device)
        self.dtype = dtype
        self.threads = threads

    @contextmanager
    def running(self) -> Iterator[None]:
        """Sets the number of threads, and puts it back."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def prepare(self, step: Callable[[], None]) -> Callable[[], None]:
        """The step itself."""
        return step

    def __repr__(self) -> str:
        return f"Eager(device={str(self.device)!r}, dtype={self.dtype}, threads={self.threads})"


def choose_device(name: str = "auto") -> torch.device:
    """The device of this name, or an error that lists what is there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    available = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    exists = device is not None and (
        str(device) in available or (device.type == "cuda" and len(available) > 1 and device.index is None)
    )
    if device is None or not exists:
        raise InvalidArgument(f"there is no device {name!r} here. Available: auto, {', '.join(available)}.")
    return device
