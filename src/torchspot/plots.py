"""Pictures of plans and of runs."""

__all__ = [
    "SampleSheet",
    "are_drawable",
    "plot_barycenter",
    "plot_convergence",
    "plot_density",
    "plot_evaluation",
    "plot_labels",
    "plot_pairs",
    "plot_sheet",
    "to_bytes",
    "unit_range",
]

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor
from torch.nn import functional

from torchspot import storage
from torchspot.errors import InvalidArgument
from torchspot.evaluation import Audit, Certificate
from torchspot.types import Reading, Record, Samples

_MOST_LABELS = 20
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")


def plot_pairs(samples: Samples, file: str | Path, *, data: Samples = (), lines: int = 200, title: str = "") -> Path:
    """Joint samples as points, black lines between those that belong together, the data pale behind them.

    Only the first two coordinates are shown; one-dimensional marginals are drawn on parallel lines.
    """
    if len(samples) < 2 or len({len(x) for x in samples}) != 1:
        raise InvalidArgument("plot_pairs needs two or more batches of equal length, as plan.sample(n) gives them.")
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    places = [_plane(x, k) for k, x in enumerate(samples)]
    for k, x in enumerate(data):
        axes.scatter(*_xy(_plane(x, k)), s=4, color=_colour(k), alpha=0.12, linewidths=0)
    for first, second in pairwise(places):
        segments = np.stack([first[:lines], second[:lines]], axis=1)
        axes.add_collection(LineCollection(list(segments), colors="black", linewidths=0.4, alpha=0.6))
    for k, place in enumerate(places):
        axes.scatter(*_xy(place), s=8, color=_colour(k), label=f"$G_{k + 1}(z)$", linewidths=0)
    _finish(axes, samples, title)
    return _save(figure, file)


def plot_barycenter(
    samples: Samples,
    weights: Sequence[float],
    file: str | Path,
    *,
    data: Samples = (),
    lines: int = 60,
    title: str = "",
) -> Path:
    """Joint samples, their weighted means (the barycenter), and lines from each mean to the tuple it belongs to.

    Only the first two coordinates are shown; one-dimensional marginals are drawn on parallel lines.
    """
    if len(samples) != len(weights):
        raise InvalidArgument(f"there are {len(samples)} marginals and {len(weights)} weights. Give one each.")
    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = figure.add_subplot()
    places = [_plane(x, k) for k, x in enumerate(samples)]
    centre = np.tensordot(np.asarray(weights), np.stack(places), axes=1)
    for k, x in enumerate(data):
        axes.scatter(*_xy(_plane(x, k)), s=4, color=_colour(k), alpha=0.12, linewidths=0)
    for k, place in enumerate(places):
        segments = np.stack([centre[:lines], place[:lines]], axis=1)
        axes.add_collection(LineCollection(list(segments), colors=_colour(k), linewidths=0.5, alpha=0.6))
        axes.scatter(
            *_xy(place), s=6, color=_colour(k), label=f"marginal {k + 1}, $w = {weights[k]:.3g}$", linewidths=0
        )
    axes.scatter(*_xy(centre), s=8, color="black", label="barycenter", linewidths=0)
    _finish(axes, samples, title)
    return _save(figure, file)


