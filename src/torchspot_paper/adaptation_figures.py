"""Figures of the adaptation experiments: accuracy against time, embeddings, and labelled pairs."""

__all__ = ["draw_accuracies", "write_embeddings", "write_pairs"]

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D
from sklearn.manifold import TSNE

from torchspot.objectives.teacher import SOURCE, TARGET
from torchspot_paper.domains import AdaptationTask
from torchspot_paper.recipe import Rows

_SHOWN, _PAIRS, _COLUMNS = 500, 40, 10
_ACROSS, _SHADES = 3, 20


def draw_accuracies(rows: Rows, file: Path) -> None:
    """Target accuracy against seconds, one panel a task: the mean over the seeds, and a band from worst to best."""
    shown = [row for row in rows if not row["setting"]["preset"].startswith("without")]
    rows = shown or rows
    tasks = sorted({row["setting"]["task"] for row in rows})
    labels = sorted({_label(row["setting"]) for row in rows}, key=lambda label: (label != "daspot", label))
    shades = plt.get_cmap("tab20", _SHADES)
    colours = {label: shades((k % 10) * 2 + k // 10) for k, label in enumerate(labels)}
    columns = min(len(tasks), _ACROSS)
    down = -(-len(tasks) // columns)
    size = (4 * columns, 3 * down + 0.5)
    figure, axes = plt.subplots(down, columns, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat[len(tasks) :]:
        axis.axis("off")
    for axis, task in zip(axes.flat, tasks, strict=False):
        for row in (row for row in rows if row["setting"]["task"] == task):
            _band(axis, row, colours[_label(row["setting"])])
        axis.set(title=task, xlabel="seconds", xscale="log", ylim=(0.4, 1.0))
        axis.axhline(0.95, color="grey", linewidth=0.5)
    figure.supylabel("accuracy on target test pictures", fontsize=10)
    lines = [Line2D([], [], color=colours[label], label=label) for label in labels]
    figure.legend(handles=lines, fontsize=7, loc="outside lower center", ncols=2 * columns)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _band(axis: Any, row: dict[str, Any], colour: Any) -> None:
    """One method: seeds log at the same steps, so that their k-th logs belong together, as far as all of them went."""
    seeds = [name.split()[1] for name in row if name.startswith("accuracy ")]
    shortest = min(len(row[f"accuracy {seed}"]) for seed in seeds)
    accuracy = np.array([row[f"accuracy {seed}"][:shortest] for seed in seeds])
    seconds = np.mean([row[f"seconds {seed}"][:shortest] for seed in seeds], axis=0)
    later = slice(1, None) if accuracy.shape[1] > 1 else slice(None)
    seconds, accuracy = seconds[later], accuracy[:, later]
    axis.plot(seconds, accuracy.mean(0), linewidth=1, color=colour)
    axis.fill_between(seconds, accuracy.min(0), accuracy.max(0), color=colour, alpha=0.25, linewidth=0)


def _label(setting: dict[str, Any]) -> str:
    usual = setting["preset"] in ("default", "paper", "reference")
    return setting["method"] if usual else f"{setting['method']} ({setting['preset']})"


def write_pairs(daspot: Any, file: Path) -> None:
    """The first generated pairs, source above target, each with its label."""
    x, y, labels = daspot.sample(_PAIRS, seed=0)
    figure, axes = plt.subplots(2 * _PAIRS // _COLUMNS, _COLUMNS, figsize=(6, 5.6), layout="constrained")
    for k in range(_PAIRS):
        row, column = 2 * (k // _COLUMNS), k % _COLUMNS
        for offset, picture in enumerate((x[k], y[k])):
            axis = axes[row + offset][column]
            shown = picture.float().clamp(0, 1).permute(1, 2, 0).cpu().numpy()
            axis.imshow(shown.squeeze(), cmap="gray", vmin=0, vmax=1)
            axis.axis("off")
        axes[row][column].set_title(str(labels[k]), fontsize=7, pad=1)
    _save(figure, file)


def write_embeddings(before: Any, after: Any, task: AdaptationTask, file: Path) -> None:
    """t-SNE of embeddings of source (training) and target (test) pictures: of the source's classifier, then adapted."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained")
    source, target = task.source, task.target
    images = (source.train[:_SHOWN], target.test[:_SHOWN])
    digits = np.concatenate((source.train_labels[:_SHOWN], target.test_labels[:_SHOWN]))
    adapted = after.classifier_
    panels = {
        "source only": (before.classifier_, before.classifier_),
        "DASPOT": (adapted.of_domain(SOURCE), adapted.of_domain(TARGET)),
    }
    for axis, (title, classifiers) in zip(axes, panels.items(), strict=True):
        _scatter(axis, [c.embed(x.astype(np.float32) / 255) for c, x in zip(classifiers, images, strict=True)], digits)
        axis.set_title(f"{title}: source (dots), target (crosses); colours are digits", fontsize=8)
    _save(figure, file)


def _scatter(axis: Any, embedded: Sequence[np.ndarray], digits: np.ndarray) -> None:
    both = np.concatenate(embedded)
    perplexity = min(30, len(both) // 4)
    flat = TSNE(init="pca", random_state=0, perplexity=perplexity).fit_transform(both)
    split = len(embedded[0])
    for part, marker in ((slice(0, split), "."), (slice(split, None), "x")):
        axis.scatter(*flat[part].T, c=digits[part], cmap="tab10", marker=marker, s=12, linewidths=0.6)
    axis.set(xticks=[], yticks=[])


def _save(figure: Any, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=100)
    plt.close(figure)
