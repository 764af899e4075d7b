"""Labels of all kinds, and rows that keep theirs."""

import numpy as np
import pandas as pd
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
    np.testing.assert_allclose(found.shares(), [1 / 3, 2 / 3])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "ys is missing: give one label for each of the 3"),
        ([1, 2], "there are 3 source rows and 2 labels"),
        ([1, 1, 1], "single class"),
        ([1.0, np.nan, 2.0], "label of row 1 is missing"),
        (np.array(["a", None, "b"], object), "label of row 1 is missing"),
        (np.array(["a", 1, "b"], object), "mixes labels of kinds numbers, text"),
        ([0.5, 1.25, 2.5], "classes are needed"),
        (np.zeros((3, 2)), "one label a row"),
        ([1, "a", 2], "mixes labels of kinds numbers, text"),
        ([1.0, np.inf, 2.0], "classes are needed"),
        (pd.Series(["a", pd.NA, "b"]), "label of row 1 is missing"),
        (np.array(["2020-01-01", "2020-01-02", "NaT"], "M8[D]"), "label of row 2 is missing"),
        (np.array(["2020-01-01", "2020-01-02", "2020-01-02"], "M8[D]"), "Give whole numbers, text or booleans"),
        (np.array([b"a", b"b", b"b"]), "Give whole numbers, text or booleans"),
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


@pytest.mark.parametrize("classes", [3, 30])
def test_small_batches_are_balanced_over_many_draws(classes):
    rng = torch.Generator().manual_seed(0)
    many = LabelledRows(Rows(np.arange(90.0)[:, None]), np.arange(90) % classes)
    balanced = BalancedRows(many, classes)
    drawn = torch.cat([balanced.draw(16, rng)[:, -1] for _ in range(3000)]).long().bincount(minlength=classes)
    np.testing.assert_allclose(drawn / drawn.sum(), 1 / classes, rtol=0.1)


def test_balanced_draws_keep_weights_within_a_class():
    weights = np.array([0.0, 3.0, 1.0, 0.0, 2.0, 0.0, 0.0, 5.0])
    labelled = LabelledRows(Rows(np.arange(8.0)[:, None], weights=weights), np.array([0, 0, 0, 1, 1, 2, 2, 3]))
    drawn = BalancedRows(labelled, 4).draw(30_000, torch.Generator().manual_seed(0))
    shares = drawn[:, 0].long().bincount(minlength=8).double() / len(drawn)
    expected = torch.tensor([0, 0.75, 0.25, 0, 1, 0, 0, 1], dtype=torch.float64) / 3  # class 2 has no weight at all
    torch.testing.assert_close(shares, expected, atol=0.01, rtol=0)
    assert (shares[expected == 0] == 0).all()


def test_bytes_become_numbers():
    labelled = LabelledRows(Rows(np.full((4, 2), 200, np.uint8)), np.array([0, 300, 1, 2]))
    assert labelled.take(torch.tensor([1])).tolist() == [[200.0, 200.0, 300.0]]


def test_large_whole_numbers_and_short_floats_keep_their_values():
    stamps = np.array([[1_700_000_000], [1_700_000_001]])
    assert LabelledRows(Rows(stamps), np.array([0, 1])).take(torch.tensor([1])).tolist() == [[1_700_000_001.0, 1.0]]
    short = Rows(torch.zeros(3000, 1, dtype=torch.bfloat16))
    assert LabelledRows(short, np.arange(3000)).take(torch.tensor([2999]))[0, 1] == 2999


def test_weights_of_rows_count():
    rows_of_two = Rows(np.arange(4.0)[:, None], weights=np.array([1.0, 1.0, 0.0, 2.0]))
    codes = np.array([0, 0, 1, 1])
    drawn = LabelledRows(rows_of_two, codes).draw(4000, torch.Generator().manual_seed(0))
    assert 2.0 not in drawn[:, 0]
    assert abs(float(drawn[:, 1].mean()) - 0.5) < 0.04
    np.testing.assert_allclose(as_labels(codes, 4).shares(rows_of_two), [0.5, 0.5])
