"""What the benchmarks compare is one function, and their numbers survive the way to the README.

No test here looks at a time.
"""

import json
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from benchmarks import __main__ as runner
from benchmarks import (
    accuracy,
    baselines,
    chamfer,
    clevr,
    cold,
    machine,
    memory,
    page,
    plot,
    pool,
    relaxed_sort,
    results,
    sweep,
    tables,
)
from benchmarks.case import Variant
from fspool.data import tu
from fspool.sets import to_packed

from .made_graphs import drawn, write_tu

TINY = [
    pool.full((3, 4, 7)),
    pool.full((2, 3, 1)),
    pool.mixed((6, 4, 9)),
    relaxed_sort.full((2, 3, 11), checked=2),
    relaxed_sort.full((2, 3, 11), dense=False),
    relaxed_sort.mixed((3, 3, 11)),
    chamfer.full((2, 3, 7)),
]
SPEED = ("faster", "slower", "as fast")
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


def test_what_the_compiler_cannot_do_is_left_out(capsys):
    def fails(x, weight, sizes):
        raise RuntimeError("no backend")

    package, compiled = Variant("fspool", pool.package), Variant("compiled", fails)
    found = accuracy.check(replace(pool.full((3, 4, 7)), variants=(package, compiled)))
    assert list(found) == [package]
    assert "compiled, full: RuntimeError: no backend" in capsys.readouterr().out
    with pytest.raises(RuntimeError, match="no backend"):
        accuracy.check(replace(pool.full((3, 4, 7)), variants=(Variant("plain", fails),)))


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
    cases = {"pool": TINY[:1] + TINY[2:3], "relaxed_sort": TINY[3:6], "chamfer": TINY[6:]}
    made = {name: lambda device, found=found: found for name, found in cases.items()}
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
    assert f"**{tables.compared(float(rows[0]['speedup_over_plain']), *SPEED)}**" in lines[2]
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


def test_a_case_that_fails_does_not_stop_the_others_and_leaves_no_rows(tiny_runs, monkeypatch):
    runner.main([])

    def fails(*_):
        raise RuntimeError("out of memory")

    good, bad = runner.BENCHMARKS["pool"]("cpu")
    bad = replace(bad, variants=(Variant("fspool", fails, "padded"),))
    monkeypatch.setitem(runner.BENCHMARKS, "pool", lambda device: [bad, good])
    with pytest.raises(SystemExit, match=r"failed: pool \(B, D, N\) = \(6, 4, 9\), padded"):
        runner.main(["pool"])
    left = [row for row in results.read(tiny_runs) if row["benchmark"] == "pool"]
    assert {row["layout"] for row in left} == {"full"}


def test_a_killed_run_keeps_what_it_has(tiny_runs, monkeypatch):
    runner.main([])
    before = results.read(tiny_runs)
    run = runner.run
    killed = iter([False, True])

    def killable(*arguments):
        if next(killed):
            raise KeyboardInterrupt
        return [row | {"date": "today"} for row in run(*arguments)]

    monkeypatch.setattr(runner, "run", killable)
    with pytest.raises(KeyboardInterrupt):
        runner.main(["pool"])
    after = results.read(tiny_runs)
    new = [row for row in after if row["date"] == "today"]
    assert {row["layout"] for row in new} == {"full"}
    cases = [[results.case_of(row) for row in rows] for rows in (before, after)]
    assert sorted(cases[0]) == sorted(cases[1])


def test_ratios_are_of_the_plain_form_and_of_the_sum_of_the_same_layout():
    case = pool.mixed((6, 4, 9))
    times = (2.0, 4.0, 8.0, 1.0, 16.0)  # fspool packed, padded, plain padded, sum packed, padded
    rows = results.rows(case, dict(zip(case.variants, times, strict=True)), {}, {})
    assert [row["speedup_over_plain"] for row in rows] == ["4", "2", "1", "", ""]
    assert [row["times_sum"] for row in rows] == ["2", "0.25", "0.5", "1", "1"]


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (11.33, "11.3x faster"),
        (1 / 0.5217, "1.9x faster"),
        (0.5217, "1.9x slower"),
        (0.01, "100x slower"),
    ]
    + [(1.04, "as fast"), (0.97, "as fast"), (1.06, "1.1x faster"), (0.94, "1.1x slower")],
)
def test_a_ratio_in_words_is_never_below_one(ratio, words):
    assert tables.compared(ratio, *SPEED) == words


