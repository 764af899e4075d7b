"""Mini-batch regression: right where batches are enough, and shrunk where they are not."""

import numpy as np
import pytest
import torch

from torchspot.baselines import MinibatchRegression
from torchspot.errors import InvalidArgument, NotFitted
from torchspot_paper.maps import unexplained_by
from torchspot_paper.problems import map_problems


def fitted(dim, batch_size):
    problem = map_problems(dim)["linear"]
    learned = MinibatchRegression(width=32, steps=400, batch_size=batch_size).fit(*problem.sample(5000, 0))
    x, y = problem.pairs(5000, 5)
    moved = learned.transform(x)
    return unexplained_by(torch.from_numpy(moved), torch.from_numpy(y)), float(moved.var(0).sum() / y.var(0).sum())


def test_it_learns_a_linear_map_and_more_of_it_from_larger_batches():
    (small, shrunk), (large, full) = fitted(4, 8), fitted(4, 128)
    assert large < 0.05 < small
    assert shrunk < full - 0.1


def test_data_far_from_the_origin_keeps_its_digits():
    x = np.random.default_rng(0).normal(size=(500, 2)) + 1e7
    moved = MinibatchRegression(width=8, steps=5, batch_size=16).fit(x, x).transform(x)
    assert np.abs(moved - np.round(moved)).max() > 0.3


def test_errors_name_the_fix():
    x = np.zeros((20, 2))
    with pytest.raises(InvalidArgument, match="steps must be at least 1"):
        MinibatchRegression(steps=0).fit(x, x)
    with pytest.raises(NotFitted, match="fit"):
        MinibatchRegression().transform(x)
    with pytest.raises(InvalidArgument, match=r"shapes \(2,\) and \(3,\)"):
        MinibatchRegression().fit(x, np.zeros((20, 3)))
