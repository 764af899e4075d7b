"""Draws are uniform or weighted, and never touch rows that are held out."""

import numpy as np
import pytest
import torch
from scipy import stats

from torchspot.data import as_sampler, held_out_rows
from torchspot.data.arrays import Rows
from torchspot.random import Key, generator


def numbered(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float64)[:, None]


def test_draws_are_uniform_also_without_some_rows():
    rows = Rows(numbered(50)).excluding(np.array([0, 3, 4, 48, 49]))
    counts = np.bincount(rows.draw(90_000, generator(Key(1, "a"))).long().flatten(), minlength=50)
    assert counts[[0, 3, 4, 48, 49]].sum() == 0
    assert stats.chisquare(np.delete(counts, [0, 3, 4, 48, 49])).pvalue > 1e-3


def test_weighted_draws_have_the_weights_also_without_some_rows():
    weights = np.linspace(0, 1, 20)
    rows = as_sampler(numbered(20), weights=weights).excluding(np.array([19, 5]))
    counts = np.bincount(rows.draw(50_000, generator(Key(1, "a"))).long().flatten(), minlength=20)
    expected = weights.copy()
    expected[[5, 19]] = 0
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    assert stats.chisquare(counts[kept], expected[kept] / expected.sum() * 50_000).pvalue > 1e-3


def test_tiny_weights_beside_large_ones_are_not_lost():
    weights = np.full(100_000, 1e-4)
    weights[0] = 1e4
    rows = as_sampler(numbered(100_000), weights=weights)
    drawn = rows.draw(200_000, generator(Key(0, "a"))).flatten()
    share = float((drawn > 0).double().mean())
    assert share == pytest.approx(10 / (1e4 + 10), rel=0.3)


@pytest.mark.parametrize(("n", "count"), [(50, 0), (99, 0), (100, 10), (5000, 500), (1_000_000, 20_000)])
def test_how_many_rows_are_held_out(n, count):
    held_out = held_out_rows(Rows(numbered(n)), 0, "0")
    assert len(np.unique(held_out.rows)) == len(held_out.rows) == count
    assert held_out.rows.max(initial=0) < n


def test_held_out_rows_depend_on_the_seed_and_spread_over_the_data():
    rows = Rows(numbered(10_000))
    first, again, other = (held_out_rows(rows, seed, "0").rows for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert stats.kstest(first / 10_000, "uniform").pvalue > 1e-3


def test_fingerprints_tell_data_apart():
    base = Rows(numbered(3000)).fingerprint()
    changed = numbered(3000)
    changed[-1] += 1
    assert Rows(changed).fingerprint() != base
    assert Rows(numbered(3001)).fingerprint() != base
    assert Rows(torch.from_numpy(numbered(3000))).fingerprint() == base


def test_judges_are_the_held_out_rows():
    rows = Rows(numbered(1000))
    held_out = held_out_rows(rows, 0, "0").rows
    judges = rows.judges(held_out, 50, generator(Key(0, "j")))
    assert set(judges.flatten().tolist()) <= set(held_out.tolist())
    assert len(judges.unique()) == 50
    everything = rows.judges(np.empty(0, dtype=np.int64), 5000, generator(Key(0, "j")))
    assert len(everything.unique()) == 1000


def test_few_rows_are_judged_as_a_law():
    judges = Rows(numbered(3)).judges(np.empty(0, dtype=np.int64), 3000, generator(Key(0, "j")))
    assert np.bincount(judges.long().flatten()).min() > 900


def test_some_rows_are_judged_by_those_held_out_alone():
    rows = Rows(numbered(500))
    held_out = held_out_rows(rows, 0, "0").rows
    judges = rows.judges(held_out, 2048, generator(Key(0, "j")))
    assert sorted(judges.flatten().long().tolist()) == held_out.tolist()


def test_rows_held_out_have_weight_and_leave_some():
    for counting in (np.arange(200) < 150, np.arange(200) < 50, np.arange(200) == 7):
        rows = as_sampler(numbered(200), weights=counting.astype(float))
        held_out = held_out_rows(rows, 0, "0").rows
        assert counting[held_out].all()
        drawn = rows.excluding(held_out).draw(500, generator(Key(0, "d"))).long().flatten().numpy()
        assert counting[drawn].all()
        assert not set(drawn) & set(held_out)
        assert len(rows.judges(held_out, 100, generator(Key(0, "j")))) == 100


def test_weighted_judges_have_the_weights():
    weights = np.concatenate([np.zeros(500), np.ones(500)])
    rows = as_sampler(numbered(1000), weights=weights)
    judges = rows.judges(np.arange(1000), 2000, generator(Key(0, "j")))
    assert judges.min() >= 500


def test_chosen_rows_come_once_each_in_random_order():
    rows = Rows(np.arange(50_000.0)[:, None])
    for most in (100, 40_000, 60_000):
        drawn = rows.chosen(np.empty(0, dtype=np.int64), most, torch.Generator().manual_seed(0))[:, 0]
        assert len(drawn) == len(drawn.unique()) == min(most, 50_000)
        assert float(drawn.mean()) == pytest.approx(25_000, rel=0.2)
        assert not bool((drawn.diff() > 0).all())
    some = rows.chosen(np.array([3, 5, 8]), 2, torch.Generator().manual_seed(0))[:, 0]
    assert set(some.tolist()) < {3.0, 5.0, 8.0}


def test_chosen_rows_follow_their_weights():
    weights = np.array([0.0, 1.0, 3.0])
    drawn = Rows(np.arange(3.0)[:, None], weights=weights).chosen(
        np.empty(0, dtype=np.int64), 4000, torch.Generator().manual_seed(0)
    )
    assert torch.bincount(drawn[:, 0].long()).double().tolist() == pytest.approx([0, 1000, 3000], abs=150)