def test_bad_arguments_are_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        runner.main(["sorting"])
    assert "no benchmark sorting; expected some of pool, relaxed_sort" in capsys.readouterr().err
    readme = tmp_path / "README.md"
    readme.write_text("no block")
    with pytest.raises(SystemExit, match="README.md has no block <!-- a --> or <!-- b -->"):
        tables.fill(readme, {"a": "1", "b": "2"})
    readme.write_text("<!-- a --> <!-- /a --> <!-- a -->")
    with pytest.raises(SystemExit, match="README.md: block <!-- a --> ... <!-- /a -->; expected"):
        tables.fill(readme, {"a": "1", "b": "2"})
    with pytest.raises(SystemExit, match="no results of cpu yet"):
        runner.write_tables([readme], "cpu", tmp_path / "none.csv")


# --------------------------------------------------------------------------------------------------
# What is measured on CUDA, as far as the CPU can tell


def cuda_rows():
    """A run on CUDA as it could have been: N ms for the package, twice that in eager calls."""
    rows = []
    cases = [*pool.cases("cuda"), *relaxed_sort.cases("cuda"), *chamfer.cases("cuda")]
    for case in [*cases, *sweep.cases("cuda")]:
        cost = {"fspool": 1, "plain": 8, "dense": 8, "fixed": 4, "compiled": 3, "sum": 0.5}
        seconds = {v: cost[v.name] * case.shape[2] / 1e3 for v in case.variants}
        eager = {v: 2 * time for v, time in seconds.items()}
        peaks = {v: cost[v.name] * 10**7 for v in case.variants}
        errors = {v: accuracy.Errors(1e-7, 2e-7) for v in case.variants if v.name != "sum"}
        floors = {v.layout: case.shape[2] / 1e5 for v in case.variants}
        rows += results.rows(case, seconds, peaks, errors, eager, floors)
    made = machine.describe() | {"device": "cuda", "machine": "some GPU", "triton": "3.6"}
    return [row | {"rounds": "11"} | made for row in rows]


def test_what_could_not_be_recorded_has_eager_seconds_alone():
    case = pool.full((3, 4, 7), compiles=True)
    seconds = {v: 2.0 for v in case.variants if v.name not in ("compiled", "sum")}
    rows = results.rows(case, seconds, {}, {}, {v: 6.0 for v in case.variants}, {"full": 0.25})
    by_name = {row["variant"]: row for row in rows}
    assert by_name["compiled"]["seconds"] == by_name["compiled"]["speedup_over_plain"] == ""
    assert by_name["compiled"]["eager_seconds"] == "6"
    assert by_name["fspool"]["times_sum"] == "", "a graph over eager calls is no ratio"
    assert by_name["floor"]["seconds"] == "0.25" and by_name["floor"]["eager_seconds"] == ""
    assert tables.table(rows).splitlines()[0].split("  ")[0] == "variant"
    assert "eager ms" in tables.table(rows) and "peak MB" not in tables.table(rows)


def test_the_table_of_cuda_is_of_graphs_and_leaves_the_sweep_out():
    lines = tables.markdown(cuda_rows()).splitlines()
    assert "against `torch.compile`" in lines[0] and "fixed-size" not in lines[0]
    first = "| hard pool | all N | 640, 512, 10 | **8x faster** | 3x faster | 2x slower |"
    assert lines[2] == f"{first} 10 MB, 8x less |"
    mixed, alone, loss = (
        next(line for line in lines if text in line)
        for text in ("packed | 1024, 256, 1024", "4, 32, 16384", "64, 3, 1024")
    )
    assert "**8x faster** | 3x faster | 2x slower" in mixed
    assert "| - | - | 2x slower | 10 MB |" in alone
    assert "**8x faster** | - | - |" in loss
    assert sum(line.startswith("| hard pool") for line in lines) == 8
    assert "replay of CUDA graphs" in lines[-1] and "some GPU" in lines[-1]
    assert "triton 3.6" in lines[-1] and lines[-1].endswith("float64: 2e-07.")


def test_the_table_tells_when_its_first_and_its_last_row_were_measured():
    rows = [row | {"date": "2026-11-16"} for row in cuda_rows()]
    assert "2026-11-16. The" in tables.markdown(rows)
    rows[0]["date"] = "2026-11-19"
    assert "2026-11-16 to 2026-11-19. The" in tables.markdown(rows)


def test_what_is_slower_than_the_sum_says_so_and_what_is_faster_too():
    rows = cuda_rows()
    for row in rows:
        if row["variant"] == "sum" and row["layout"] == "padded":
            row["seconds"] = str(4 * float(row["seconds"]))
    lines = tables.markdown(rows).splitlines()
    packed, padded = (next(line for line in lines if kind in line) for kind in ("packed", "padded"))
    assert "| 2x slower |" in packed and "| 2x faster |" in padded


