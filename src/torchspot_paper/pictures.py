"""What the experiments on pictures share: the data of each task, how plans are judged, and contact sheets."""

__all__ = [
    "Resized",
    "Task",
    "engine_for_pictures",
    "judged",
    "mnist_task",
    "monet_task",
    "shoes_task",
    "spot_of_pictures",
    "steepest",
    "write_sheet",
]

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import wasserstein_distance
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional

from torchspot import SPOT, costs, presets
from torchspot.baselines import CoGAN
from torchspot.data.arrays import Rows
from torchspot.evaluation.images import (
    colour_spread,
    frechet_distance,
    in_parts,
    kernel_distance,
    label_agreement,
    labels,
    pairing_of,
    precision_recall,
    random_features,
)
from torchspot.networks.augmentation import Augmentation
from torchspot.plans import PushforwardPlan
from torchspot.plots import plot_sheet
from torchspot.training.engine import choose_device, choose_engine
from torchspot.types import Cost, Engine, Samples
from torchspot_paper import datasets
from torchspot_paper.classifiers import classifier_of
from torchspot_paper.datasets import Digits, Unpaired
from torchspot_paper.recipe import Call

_MOST, _NEAR, _SHEET, _QUICK, _SURE = 5000, 2000, 64, 400, 0.9

Look = Callable[[Tensor], Float[Tensor, "batch dim"]]


@dataclass(frozen=True)
class Task:
    """Two sets of pictures, what it costs to move one into the other, and how results are judged."""

    name: str
    train: tuple[np.ndarray, np.ndarray]
    real: tuple[np.ndarray, np.ndarray]
    """By which generated pictures are judged."""
    cost: Cost
    augmentation: Augmentation | None = None
    labelled: tuple[Digits, Digits] | None = None
    """The same with labels, where there are some."""
    pairs: tuple[np.ndarray, np.ndarray] | None = None
    """Real pictures that belong together, where they are known."""
    swapped: bool = False
    """Whether the generator begins with the second marginal."""

    def sources(self) -> list[Rows]:
        """What is fitted, in the generator's order."""
        sources = [datasets.as_source(x) for x in self.train]
        return sources[::-1] if self.swapped else sources

    def ordered(self, samples: Samples) -> Samples:
        """Samples of the generator in the task's order."""
        return samples[::-1] if self.swapped else samples


def mnist_task(call: Call) -> Task:
    """MNIST and MNIST-M, which in training are drawn apart from each other."""
    both = _small_digits() if call.quick and call.data is None else _real_digits(call)
    pairs = (both[0].test, both[1].test)
    return Task("mnist-mnistm", (both[0].train, both[1].train), pairs, costs.contour, labelled=both, pairs=pairs)


def shoes_task(call: Call) -> Task:
    """Edges and shoes of disjoint halves; the generator makes the shoe first, of which its edges are nearly a
    function."""
    if call.quick and call.data is None:
        x, y = _small_digits()
        unpaired, pairs = Unpaired((x.train, y.train), (x.test, y.test)), (x.test, y.test)
    else:
        unpaired = datasets.edges2shoes(datasets.data_folder(call.data))
        half = len(unpaired.train[0])
        pairs = (unpaired.train[0], unpaired.test[1][:half])
        if call.quick:
            unpaired = Unpaired((unpaired.train[0][:_QUICK], unpaired.train[1][:_QUICK]), unpaired.test)
    changes = Augmentation(mirror=False)
    return Task("edges-shoes", unpaired.train, unpaired.test, costs.contour, changes, pairs=pairs, swapped=True)


def monet_task(call: Call) -> Task:
    """Photographs and paintings; of these there are so few that the training pictures are those to judge by."""
    if call.quick and call.data is None:
        y = _small_digits()[1]
        train = (y.train, 255 - y.train[::-1])
    else:
        train = datasets.monet2photo(datasets.data_folder(call.data)).train
        if call.quick:
            train = (train[0][:_QUICK], train[1][:_QUICK])
    return Task("photo-monet", train, train, costs.euclidean, Augmentation())


@dataclass(frozen=True)
class Resized:
    """A plan whose pictures are brought to another size, to be judged beside others."""

    plan: PushforwardPlan
    size: int

    def sample(self, n: int, seed: int | None = None) -> Samples:
        """n joint samples of this size."""
        size = (self.size, self.size)
        return tuple(
            functional.interpolate(x, size=size, mode="bilinear", antialias=True).clamp(0, 1)
            for x in self.plan.sample(n, seed)
        )


def spot_of_pictures(call: Call, task: Task, *, seed: int, steps: int, engine: Engine | None = None) -> SPOT:
    """The default recipe on a task."""
    spot = SPOT(
        cost=task.cost,
        preset=replace(presets.pictures(), augmentation=task.augmentation),
        steps=4 if call.quick else steps,
        batch_size=8 if call.quick else None,
        seed=seed,
        engine=engine or engine_for_pictures(call),
    )
    return spot.fit(*task.sources())


def steepest(estimator: SPOT | CoGAN) -> dict[str, float]:
    """The largest operator norm of all convolutions of the critics."""
    critics: Any = estimator.critics_
    return {"critic_norm_largest": max(critics.operator_norms())}


def engine_for_pictures(call: Call) -> Engine:
    """The shipped path: on a GPU captured, convolutions in bfloat16."""
    return choose_engine(call.device, pictures=True)


