"""Readouts of PyTorch Geometric in the graph network: one run or many, and the command."""

import pytest
import torch

from fspool.checks import UserError
from fspool.data import tu
from fspool.data.graph_batches import Shelf
from fspool.experiments import EXPERIMENTS, graphs
from fspool.experiments.graph_tables import OTHERS
from fspool.lab.replicas import select, stack
from fspool.models.gin import GIN
from fspool.models.readout import PYG, make_readout, outputs_of, read_out

from .made_graphs import as_graphs, drawn, write_tu

pytest.importorskip("torch_geometric")
pytestmark = pytest.mark.usefixtures("one_thread")
SHELF = Shelf.of(as_graphs(drawn(8, 1)))
ROWS = [[0, 1, 2, 3], [4, 4, 5, -1], [7, -1, -1, -1]]
EXPERIMENT = EXPERIMENTS["graphs"]


def batch_of(*rows):
    numbers = torch.tensor(rows)
    return SHELF.take(numbers, SHELF.room(numbers))


@pytest.mark.parametrize("pool", PYG)
def test_a_replica_is_the_single_run(pool):
    singles = []
    for seed in range(3):
        torch.manual_seed(seed)
        singles.append(GIN(4, 6, 3, pool=pool, blocks=2).double())
    together, batch, there = stack(singles), batch_of(*ROWS), torch.tensor(ROWS) >= 0
    y = together(*batch[:4])
    assert y[there].isfinite().all()
    y[there].square().sum().backward()
    for run, (single, row) in enumerate(zip(singles, ROWS, strict=True)):
        own = single(*batch_of(row)[:4])
        torch.testing.assert_close(own[0, there[run]], y[run, there[run]])
        own[0, there[run]].square().sum().backward()
        assert len(list(select(together, slice(run, run + 1)).parameters())) > 0
        for (name, mine), other in zip(
            single.named_parameters(), together.parameters(), strict=True
        ):
            torch.testing.assert_close(
                mine.grad, other.grad[run], msg=lambda m, n=name: f"{n}: {m}"
            )


def test_the_vectors_are_those_of_the_nodes():
    x, offsets = torch.randn(1, 9, 5), torch.tensor([[0, 4, 7, 7]])
    parts = x[0, :4], x[0, 4:7]
    for name, expected in {
        "max": lambda nodes: nodes.amax(0),
        "median": lambda nodes: nodes.median(0).values,
        "quantile": lambda nodes: nodes.quantile(torch.tensor([0.25, 0.5, 0.75]), 0).T.flatten(),
        "sort": lambda nodes: nodes[nodes[:, -1].argsort(descending=True)].flatten(),
    }.items():
        pool = make_readout(name, 5, 5)
        y = read_out(pool, x, offsets)
        assert y.shape == (1, 3, outputs_of(pool, 5)) and (y[0, 2] == 0).all()
        for row, nodes in zip(y[0], parts, strict=False):
            own = expected(nodes)
            found = row[: len(own)]
            same = torch.allclose(found.sort().values, own.sort().values, atol=1e-6)
            assert same if name == "quantile" else torch.equal(found, own), name


def test_every_readout_has_a_row_and_a_grid():
    assert set(OTHERS.values()) == set(PYG)
    cells = EXPERIMENT.preset("quick", ["MUTAG"], ["fspool", "sort"])
    assert list(cells) == ["fspool-MUTAG-d16-b128-p0.5", "sort-MUTAG-d16-b128-p0.5"]
    cells = EXPERIMENT.preset("paper", ["IMDB-BINARY"], ["max"])
    assert len(cells) == 4 and {cell.readout for cell in cells.values()} == {"max"}
    assert not any(cell.recordable for cell in cells.values())
    released = graphs.read_by("released", "max")["max-COLLAB-d64-b32-p0"]
    assert released.wide_eps and released.reshuffle


def test_what_cannot_be_chosen():
    with pytest.raises(UserError, match="readout is 'sord'; expected one of .*, perhaps 'sort'"):
        EXPERIMENT.preset("quick", ["MUTAG"], ["sord"])
    with pytest.raises(UserError, match="polygons has no readouts to choose from"):
        EXPERIMENTS["polygons"].preset("quick", [], ["sort"])


def test_the_command(monkeypatch, tmp_path, capsys):
    from fspool.cli import main

    made = write_tu(tmp_path / "data", "MUTAG", drawn(47, 3))
    monkeypatch.setitem(tu.SOURCES, "MUTAG", made)
    monkeypatch.setenv("COLUMNS", "160")
    options = f"--data {tmp_path / 'data'} --out {tmp_path / 'out'} --set epochs=2 --workers 1"
    options += " --dataset MUTAG --readout sort --readout deep-sets --no-page --device cpu"
    monkeypatch.setattr("sys.argv", ["fspool", "run", "graphs", *options.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr().out
    assert not ended.value.code and "Other readouts" in printed
    assert "SortPool (k = 10)" in printed and "Deep Sets" in printed and "median" not in printed