def first_calls():
    kernels = [{"kernel": name, "seconds": 1.25, "cached": False} for name in ("sort", "rank")]
    seconds = {"forward_seconds": 3.04, "backward_seconds": 1.0, "again_seconds": 0.0021}
    call = {"benchmark": "pool", "layout": "packed", "B": 6, "D": 4, "N": 9}
    return {"machine": cuda_rows()[0], "calls": [call | seconds | {"kernels": kernels}]}


def test_the_tables_of_the_page_on_speed():
    made = page.tables(cuda_rows(), first_calls())
    every, eager, first = (
        made[f"bench:cuda:{name}"].splitlines() for name in ("all", "eager", "first")
    )
    assert every[1] == "| --- | --- |" + " ---: |" * 9
    assert every[2] == (
        "| hard pool | 640, 512, 10 | 10 | 20 | 8x | 3x | 2x | 100x | 10 | 1e-07 | 2e-07 |"
    )
    mixed = next(line for line in every if "hard pool, packed" in line)
    assert "| 8x | 3x | 2x | 100x |" in mixed, "the plain form is that of padded sets"
    assert any("| - | - | 2x | 100x |" in line for line in every), "nothing dense to compare with"
    assert len(every) == 2 + 14 + 2 and "some GPU" in every[-1]
    assert eager[2] == "| hard pool | 640, 512, 10 | 10 | 20 | 160 | 60 | 10 |"
    assert first[2] == "| hard pool, packed | 6, 4, 9 | 3.0 | 1.0 | 2 | 2.5 | 2.1 |"
    assert "some GPU" in first[-1] and "upper bounds" in first[-1]
    assert "bench:cuda:first" not in page.tables(cuda_rows(), {})


def test_one_command_fills_the_readme_and_the_page(tmp_path, monkeypatch):
    kept = tmp_path / "benchmarks" / "results" / "cuda.csv"
    monkeypatch.setattr(runner, "HERE", kept.parent.parent)
    results.write(kept, cuda_rows())
    kept.with_name("cold-cuda.json").write_text(json.dumps(first_calls()))
    (tmp_path / "docs").mkdir()
    files = [tmp_path / "README.md", tmp_path / "docs" / "speed.md"]
    blocks = [["bench:cuda"], ["bench:cuda:all", "bench:cuda:eager", "bench:cuda:first"]]
    for file, names in zip(files, blocks, strict=True):
        file.write_text("".join(f"<!-- {name} -->\n<!-- /{name} -->\n" for name in names))
    runner.main(["--device", "cuda", "--readme"])
    counts = [file.read_text().count("| hard pool") for file in files]
    assert counts == [8, 8 + 8 + 1]


def test_files_without_the_new_columns_are_read_and_written_again(tmp_path):
    old = [{"benchmark": "pool", "layout": "full", "variant": "fspool", "seconds": "1"}]
    results.write(tmp_path / "old.csv", old)
    (read,) = results.read(tmp_path / "old.csv")
    assert read["seconds"] == "1" and read["eager_seconds"] == ""
    results.write(tmp_path / "new.csv", [*old, *cuda_rows()])
    rows = results.read(tmp_path / "new.csv")
    assert rows[0]["machine"] == "" and rows[1:] == cuda_rows()
    assert results.read(tmp_path / "none.csv") == []


def test_the_curves_are_drawn_from_the_sweep(tmp_path):
    rows = cuda_rows()
    found = plot.curves(rows)
    assert list(found) == ["plain", "fspool", "sum", "floor"]
    lengths, times = found["fspool"]
    assert lengths == sweep.LENGTHS and times == pytest.approx(lengths)
    picture = tmp_path / "static" / "sweep.svg"
    plot.draw(rows, picture)
    first = picture.read_bytes()
    assert first.startswith(b"<?xml") and first.count(b"<path") > 50
    plot.draw(rows, picture)
    assert picture.read_bytes() == first
    with pytest.raises(SystemExit, match="no rows of the sweep"):
        plot.draw([row for row in rows if row["benchmark"] == "pool"], picture)


def test_labels_do_not_touch():
    placed = plot.spread({"a": 1.0, "b": 1.1, "c": 9.0})
    assert placed == {"a": 1.0, "b": plot.APART, "c": 9.0}


def test_every_point_of_the_sweep_has_as_many_elements():
    shapes = [case.shape for case in sweep.cases("cuda")]
    assert {batch * length for batch, _, length in shapes} == {sweep.ELEMENTS}
    assert (shapes[0][2], shapes[-1][2]) == (4, 8192)


