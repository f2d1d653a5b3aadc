"""What the benchmarks compare is one function, and their numbers survive the way to the README.

No test here looks at a time.
"""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from benchmarks import __main__ as runner
from benchmarks import accuracy, baselines, memory, pool, relaxed_sort, results
from benchmarks.case import Variant
from fspool.sets import to_packed

TINY = [
    pool.full((3, 4, 7)),
    pool.full((2, 3, 1)),
    pool.mixed((6, 4, 9)),
    relaxed_sort.full((2, 3, 11), checked=2),
    relaxed_sort.full((2, 3, 11), dense=False),
]
COMPARED = [
    pytest.param(case, variant, id=f"{case.title} {variant.name} {variant.layout}")
    for case in TINY
    for variant in case.variants
    if variant.name != "sum"
]


@pytest.mark.parametrize(("case", "variant"), COMPARED)
def test_every_variant_computes_the_reference(case, variant):
    exact = replace(case, make=lambda *args: case.make(*args).map(torch.Tensor.double))
    errors = accuracy.errors(exact, variant)
    assert errors.values < 1e-12, f"values: {errors.values}"
    assert errors.gradients < 1e-12, f"gradients: {errors.gradients}"


def test_sum_pool_is_a_loop_over_sets_in_every_layout():
    x, sizes = torch.randn(3, 5, 2, dtype=torch.float64), torch.tensor([0, 5, 2])
    packed, offsets = to_packed(x, sizes=sizes)
    expected = torch.stack([s[:n].sum(0) for s, n in zip(x, sizes, strict=True)])
    assert_close(baselines.sum_pool(x, sizes=sizes), expected)
    assert_close(baselines.sum_pool(packed, offsets=offsets), expected)
    assert_close(baselines.sum_pool(x), x.sum(1))


def test_sizes_are_log_uniform():
    sizes = pool.log_uniform(20_000, 99, torch.Generator().manual_seed(0))
    assert (int(sizes.min()), int(sizes.max())) == (1, 99)
    assert abs((sizes < 10).double().mean() - 0.5) < 0.02  # log 10 is half of log 100


def test_padded_and_packed_draws_hold_the_same_sets():
    case = pool.mixed((6, 4, 9))
    padded, packed = case.draw("padded", 5), case.draw("packed", 5)
    rows, offsets = to_packed(padded.leaves["x"], sizes=padded.sets["sizes"])
    assert torch.equal(rows, packed.leaves["x"])
    assert torch.equal(offsets, packed.sets["offsets"])
    assert not torch.equal(padded.leaves["x"], case.draw("padded", 6).leaves["x"])


def test_relative_error_is_of_the_largest_entry():
    assert accuracy.relative_error(torch.tensor([1.0, -8.5]), torch.tensor([1.5, -8.0])) == 1 / 16


def test_a_wrong_package_is_not_timed():
    case = pool.full((3, 4, 7))

    def wrong(x, weight, sizes):
        return (pool.package(x, weight, sizes=sizes)[0] * 1.001,)

    accuracy.check(case)
    with pytest.raises(SystemExit, match="relative error 1.0e-03 of values"):
        accuracy.check(replace(case, variants=(Variant("fspool", wrong),)))


def test_peak_memory_sees_the_matrices_and_only_in_the_dense_form():
    case = relaxed_sort.full((2, 8, 800))
    package, dense, _ = case.variants
    matrices = 2 * 8 * 800 * 800 * 4
    assert memory.peak(case, dense) > 2 * matrices  # P and at least one more for its gradient
    assert memory.peak(case, package) < matrices / 2


@pytest.fixture
def tiny_runs(monkeypatch, tmp_path):
    """The runner on tiny shapes, in a folder of its own."""
    monkeypatch.setattr(runner, "HERE", tmp_path)
    monkeypatch.setattr(memory, "peak", lambda case, variant, device: len(variant.name) * 10**6)
    monkeypatch.setattr(runner, "ROUNDS", 1)
    cases = {"pool": TINY[:1] + TINY[2:3], "relaxed_sort": TINY[3:]}
    made = {name: lambda found=found: found for name, found in cases.items()}
    monkeypatch.setattr(runner, "BENCHMARKS", made)
    return tmp_path / "results" / "cpu.csv"


def test_results_reach_the_readme_and_stay_the_same(tiny_runs, tmp_path):
    runner.main([])
    rows = results.read(tiny_runs)
    assert len(rows) == sum(len(case.variants) for case in (*TINY[:1], *TINY[2:]))
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- bench:cpu -->\nold\n<!-- /bench:cpu -->\nafter\n")
    runner.main(["--readme", str(readme)])
    once = readme.read_text()
    assert once.startswith("before\n<!-- bench:cpu -->\n| operator")
    assert once.endswith("<!-- /bench:cpu -->\nafter\n") and "old" not in once
    lines = [line for line in once.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 + sum(row["variant"] == "fspool" for row in rows)
    first = rows[0]
    assert f"**{results.short(first['speedup_over_plain'])}x faster**" in lines[2]
    runner.main(["--readme", str(readme)])
    assert readme.read_text() == once


def test_choosing_a_benchmark_keeps_the_rows_of_the_others(tiny_runs):
    runner.main([])
    before = results.read(tiny_runs)
    runner.main(["relaxed_sort"])
    after = results.read(tiny_runs)
    hard = [row for row in before if row["benchmark"] == "pool"]
    assert [row for row in after if row["benchmark"] == "pool"] == hard
    assert len(after) == len(before)
    assert not list(tiny_runs.parent.glob("*.part"))


def test_ratios_are_of_the_plain_form_and_of_the_sum_of_the_same_layout():
    case = pool.mixed((6, 4, 9))
    times = (2.0, 4.0, 8.0, 1.0, 16.0)  # fspool packed, padded, plain padded, sum packed, padded
    rows = results.rows(case, dict(zip(case.variants, times, strict=True)), {}, {})
    assert [row["speedup_over_plain"] for row in rows] == ["4", "2", "1", "", ""]
    assert [row["times_sum"] for row in rows] == ["2", "0.25", "0.5", "1", "1"]


def test_bad_arguments_are_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        runner.main(["sorting"])
    assert "no benchmark sorting; expected some of pool, relaxed_sort" in capsys.readouterr().err
    readme = tmp_path / "README.md"
    readme.write_text("no block")
    with pytest.raises(SystemExit, match="README.md has no block <!-- bench:cpu -->"):
        results.fill(readme, [], "bench:cpu")
