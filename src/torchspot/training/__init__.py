"""One loop for every game: players, losses, devices; no optimal transport."""

__all__ = ["Player", "Training", "callbacks", "engine", "optimizers", "schedules", "train"]

from torchspot.training import callbacks, engine, optimizers, schedules
from torchspot.training.loop import Player, Training, train
