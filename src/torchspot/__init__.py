"""Large-scale optimal transport by push-forward: the plan is a network one can draw pairs from."""

__all__ = [
    "DASPOT",
    "SPOT",
    "EntropicSPOT",
    "__version__",
    "baselines",
    "callbacks",
    "costs",
    "data",
    "engines",
    "errors",
    "evaluation",
    "latents",
    "load",
    "networks",
    "presets",
]

from torchspot import baselines, costs, data, errors, evaluation, latents, networks
from torchspot.estimators import DASPOT, SPOT, EntropicSPOT, presets
from torchspot.plans import load
from torchspot.training import callbacks
from torchspot.training import engine as engines

__version__ = "0.1.0"
