"""One seed gives independent generators by role, rank, replica and batch number; nothing seeds globally."""

__all__ = ["Key", "fresh_seed", "generator", "on"]

import hashlib
import secrets
from typing import NamedTuple

import torch


class Key(NamedTuple):
    """What a stream of random numbers belongs to: equal keys give equal numbers, others independent ones."""

    seed: int
    role: str
    rank: int = 0
    replica: int = 0

    def at(self, index: int) -> int:
        """The 63-bit seed of the batch with this number."""
        text = f"{self.seed}/{self.role}/{self.rank}/{self.replica}/{index}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def generator(key: Key, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device` that starts at the key's first number.

    >>> a, b = (torch.rand(1, generator=generator(Key(0, role))) for role in ("noise", "noise"))
    >>> bool(a == b)
    True
    """
    return torch.Generator(device=device).manual_seed(key.at(0))


def fresh_seed() -> int:
    """A seed from the operating system, for those who ask for none."""
    return secrets.randbits(62)


def on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """The generator, or one on this device that goes on from it."""
    if device == generator.device:
        return generator
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return torch.Generator(device=device).manual_seed(seed)
