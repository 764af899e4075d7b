"""The paper's mathematics: losses that step nothing."""

__all__ = ["MarginalWeights", "Transport", "marginal_weights"]

from torchspot.objectives.transport import MarginalWeights, Transport, marginal_weights
