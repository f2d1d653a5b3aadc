"""Cross-validation: true partitions, the same for everybody."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fspool.experiments import folds
from fspool.experiments.folds import most_training, sizes, splits

counts = st.integers(20, 400)
ways = pytest.mark.parametrize("reshuffle", [False, True])


def numbers(row):
    assert (row >= 0).int().diff().max() <= 0  # what is missing comes last
    return row[row >= 0].tolist()


@ways
@given(counts, st.integers(0, 99))
def test_a_run_uses_every_graph_once(reshuffle, count, run):
    parts = [numbers(part[0]) for part in splits(count, [run], reshuffle=reshuffle)]
    assert sorted(sum(parts, [])) == list(range(count))
    known = sizes(count, reshuffle=reshuffle)
    assert [len(parts[1]), len(parts[2])] == [
        known["validation"][run % 10],
        known["test"][run % 10],
    ]
    assert len(parts[0]) <= most_training(count, reshuffle=reshuffle)


@given(counts, st.integers(0, 9))
def test_the_tests_of_a_repeat_are_a_partition_and_so_are_its_validations(count, repeat):
    found = splits(count, range(10 * repeat, 10 * repeat + 10))
    for part in (found.test, found.validation):
        assert sorted(number for row in part for number in numbers(row)) == list(range(count))
        lengths = [len(numbers(row)) for row in part]
        assert max(lengths) - min(lengths) <= 1
    assert torch.equal(found.validation, found.test.roll(-1, 0))  # the next fold


def test_reshuffled_tests_overlap():
    found = splits(200, range(10), reshuffle=True)
    seen = found.test.flatten()
    assert len(seen.unique()) < 150 < len(seen) == 200
    assert all(len(numbers(row)) == 20 for row in found.validation)


@ways
def test_the_training_of_some_run_has_the_most(reshuffle):
    for count in (188, 344, 1113, 4999):
        longest = splits(count, range(10), reshuffle=reshuffle).train.shape[1]
        assert longest == most_training(count, reshuffle=reshuffle)


@ways
def test_repeats_differ_and_runs_do_not_depend_on_their_company(reshuffle):
    together = splits(50, range(100), reshuffle=reshuffle)
    alone = splits(50, [37], reshuffle=reshuffle)
    for all_runs, own in zip(together, alone, strict=True):
        assert torch.equal(all_runs[37:38], own)
    assert len({tuple(row.tolist()) for row in together.test}) == 100


def test_the_folds_are_what_they_always_were():
    """Otherwise runs from before and after a change would not belong together."""
    assert folds.cuts(188) == [0, 18, 37, 56, 75, 94, 112, 131, 150, 169, 188]
    assert splits(23, [0]).test.tolist() == [[1, 15, -1]]
    assert splits(23, [0]).train[0, :4].tolist() == [21, 2, 8, 19]
    assert splits(23, [14], reshuffle=True).test.tolist() == [[4, 17, -1]]