def judged(plan: PushforwardPlan | Resized, task: Task, call: Call) -> dict[str, float]:
    """Everything that is measured of a plan, beside what real pictures give."""
    device = choose_device(call.device)
    real = [torch.from_numpy(np.ascontiguousarray(_shuffled(x))).to(device) for x in task.real]
    sizes = [min(len(x) // 2, _MOST) for x in real]
    samples = tuple(x.float() for x in task.ordered(plan.sample(max(sizes), seed=0)))
    pairing = pairing_of(samples, task.cost)
    numbers = {"contour_ratio" if task.cost == costs.contour else "pairing_ratio": pairing.ratio}
    numbers |= {"pairing_deviations": pairing.deviations} | _beside_real_pairs(task, device)
    looks = _looks(task, call, [x.shape[1] for x in real], numbers, samples)
    for name, made, pictures, size, look in zip("xy", samples, real, sizes, looks, strict=True):
        halves = [look(pictures[k * size : (k + 1) * size].float() / 255) for k in (0, 1)]
        seen = look(made[:size])
        for suffix, these in (("", seen), ("_real", halves[1])):
            numbers[f"frechet_{name}{suffix}"] = frechet_distance(these, halves[0])
            numbers[f"kernel_{name}{suffix}"] = kernel_distance(these, halves[0])
            near = precision_recall(halves[0][:_NEAR], these[:_NEAR])
            numbers[f"precision_{name}{suffix}"], numbers[f"recall_{name}{suffix}"] = near
    numbers["colour_spread"] = colour_spread(samples[1])
    numbers["colour_spread_real"] = colour_spread(real[1].float() / 255)
    return numbers


def write_sheet(plan: PushforwardPlan | Resized, task: Task, file: Path) -> Path:
    """The first 64 pairs of seed 0, none left out, and real pictures of both kinds beside them."""
    made = task.ordered(plan.sample(_SHEET, seed=0))
    real = tuple(torch.from_numpy(np.ascontiguousarray(x[:_SHEET])) / 255 for x in task.real)
    return plot_sheet(made, file, data=real)


def _looks(
    task: Task, call: Call, channels: Sequence[int], numbers: dict[str, float], samples: Samples
) -> Sequence[Look]:
    """Features of each marginal: of classifiers where there are labels, which then also say how well labels agree."""
    if task.labelled is None:
        return [random_features(c) for c in channels]
    judges = [classifier_of(data, call.engine(), steps=60 if call.quick else 3000) for data in task.labelled]
    networks = [judge.network for judge in judges]
    said = labels(samples, networks)
    sure = (said.certainty > _SURE).all(0)
    numbers["label_agreement"] = float(said.agree.double().mean())
    numbers["sure_of_both"] = float(sure.double().mean())
    if sure.any():
        numbers["label_agreement_sure"] = float(said.agree[sure].double().mean())
    numbers |= {f"classifier_accuracy_{name}": judge.accuracy for name, judge in zip("xy", judges, strict=True)}
    real = tuple(torch.from_numpy(x).to(choose_device(call.device)) / 255 for x in task.real)
    numbers["label_agreement_real"] = label_agreement(real, networks)
    return [partial(in_parts, network.features) for network in networks]


def _beside_real_pairs(task: Task, device: torch.device) -> dict[str, float]:
    """What real pairs cost over shuffled ones, and below what no pairs with these marginals can come (contours)."""
    if task.cost != costs.contour or task.pairs is None:
        return {}
    x, y = (torch.from_numpy(np.ascontiguousarray(p[:_MOST])).to(device) / 255 for p in task.pairs)
    pairing = pairing_of((x, y), task.cost)
    a, b = (costs.contour.strengths(p).double().cpu().numpy() for p in (x, y))
    least = sum(wasserstein_distance(u, v) for u, v in zip(a.T, b.T, strict=True))
    return {"contour_ratio_real_pairs": pairing.ratio, "contour_ratio_least": least / pairing.shuffled}


def _real_digits(call: Call) -> tuple[Digits, Digits]:
    folder = datasets.data_folder(call.data)
    pair = (datasets.digits("mnist", folder), datasets.mnistm(folder))
    rows = _QUICK if call.quick else None
    return tuple(
        Digits(one.train[:rows], one.train_labels[:rows], one.test[:rows], one.test_labels[:rows]) for one in pair
    )  # type: ignore[return-value]


def _small_digits() -> tuple[Digits, Digits]:
    """Digits that come with scikit-learn, and the same on backgrounds of random colours: to see that all runs."""
    found = load_digits()
    images = datasets.resized((found.images[:800, None] * 15.9).astype(np.uint8), datasets.PATCH)
    images = np.where(images > 100, images, 0).astype(np.uint8)
    labels = found.target[:800].astype(np.uint8)
    rng = np.random.default_rng(0)
    walls = [np.kron(rng.integers(0, 255, (8, 8, 3)), np.ones((8, 8, 1))).astype(np.uint8) for _ in range(8)]
    coloured = datasets.blended(images, walls, rng)
    return tuple(Digits(x[:400], labels[:400], x[400:], labels[400:]) for x in (images, coloured))  # type: ignore[return-value]


def _shuffled(x: np.ndarray) -> np.ndarray:
    """In random order: halves of the test digits as they come differ, as different people wrote them."""
    return x[np.random.default_rng(0).permutation(len(x))]
