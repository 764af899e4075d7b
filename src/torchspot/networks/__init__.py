"""Generators, critics and the layers they are made of."""

__all__ = ["convolutional", "critics", "generators", "lipschitz", "ode", "solvers", "tied"]

from torchspot.networks import convolutional, critics, generators, lipschitz, ode, solvers, tied
