"""Labels of all kinds, and rows that keep theirs."""

import numpy as np
import pytest
import torch

from torchspot.data.arrays import Rows
from torchspot.data.labelled import BalancedRows, LabelledRows, as_labels
from torchspot.errors import InvalidArgument


@pytest.mark.parametrize(
    "labels",
    [
        [3, 1, 3],
        ["b", "a", "b"],
        [True, False, True],
        np.array([[2.0], [1.0], [2.0]]),
        np.array(["y", "x", "y"], object),
    ],
)
def test_labels_of_any_type(labels):
    found = as_labels(labels, 3)
    assert found.codes.tolist() == [1, 0, 1]
    assert found.classes[found.codes].tolist() == np.asarray(labels).reshape(-1).tolist()
    np.testing.assert_allclose(found.shares, [1 / 3, 2 / 3])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "ys is missing: give one label for each of the 3"),
        ([1, 2], "there are 3 source rows and 2 labels"),
        ([1, 1, 1], "single class"),
        ([1.0, np.nan, 2.0], "label of row 1 is missing"),
        (np.array(["a", None, "b"], object), "label of row 1 is missing"),
        (np.array(["a", 1, "b"], object), "mixes labels of types int, str"),
        ([0.5, 1.25, 2.5], "classes are needed"),
        (np.zeros((3, 2)), "one label a row"),
    ],
)
def test_bad_labels_are_named(labels, message):
    with pytest.raises(InvalidArgument, match=message):
        as_labels(labels, 3)


def rows(count=40, classes=4):
    values = np.arange(count, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)
    return LabelledRows(Rows(values), np.minimum(np.arange(count) % 7, classes - 1))


def test_rows_keep_their_labels():
    drawn = rows().draw(200, torch.Generator().manual_seed(0))
    expected = (drawn[:, 0] % 7).clamp(max=3)
    torch.testing.assert_close(drawn[:, -1], expected)
    assert len(drawn[:, 0].unique()) == 40 - sum(k not in drawn[:, 0] for k in range(40))


def test_balanced_draws_have_every_class_equally_often_and_reach_every_row():
    drawn = BalancedRows(rows(), 4).draw(4000, torch.Generator().manual_seed(0))
    assert drawn[:, -1].long().bincount().tolist() == [1000] * 4
    torch.testing.assert_close(drawn[:, -1], (drawn[:, 0] % 7).clamp(max=3))
    assert len(drawn[:, 0].unique()) == 40


def test_bytes_become_numbers():
    labelled = LabelledRows(Rows(np.full((4, 2), 200, np.uint8)), np.array([0, 300, 1, 2]))
    assert labelled.take(torch.tensor([1])).tolist() == [[200.0, 200.0, 300.0]]
