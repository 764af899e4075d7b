"""Classifiers of labelled pictures, by whose answers and features generated ones are judged."""

__all__ = ["Classifier", "Judge", "classifier_of"]

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot import storage
from torchspot.networks.convolutional import normal_weights
from torchspot.random import Key, generator
from torchspot.training.loop import Training, train
from torchspot.training.optimizers import Adam
from torchspot.training.players import Draw, Player, Stream
from torchspot.training.schedules import Cosine
from torchspot.types import Engine
from torchspot_paper.datasets import Digits

_CLASSES, _FEATURES, _BATCH, _CHUNK = 10, 128, 256, 1000
_KIND, _VERSION = "classifier", 1


class Classifier(nn.Module):
    """Four convolutions with batch norm, the last features (128 numbers), and scores of ten classes."""

    def __init__(self, channels: int, size: int, rng: torch.Generator) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, stride in ((channels, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        left = -(-size // 4)
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * left * left, _FEATURES), nn.ReLU())
        self.last = nn.Linear(_FEATURES, _CLASSES)
        normal_weights(self, rng)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        return self.last(self.features(x))

    def features(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim"]:
        """What the classes are decided by; pictures are in [0, 1]."""
        return self.body(2 * x - 1)


@dataclass(frozen=True)
class Judge:
    """A trained classifier and the share of test pictures it gets right."""

    network: Classifier
    accuracy: float


class _Labelled:
    """Draws rows of pixels, the label at the end."""

    def __init__(self, data: Digits, device: torch.device) -> None:
        self.images, self.labels = (
            torch.from_numpy(data.train).to(device),
            torch.from_numpy(data.train_labels).to(device),
        )
        self.device = device

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch numbers"]:
        rows = torch.randint(len(self.images), (size,), generator=generator, device=self.device)
        return torch.cat((self.images[rows].flatten(1) / 255, self.labels[rows, None]), dim=1)


def classifier_of(data: Digits, engine: Engine, *, steps: int = 3000, seed: int = 0) -> Judge:
    """Trains a classifier on the training pictures; one trained before on the same is taken from a file."""
    file = _file_of(data, steps, seed)
    network = Classifier(data.train.shape[1], data.train.shape[2], generator(Key(seed, "classifier")))
    network = network.to(engine.device)
    if file.exists():
        network.load_state_dict(storage.read(file, _KIND, _VERSION))
    else:
        _train(network, data, engine, steps, seed)
        storage.write(file, _KIND, _VERSION, dict(network.state_dict()))
    network.eval().requires_grad_(False)
    return Judge(network, _accuracy(network, data, engine.device))


def _train(network: Classifier, data: Digits, engine: Engine, steps: int, seed: int) -> None:
    shape = data.train.shape[1:]

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        x, y = batch[0][:, :-1].reshape(-1, *shape), batch[0][:, -1].long()
        return nn.functional.cross_entropy(network(x), y)

    stream = Stream(_Labelled(data, engine.device), _BATCH, torch.float32)
    draw = Draw(Key(seed, "classifier batches"), stream, device=engine.device)
    player = Player("classifier", (network,), Adam(1e-3, schedule=Cosine()), draw, loss)
    train(Training([player], steps), engine=engine, log_every=steps)


def _accuracy(network: Classifier, data: Digits, device: torch.device) -> float:
    right = 0
    for start in range(0, len(data.test), _CHUNK):
        x = torch.from_numpy(np.ascontiguousarray(data.test[start : start + _CHUNK])).to(device) / 255
        said = network(x).argmax(1).cpu().numpy()
        right += int((said == data.test_labels[start : start + _CHUNK]).sum())
    return right / len(data.test)


def _file_of(data: Digits, steps: int, seed: int) -> Path:
    digest = hashlib.blake2b(repr((data.train.shape, steps, seed)).encode(), digest_size=8)
    digest.update(data.train[:: max(1, len(data.train) // 256)].tobytes() + data.train_labels.tobytes())
    return Path(tempfile.gettempdir()) / f"torchspot-classifier-{digest.hexdigest()}.safetensors"
