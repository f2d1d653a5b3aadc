"""Settings and epoch chosen by validation: what a slow version in fractions chooses."""

from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fspool.experiments import graph_selection
from fspool.experiments.experiment import Combined, published
from fspool.experiments.folds import sizes
from fspool.experiments.graph_selection import by_repeat, choices, chosen, grids, whole
from fspool.experiments.graph_tables import BASES, BIO, CODE, PAPER, SOCIAL
from fspool.report.compact import _packed, _unpacked

GRAPHS = {"MUTAG": 188, "PTC": 344, "NCI1": 4110}
EPOCHS = 3


def settings(dataset="MUTAG", width=16, batch=32, dropout=0.0, reshuffle=False):
    return {
        "dataset": dataset,
        "width": width,
        "batch": batch,
        "dropout": dropout,
        "reshuffle": reshuffle,
    }


def point(counts, seeds, model="fspool", **changes):
    """A grid point; counts (runs, epochs) for validation and test."""
    own = settings(**changes)
    name = f"{model}-{own['dataset']}-d{own['width']}-b{own['batch']}-p{own['dropout']:g}"
    tallies = by_repeat(own, seeds, dict(zip(("validation", "test"), counts, strict=True)))
    return SimpleNamespace(name=name, settings=own, tallies=tallies)


def random_counts(seed, runs, top=19):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, top, (2, runs, EPOCHS), generator=generator, dtype=torch.int32)