def plot_sheet(samples: Samples, file: str | Path, *, data: Samples = (), columns: int = 8) -> Path:
    """A contact sheet: joint samples of pictures side by side, in the order they come, and real ones to the right.

    Values are in [0, 1] and are cut off outside. Real pictures do not belong together: they stand in blocks of their
    own.
    """
    if not samples or not are_drawable((*samples, *data)):
        raise InvalidArgument("plot_sheet needs batches of pictures with one or three channels.")
    rows = -(-len(samples[0]) // columns)
    beside = max(1, columns // 2)
    blocks = [_tiled(samples, columns), *(_tiled((x[: rows * beside],), beside) for x in data)]
    height = max(block.shape[0] for block in blocks)
    gap = 6
    padded = [np.pad(b, ((0, height - b.shape[0]), (0, gap), (0, 0)), constant_values=255) for b in blocks]
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage.replacing(path) as temporary:
        Image.fromarray(np.concatenate(padded, axis=1)[:, :-gap]).save(temporary, format="PNG", optimize=True)
    return path


def _tiled(samples: Samples, columns: int) -> np.ndarray:
    """Tuples of pictures next to each other, so many tuples in a row, a line of white between them."""
    size = [max(x.shape[k] for x in samples) for k in (2, 3)]
    tiles = [
        functional.pad(to_bytes(x), (0, size[1] - x.shape[3], 0, size[0] - x.shape[2]), value=255).numpy()
        for x in samples
    ]
    tuples = np.pad(np.concatenate(tiles, axis=3), ((0, 0), (0, 0), (0, 2), (0, 2)), constant_values=255)
    filled = np.pad(tuples, ((0, -len(tuples) % columns), (0, 0), (0, 0), (0, 0)), constant_values=255)
    rows = [np.concatenate(list(row), axis=2) for row in np.split(filled, len(filled) // columns)]
    return np.concatenate(rows, axis=1).transpose(1, 2, 0)


def unit_range(samples: Samples) -> Samples:
    """Pictures with values in [0, 1]: as they are if they lie there, else bytes over 255, else what there is stretched.

    A tenth outside is cut off.
    """
    low, high = min(float(x.min()) for x in samples), max(float(x.max()) for x in samples)
    for top in (1, 255):
        if low >= -0.1 * top and high <= 1.1 * top:
            return tuple((x / top).clamp(0, 1) for x in samples)
    return tuple((x - low) / (high - low) for x in samples)


def plot_labels(samples: Samples, labels: Sequence[np.ndarray], file: str | Path, *, titles: Sequence[str]) -> Path:
    """Samples side by side, coloured by their labels; of vectors the first two coordinates."""
    figure = Figure(figsize=(5 * len(samples), 4.5), layout="constrained")
    classes = np.unique(np.concatenate([np.asarray(each).astype(str) for each in labels]))
    panels = figure.subplots(1, len(samples), sharex=True, sharey=True, squeeze=False)[0]
    for axes, x, said, title in zip(panels, samples, labels, titles, strict=True):
        for k, name in enumerate(classes[:_MOST_LABELS]):
            rows = np.asarray(said).astype(str) == name
            axes.scatter(*_xy(_plane(x, 0)[rows]), s=6, color=f"C{k % 10}", label=name, linewidths=0)
        axes.set(title=title, xlabel="$x_1$", ylabel="$x_2$")
    panels[-1].legend(loc="upper right", frameon=False, markerscale=2)
    return _save(figure, file)


def are_drawable(samples: Samples) -> bool:
    """Whether these are grey or coloured pictures."""
    return all(x.ndim == 4 and x.shape[1] in (1, 3) for x in samples)


class SampleSheet:
    """A callback that writes a contact sheet of the plan as it stands, every so many seconds and at the end."""

    def __init__(self, file: str | Path, *, every_seconds: float = 30.0, pairs: int = 32) -> None:
        self.file, self.every_seconds, self.pairs = Path(file), every_seconds, pairs
        self._run: Any = None
        self._last = -math.inf

    def begin(self, run: Any) -> None:
        """Before the first step."""
        self._run = run

    def __call__(self, training: Any, record: Record) -> None:
        ended = training.step >= training.steps or training.stop_reason is not None
        if not ended and 0 <= training.seconds - self._last < self.every_seconds:
            return
        self._last = training.seconds
        plot_sheet(unit_range(self._run.plan().sample(self.pairs, seed=0)), self.file)


def to_bytes(x: Tensor) -> Tensor:
    """Pictures of values in [0, 1] as bytes in three colours."""
    return (x.detach().cpu().float().clamp(0, 1) * 255).round().byte().expand(-1, 3, -1, -1)


def plot_convergence(history: Sequence[Record], file: str | Path, *, truth: float | None = None) -> Path:
    """Transport cost, objective and marginal error against the step."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    steps = [record["step"] for record in history]
    above.plot(steps, [record["cost"] for record in history], color="black", label="transport cost  E c(G(z))")
    above.plot(steps, [record["objective"] for record in history], color="gray", lw=0.8, label="objective  J")
    if truth is not None:
        above.axhline(truth, color=_COLOURS[1], lw=0.8, ls="--", label=f"true value {truth:g}")
        above.set_ylim(truth * 0.8, truth * 1.2)
    above.legend(frameon=False)
    _marginal_errors(below, steps, history)
    return _save(figure, file)


def plot_density(
    x: np.ndarray, y: np.ndarray, density: np.ndarray, file: str | Path, *, data: Samples = (), title: str = ""
) -> Path:
    """A joint density at (x_i, y_j) as a heat map, its marginals beside it, and histograms of the data over those."""
    figure = Figure(figsize=(6.5, 6), layout="constrained")
    above, corner, joint, beside = figure.subplots(2, 2, width_ratios=(4, 1), height_ratios=(1, 4)).flat
    corner.set_axis_off()
    heat = joint.pcolormesh(x, y, density.T, cmap="Blues", shading="nearest", vmin=0, rasterized=True)
    above.fill_between(x, density.sum(1) * _step(y), color=_COLOURS[0], alpha=0.6, lw=0)
    beside.fill_betweenx(y, density.sum(0) * _step(x), color=_COLOURS[1], alpha=0.6, lw=0)
    for axes, part, way in zip((above, beside), data, ("vertical", "horizontal"), strict=False):
        axes.hist(
            part.flatten().double().cpu().numpy(), 60, density=True, histtype="step", color="black", orientation=way
        )
    above.set(xlim=(x[0], x[-1]), ylim=(0, None), xticks=[], ylabel="density of $x$")
    beside.set(ylim=(y[0], y[-1]), xlim=(0, None), yticks=[], xlabel="density of $y$")
    joint.set(xlabel="$x$", ylabel="$y$")
    figure.colorbar(heat, ax=[corner, beside], label="joint density", location="right")
    figure.suptitle(title)
    return _save(figure, file)


def plot_evaluation(
    judged: Audit, file: str | Path, *, certificate: Certificate | None = None, truth: float | None = None
) -> Path:
    """The plan's cost beside the interval for the optimal one, and each marginal beside its noise floor."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    costs_, sliced, energy = figure.subplots(1, 3, width_ratios=(2, 1, 1))
    _costs(costs_, judged, certificate, truth)
    _readings(sliced, [marginal.sliced_w2 for marginal in judged.marginals], "sliced $W_2$")
    _readings(energy, [marginal.energy_distance for marginal in judged.marginals], "energy distance")
    return _save(figure, file)


def _costs(axes: Axes, judged: Audit, certificate: Certificate | None, truth: float | None) -> None:
    labels = ["E c of the plan"]
    axes.errorbar(judged.cost.value, 0, xerr=2 * judged.cost.monte_carlo_error, fmt="o", color="black", capsize=3)
    if certificate is not None:
        labels += ["plan, rounded to data", f"optimal cost, {100 * certificate.confidence:g} %"]
        axes.plot(certificate.rounded_cost, 1, "s", color="gray")
        low = certificate.lower if np.isfinite(certificate.lower) else min(judged.cost.value, certificate.upper)
        axes.plot([low, certificate.upper], [2, 2], lw=6, color=_COLOURS[0], solid_capstyle="butt")
        axes.axvspan(low, certificate.upper, color=_COLOURS[0], alpha=0.12, lw=0)
    if truth is not None:
        axes.axvline(truth, color=_COLOURS[1], lw=1, ls="--")
        axes.set_title(f"true value {truth:g} (dashed)", fontsize="medium")
    axes.set(yticks=range(len(labels)), yticklabels=labels, ylim=(-0.6, len(labels) - 0.4), xlabel="cost")
    axes.locator_params(axis="x", nbins=5)


def _readings(axes: Axes, readings: Sequence[Reading], name: str) -> None:
    for k, reading in enumerate(readings):
        axes.errorbar(k, reading.floor, yerr=2 * reading.spread, lw=8, color="lightgray", fmt="_")
        axes.plot(k, reading.value, "o", color=_colour(k))
    axes.axhline(0, color="black", lw=0.5)
    numbers = [str(k + 1) for k in range(len(readings))]
    axes.set(title=name, xlabel="marginal (grey: noise)", xticks=range(len(readings)), xticklabels=numbers)
    axes.set_xlim(-0.6, len(readings) - 0.4)


def _marginal_errors(axes: Axes, steps: list[int], history: Sequence[Record]) -> None:
    names = [name for name in history[0] if name.startswith("marginal_error_")]
    for k, name in enumerate(names):
        values = [record[name] for record in history]
        axes.semilogy(steps, values, color=_colour(k), label=f"marginal {k + 1}")
    axes.set(xlabel="step", ylabel="sliced $W_2$ to held-out data")
    axes.legend(frameon=False)


def _colour(k: int) -> str:
    return _COLOURS[k % len(_COLOURS)]


def _step(line: np.ndarray) -> float:
    return float(line[1] - line[0])


def _xy(place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return place[:, 0], place[:, 1]


def _plane(x: Tensor, k: int) -> np.ndarray:
    flat = x.detach().flatten(1).double().cpu().numpy()
    if flat.shape[1] == 1:
        return np.stack([flat[:, 0], np.full(len(flat), -float(k))], axis=1)
    return flat[:, :2]


def _finish(axes: Axes, samples: Samples, title: str) -> None:
    """Title, labels and legend of a picture of joint samples."""
    axes.autoscale_view()
    axes.set(title=title, xlabel="$x_1$", ylabel="$x_2$")
    if max(x[0].numel() for x in samples) > 1:
        axes.set_aspect("equal", adjustable="datalim")
    else:
        heights = [-float(k) for k in range(len(samples))]
        axes.set(
            xlabel="$x$", ylabel="", yticks=heights, yticklabels=[f"data set {k + 1}" for k in range(len(samples))]
        )
    axes.legend(loc="upper right", frameon=False)


def _save(figure: Figure, file: str | Path) -> Path:
    path = Path(file)
    with storage.replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=120, bbox_inches="tight")
    return path