def test_a_first_call_tells_of_its_case(tmp_path):
    case = pool.mixed((6, 4, 9))
    found = cold.first_call(case, case.variants[0], "cpu")
    assert [found[k] for k in ("benchmark", "layout", "B", "D", "N")] == ["pool", "packed", 6, 4, 9]
    assert cold.line(found).startswith("pool (6, 4, 9) packed: forward ")
    assert cold.line(found).endswith("kernels: none")
    found["kernels"] = [{"kernel": "sort", "seconds": 1.25, "cached": False}]
    assert cold.line(found).endswith("kernels: sort 1.2")
    calls = [(c.benchmark, c.shape[2], v.layout) for c, v in cold.calls()]
    assert len(calls) == len(set(calls)) == 10
    assert [n for name, n, layout in calls if (name, layout) == ("pool", "full")] == [
        10, 32, 128, 512, 1024, 4096
    ]  # fmt: skip


def test_cold_results_name_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "describe", lambda device: {"machine": f"some {device}"})
    cold.write(tmp_path / "results" / "cold.json", [{"B": 1}])
    content = json.loads((tmp_path / "results" / "cold.json").read_text())
    assert content == {"machine": {"machine": "some cuda"}, "calls": [{"B": 1}]}


def test_some_benchmarks_need_cuda(capsys):
    with pytest.raises(SystemExit):
        runner.main(["sweep"])
    assert "no benchmark sweep; expected some of pool" in capsys.readouterr().err
    assert runner.parse(["sweep", "cold", "--device", "cuda"]).names == ["sweep", "cold"]


def test_graphs_are_timed_and_the_protocol_is_extrapolated(
    one_thread, tmp_path, capsys, monkeypatch
):
    from benchmarks import graphs

    monkeypatch.setitem(tu.SOURCES, "MUTAG", write_tu(tmp_path, "MUTAG", drawn(47, 3)))
    out = tmp_path / "out.json"
    command = f"--data {tmp_path} --device cpu --sets MUTAG --runs 2 --epochs 2 --out {out}"
    graphs.main(command.split())
    results = json.loads(out.read_text())
    shapes = {(row["readout"], row["width"], row["batch"]) for row in results["steps"]}
    assert len(results["steps"]) == 6 and ("sum", 32, 128) in shapes and not results["left_out"]
    assert all(row["ms_step"] > 0 and row["ms_count"] > 0 for row in results["steps"])
    minutes, own = results["minutes"]["fspool MUTAG"]
    assert minutes > 0 and own and not results["minutes"]["fspool COLLAB"][1]
    assert "fspool NCI1, scaled from another set or shape" in capsys.readouterr().out


def test_graphs_that_there_is_no_time_for_are_named(tmp_path, capsys):
    from benchmarks import graphs

    graphs.main(f"--data {tmp_path} --device cpu --sets MUTAG --seconds -1".split())
    assert capsys.readouterr().out.count("left out for want of time: MUTAG") == 6


def test_question_answering_is_timed_in_all_ways(tmp_path, monkeypatch, one_thread, capsys):
    monkeypatch.setattr(clevr, "WAYS", [("tf32", 2), ("bfloat16", 1)])
    monkeypatch.setattr(clevr, "LONGEST", 7)
    monkeypatch.setattr(clevr.trainer, "CHUNK", 2)
    clevr.main(["--tiny", "--rounds", "1", "--out", str(tmp_path / "times.json")])
    found = json.loads((tmp_path / "times.json").read_text())
    assert [(way["precision"], way["runs"]) for way in found["ways"]] == [
        ("tf32", 2),
        ("bfloat16", 1),
    ]
    assert "plain eager" in capsys.readouterr().out


def test_the_plain_network_has_the_parameters_of_ours():
    cell = clevr.Timed(hidden=8, width=6, embedding=4, questions=64)
    ours, plain = cell.model(), clevr.Plain(cell)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in plain.parameters())
    (batch,) = list(cell.batches([0], range(1), torch.device("cpu")))
    start = int(batch.start[0, 0])
    inputs = (batch.objects[0, :4], batch.sizes[0, :4], batch.words[0, :4, start:])
    plain.eval()
    for own, other in zip(
        (ours.question.embedding, *list(ours.question.parameters())[1:], ours.pool.weight),
        (plain.embedding.weight, *plain.lstm.parameters(), plain.weight),
        strict=True,
    ):
        own.data.copy_(other.data)
    layers = [m for m in (*plain.g, *plain.f) if isinstance(m, torch.nn.Linear)]
    for own, other in zip((ours.first, *ours.rest, *ours.answer), layers, strict=True):
        own.load_state_dict(other.state_dict())
    assert_close(ours(*inputs), plain(*inputs), rtol=1e-4, atol=1e-5)
