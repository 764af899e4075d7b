"""Generators, critics and the layers they are made of."""

__all__ = ["critics", "generators", "lipschitz", "ode", "solvers"]

from torchspot.networks import critics, generators, lipschitz, ode, solvers
