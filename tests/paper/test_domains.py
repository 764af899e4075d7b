"""The adaptation tasks: what is done to pictures, without a look at labels; and the data as it is on real files."""

import os
from pathlib import Path

import numpy as np
import pytest

from torchspot_paper import domains
from torchspot_paper.datasets import Digits

FOLDER = os.environ.get("TORCHSPOT_DATA")


def test_pictures_are_framed_and_enlarged():
    x = np.arange(2 * 20 * 20, dtype=np.uint16).astype(np.uint8).reshape(2, 1, 20, 20)
    framed = domains._framed(x, 28)
    assert framed.shape == (2, 1, 28, 28)
    assert (framed[:, :, 4:24, 4:24] == x).all() and framed.sum() == x.astype(int).sum()
    flat = np.full((1, 1, 28, 28), 9, np.uint8)
    assert (domains._enlarged(flat, 32) == 9).all() and domains._enlarged(flat, 32).shape == (1, 1, 32, 32)


def test_digits_become_bright_on_dark_with_full_contrast():
    dark_on_bright = np.full((1, 1, 32, 32), 180, np.uint8)
    dark_on_bright[..., 8:24, 14:18] = 60
    made = domains._bright_on_dark(dark_on_bright)
    assert made[0, 0, 16, 16] == 255 and made[0, 0, 0, 0] == 0
    assert (domains._bright_on_dark(made) == made).all()
    assert (domains._bright_on_dark(255 - dark_on_bright) == made).all()


def test_grey_is_the_usual_mean_of_colours():
    colours = np.zeros((3, 3, 2, 2), np.uint8)
    for k in range(3):
        colours[k, k] = 200
    assert domains._grey(colours)[:, 0, 0, 0].tolist() == [60, 117, 23]


def test_a_new_split_has_every_picture_once():
    images = np.arange(50, dtype=np.uint8).reshape(50, 1, 1, 1)
    made = domains._split_anew(Digits(images[:30], np.arange(30), images[30:], np.arange(30, 50)))
    assert len(made.train) == 40 and len(made.test) == 10
    both = np.concatenate((made.train, made.test)).ravel()
    assert sorted(both) == list(range(50))
    assert (np.concatenate((made.train_labels, made.test_labels)) == both).all()


def test_made_tasks_have_the_shapes_of_real_ones():
    assert domains.made_task("svhn->mnist").source.train.shape[1:] == (1, 32, 32)
    source, labels, target = domains.made_task("mnist->mnistm").sources()
    assert source.shape == target.shape == (3, 28, 28) and len(labels) == len(source)


@pytest.mark.skipif(not FOLDER, reason="needs TORCHSPOT_DATA")
@pytest.mark.parametrize(
    ("name", "shape", "rows"),
    [
        ("mnist->usps", (1, 28, 28), (60000, 7291, 2007)),
        ("usps->mnist", (1, 28, 28), (7291, 60000, 10000)),
        ("svhn->mnist", (1, 32, 32), (73257, 60000, 10000)),
        ("mnist->mnistm", (3, 28, 28), (60000, 60000, 10000)),
        ("mnist->usps 80/20", (1, 28, 28), (60000, 7438, 1860)),
    ],
)
def test_real_tasks_are_the_official_splits(name, shape, rows):
    task = domains.real_task(name, Path(FOLDER))
    assert task.source.train.shape[1:] == task.target.train.shape[1:] == shape
    assert (len(task.source.train), len(task.target.train), len(task.target.test)) == rows
