"""One loop for every game: players, losses, devices; no optimal transport."""

__all__ = ["Player", "Training", "callbacks", "engine", "optimizers", "replicas", "schedules", "train"]

from torchspot.training import callbacks, engine, optimizers, replicas, schedules
from torchspot.training.loop import Training, train
from torchspot.training.players import Player