def averages(counts, name, dataset, reshuffle=False):
    """Exactly, (repeats, epochs)."""
    folds = sizes(GRAPHS[dataset], reshuffle=reshuffle)[name]
    return [
        [
            sum(Fraction(int(counts[10 * r + f, epoch]), folds[f]) for f in range(10)) / 10
            for epoch in range(EPOCHS)
        ]
        for r in range(len(counts) // 10)
    ]


@pytest.mark.parametrize("dataset", GRAPHS)
@pytest.mark.parametrize("reshuffle", [False, True])
def test_averages_over_folds_are_exact(dataset, reshuffle):
    counts = random_counts(0, 20)
    own = settings(dataset, reshuffle=reshuffle)
    found = by_repeat(own, range(20), {"validation": counts[0], "test": counts[1]})
    assert found["repeat"].tolist() == [0, 1]
    for name, part in zip(("validation", "test"), counts, strict=True):
        unit = whole(own, name)
        exact = [[Fraction(int(n), unit) for n in row] for row in found[name]]
        assert exact == averages(part, name, dataset, reshuffle)


def test_all_right_is_1():
    for name, folds in sizes(188).items():
        counts = torch.tensor(folds).view(10, 1).int()
        found = by_repeat(settings(), range(10), {name: counts})
        assert found[name].tolist() == [[whole(settings(), name)]]


def test_repeats_that_lack_a_fold_are_left_out():
    seeds = [*range(10, 20), *range(30, 37), 5]
    counts = random_counts(1, len(seeds))
    found = point(counts, seeds).tallies
    assert found["repeat"].tolist() == [1]
    expected = point(counts[:, :10], range(10)).tallies
    assert torch.equal(found["test"], expected["test"])
    none = point(counts[:, :3], range(3)).tallies
    assert none["repeat"].tolist() == [] and none["test"].shape == (0, EPOCHS)


def test_the_order_of_seeds_does_not_matter():
    counts, order = random_counts(2, 10), torch.randperm(10)
    mixed = point(counts[:, order], order.tolist()).tallies
    assert torch.equal(mixed["validation"], point(counts, range(10)).tallies["validation"])


# --------------------------------------------------------------------------------------------------
# Choosing

GRID = [
    {"width": width, "batch": batch, "dropout": dropout}
    for width in (16, 32)
    for batch in (32, 128)
    for dropout in (0.0, 0.5)
]


def slowly(counts, repeat):
    """The first of the best, in the order of the grid; counts by grid point."""
    best = None
    for place, own in enumerate(counts):
        validation = averages(own[0], "validation", "MUTAG")[repeat]
        test = averages(own[1], "test", "MUTAG")[repeat]
        for epoch in range(EPOCHS):
            if best is None or validation[epoch] > best[0]:
                best = validation[epoch], place, epoch, test[epoch]
    top = max(max(averages(own[1], "test", "MUTAG")[repeat]) for own in counts)
    return *best[1:], top


@given(st.integers(0, 1000), st.sampled_from([2, 19]))
def test_what_is_chosen_is_what_a_slow_version_chooses(seed, top):
    """With few different counts there are many that are equally good."""
    counts = [random_counts(seed + i, 20, top) for i in range(len(GRID))]
    points = [point(own, range(20), **place) for own, place in zip(counts, GRID, strict=True)]
    shuffled = [points[i] for i in torch.randperm(len(points)).tolist()]
    ((key, ordered),) = grids(shuffled).items()
    assert key == ("fspool", "MUTAG") and ordered == points
    metrics = chosen(shuffled)["fspool MUTAG"].metrics
    for repeat, choice in enumerate(choices(ordered)):
        place, epoch, accuracy, best = slowly(counts, repeat)
        assert (choice.repeat, choice.point, choice.epoch) == (repeat, place, epoch)
        assert choice.accuracy == float(accuracy) and choice.best == float(best)
        assert metrics["accuracy"][repeat] == float(accuracy)
        assert metrics["epoch"][repeat] == epoch and metrics["best"][repeat] == float(best)
        assert {key: metrics[key][repeat] for key in GRID[0]} == GRID[place]


def test_of_equals_the_first():
    same = torch.full((2, 10, EPOCHS), 7, dtype=torch.int32)
    later = same.clone()
    later[0, :, 2] += 1
    assert choices([point(same, range(10)), point(same, range(10))])[0][:3] == (0, 0, 0)
    assert choices([point(same, range(10)), point(later, range(10))])[0][:3] == (0, 1, 2)


def test_repeats_that_a_grid_point_lacks_are_not_chosen_from():
    whole_grid = [point(random_counts(i, 20), range(20), **GRID[i]) for i in range(2)]
    part = point(random_counts(5, 10), range(10, 20), **GRID[2])
    assert [choice.repeat for choice in choices(whole_grid)] == [0, 1]
    assert [choice.repeat for choice in choices([*whole_grid, part])] == [1]
    short = point(random_counts(5, 3), range(3), **GRID[2])
    assert chosen([*whole_grid, short]) == {}


@pytest.mark.parametrize("width", [16, 32])
def test_a_choice_among_few_is_known_as_such(width):
    """It is none that the paper's numbers can judge."""
    all_of_them = [
        point(random_counts(0, 10), range(10), width=w, batch=b, dropout=p)
        for w in (16, 32)
        for b in (32, 128)
        for p in (0.0, 0.5)
    ]
    few = [each for each in all_of_them if each.settings["width"] == width]
    for points, is_whole in ((all_of_them, 1), (few, 0), (few[:1], 0), (all_of_them[1:], 0)):
        assert chosen(points)["fspool MUTAG"].metrics["whole"] == [is_whole]
    social = [
        point(random_counts(0, 10), range(10), dataset="IMDB-BINARY", width=64, batch=b, dropout=p)
        for b in (32, 100)
        for p in (0.0, 0.5)
    ]
    metrics = chosen(social)["fspool IMDB-BINARY"].metrics
    assert metrics["whole"] == [1]
    undropped = chosen([each for each in social if not each.settings["dropout"]])
    assert metrics[CODE] == undropped["fspool IMDB-BINARY"].metrics["accuracy"]
    assert CODE not in chosen([each for each in social if each.settings["dropout"]])


def test_models_are_told_apart():
    counts = random_counts(0, 10)
    points = [
        point(counts, range(10), model=model, dataset=dataset)
        for model in ("fspool", "fspool-k20", "sum")
        for dataset in ("MUTAG", "PTC")
    ]
    assert {" ".join(key) for key in grids(points)} == {
        f"{model} {dataset}"
        for model in ("fspool", "fspool-k20", "sum")
        for dataset in ("MUTAG", "PTC")
    }


# --------------------------------------------------------------------------------------------------
# Over data sets


def metrics_of(name, table, label, values):
    kind = "bio" if name in BIO else "social"
    column = (SOCIAL | BIO)[name]
    return {values: [published(f"graphs.{kind}.{table}")[label][column].value]}


def test_signed_ranks_of_the_published_numbers():
    found = {}
    for name in PAPER:
        for model, label in (("fspool", "GIN-FSPool"), (BASES[name], "GIN-Base")):
            accuracy = metrics_of(name, "accuracy", label, "accuracy")
            epochs = metrics_of(name, "epochs", label, "epoch")
            found[f"{model} {name}"] = Combined(accuracy | epochs, [name])
    tests = graph_selection._over_datasets(found)
    assert tests["epoch over data sets"].cells == [name for name in PAPER for _ in range(2)]
    epochs = tests["epoch over data sets"].metrics
    assert epochs["data sets"] == [9] and epochs["better"] == [6] and epochs["W"] == [9]
    assert epochs["p"] == [pytest.approx(0.11, abs=0.05)]
    accuracy = tests["accuracy over data sets"].metrics
    # The paper has W = 7: with +0.6 and -0.6, which are no tie in binary numbers.
    assert accuracy["better"] == [6] and accuracy["W"] == [6.5]
    assert accuracy["p"] == [pytest.approx(0.07, abs=0.015)]


def test_only_pairs_count_and_ptc_once():
    same = Combined({"accuracy": [0.5], "epoch": [3]}, [])
    better = Combined({"accuracy": [0.6], "epoch": [3]}, [])
    names = ("MUTAG", "PTC", "PROTEINS", "IMDB-BINARY", "IMDB-MULTI", "COLLAB")
    found = {f"fspool {name}": better for name in names}
    found |= {f"{BASES[name]} {name}": same for name in names}
    found |= {"fspool PTC_MR": better, "sum PTC_MR": same, "fspool NCI1": better, "mean NCI1": same}
    tests = graph_selection._over_datasets(found)
    assert tests["accuracy over data sets"].metrics["data sets"] == [6]
    assert tests["accuracy over data sets"].metrics["p"] == [pytest.approx(2 / 2**6)]
    assert "epoch over data sets" not in tests  # nothing differs, so there is nothing to test
    del found["sum MUTAG"]
    assert graph_selection._over_datasets(found) == {}


def test_compact_counts_come_back():
    counts = random_counts(0, 20, top=4000)[0]
    packed = _packed(counts)
    assert torch.equal(_unpacked(packed), counts) and _unpacked(packed).dtype == torch.int32
    none = _packed(torch.zeros(0, EPOCHS, dtype=torch.int32))
    assert _unpacked(none).shape == (0, EPOCHS)
    with pytest.raises(ValueError, match="counts that can be unpacked"):
        _unpacked(packed | {"zlib": packed["zlib"][8:]})
