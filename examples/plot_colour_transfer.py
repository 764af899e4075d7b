"""Give a photograph the colours of another one, and the other way round.

    python examples/plot_colour_transfer.py [FIRST SECOND] [--out colours.png] [--steps 5000]

Each pixel is a point (red, green, blue). The optimal map from the pixels of one photograph to those of the other moves
every colour as little as possible and ends with all the colours of the other, in the same amounts. One fit learns the
map and its inverse. Its time and memory do not grow with the number of pixels; only moving the pixels does.

Without files, two photographs that come with scikit-learn are used (273 280 pixels each).
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_sample_image

from torchspot import SPOT, costs, evaluation, latents

LEVELS, SHOWN = 256, 3000
Picture = np.ndarray
"""(height, width, 3), red, green and blue from 0 to 1."""


def read(file: Path) -> Picture:
    """A photograph from a file of any common kind."""
    with Image.open(file) as image:
        return np.asarray(image.convert("RGB"), dtype=np.float32) / (LEVELS - 1)


def colours_of(picture: Picture, rng: np.random.Generator) -> np.ndarray:
    """Its pixels as rows. Less than one level of noise makes a density of the few levels that a file has."""
    rows = picture.reshape(-1, 3)
    return rows + (rng.random(rows.shape, dtype=np.float32) - 0.5) / (LEVELS - 1)


def recoloured(picture: Picture, moved: np.ndarray) -> Picture:
    """The picture with these rows for pixels."""
    return moved.reshape(picture.shape).clip(0, 1)


def cloud(axes: Axes, rows: np.ndarray, title: str, rng: np.random.Generator) -> None:
    """Some colours, red against blue, each in itself."""
    some = rows[rng.integers(len(rows), size=SHOWN)].clip(0, 1)
    axes.scatter(some[:, 0], some[:, 2], c=some, s=4, linewidths=0)
    axes.set(title=title, xlim=(0, 1), ylim=(0, 1), xlabel="red", ylabel="blue", aspect="equal")


def draw(pictures: Sequence[Picture], moved: Sequence[Picture], file: Path) -> None:
    """Each photograph, itself in the other's colours, and its colours before and after."""
    rng = np.random.default_rng(0)
    figure = Figure(figsize=(15, 6.4), layout="constrained")
    rows = figure.subplots(2, 4, width_ratios=(1.5, 1.5, 1, 1))
    for k, axes in enumerate(rows):
        axes[0].imshow(pictures[k])
        axes[0].set_title("first photograph" if k == 0 else "second photograph")
        axes[1].imshow(moved[k])
        axes[1].set_title("in the colours of the second" if k == 0 else "in the colours of the first")
        for shown in axes[:2]:
            shown.set_axis_off()
        cloud(axes[2], pictures[k].reshape(-1, 3), "its colours", rng)
        cloud(axes[3], moved[k].reshape(-1, 3), "moved", rng)
    figure.savefig(file, dpi=90)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fits, judges, recolours and draws."""
    matplotlib.use("Agg")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", type=Path, nargs="*", help="two photographs")
    parser.add_argument("--out", type=Path, default=Path("colours.png"))
    parser.add_argument("--steps", type=int, default=None, help="of training; by default the library's choice")
    given = parser.parse_args(arguments)
    if len(given.files) not in (0, 2):
        parser.error("give two photographs, or none for those of scikit-learn")
    pictures = [read(file) for file in given.files]
    if not pictures:
        pictures = [load_sample_image(name).astype(np.float32) / (LEVELS - 1) for name in ("china.jpg", "flower.jpg")]
    rng = np.random.default_rng(0)
    first, second = (colours_of(picture, rng) for picture in pictures)
    print(f"{len(first)} and {len(second)} pixels")

    started = time.perf_counter()
    spot = SPOT(
        cost=costs.squared_euclidean,
        latent=latents.anchored(noise_dim=0, at=(0, 1)),
        steps=given.steps,
    ).fit(first, second)
    fitted = time.perf_counter()
    moved = [
        recoloured(pictures[0], np.asarray(spot.transform(first))),
        recoloured(pictures[1], np.asarray(spot.inverse_transform(second))),
    ]
    done = time.perf_counter()
    print(f"fitted in {fitted - started:.0f} s, pixels moved in {done - fitted:.1f} s")
    print(f"root mean square change of a colour {spot.distance_.value**0.5:.3f} (black to white is {3**0.5:.3f})")
    for k, marginal in enumerate(evaluation.audit(spot.plan_, first, second).marginals):
        print(f"the colours made like those of photograph {k + 1} are {marginal.verdict}")

    draw(pictures, moved, given.out)
    print(f"The picture is {given.out}.")


if __name__ == "__main__":
    main()
