"""What the scripts of speed make of their figures, and that their processes answer. Nothing is timed in earnest."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from scripts import ROOT, script

peers, cold_start, files_to_csv, cost_model = map(script, ("peers", "cold_start", "files_to_csv", "cost_model"))
standings, children = map(script, ("making.standings", "making.children"))


def row(cell: str, rates: dict[str, float]) -> dict[str, object]:
    """A cell as peers.py keeps it."""
    machine = {"cpu": "Some CPU", "threads": 2, "versions": {"torch": "2.13"}, "peers": {"timm": "1.0"}}
    contestants = [
        {"name": name, "pictures_per_second": rate, "utilisation": rate / 200, "memory": 10**9}
        for name, rate in rates.items()
    ]
    return {
        "cell": cell, "batch": 16, "rounds": 7, "threads": 2, "contestants": contestants, "machine": machine,
        "limit_flops_per_second": 1e11,
    }  # fmt: skip


CELLS = [
    row("S/16 training bfloat16 eager", {"vitrail": 110, "vitrail loop": 130, "timm": 90, "timm, not fused": 100}),
    row(
        "S/16 inference bfloat16 eager",
        {"vitrail": 40, "vitrail, weights cast": 90, "vitrail predict": 120, "timm": 80},
    ),
]


def test_a_cell_compares_our_better_setting_with_the_best_of_the_others_and_leaves_our_own_lines_out():
    assert [standings.ratio(cell) for cell in CELLS] == [1.1, 1.125]
    found = standings.summary(CELLS)
    assert found["least"] == 1.1 and found["geometric_mean"] == pytest.approx((1.1 * 1.125) ** 0.5)
    assert standings.summary([]) == {}


def test_a_contestant_without_a_figure_keeps_its_row_and_is_compared_with_nobody():
    dead = peers.figures("timm", [0.5], {"parameters": 7, "memory": 8}, "warm: ended with -9: killed", 16, None)
    assert dead["pictures_per_second"] is None and dead["reason"].endswith("killed") and dead["memory"] == 8
    cell = row("S/16 training bfloat16 eager", {"vitrail": 110, "timm, not fused": 100})
    cell["contestants"].insert(1, dead)
    assert standings.ratio(cell) == 1.1
    assert "| 1.10 | failed |" in script("table_of_speed", "docs").table([cell])
    alone = {**cell, "contestants": [cell["contestants"][0], dead]}
    assert standings.ratio(alone) is None and "not measured" in script("table_of_speed", "docs").table([alone])


@pytest.mark.wide
def test_a_contestant_that_cannot_start_says_why():
    child = children.Running({"shape": "quick", "threads": 1})
    with pytest.raises(children.Died, match="KeyError: 'format'"):
        child.ask("warm")
    child.end()


def test_memory_is_compared_with_timm_in_each_way():
    memory = script("peers_memory")
    found = {"vitrail": 100, "vitrail, fused": 90, "vitrail, recomputed": 50, "timm": 100, "timm, not fused": 125,
             "timm, recomputed": 40}  # fmt: skip
    rows = [{"way": way, "format": "float32", "memory": value, "parameters": 1.25} for way, value in found.items()]
    assert list(memory.compare_memory(rows, "float32").values()) == [
        1.0,
        0.9,
        0.8,
        0.5,
        1.25,
        0.375,
    ]  # 20 are the state
    assert set(found) == set(memory.WAYS)


def test_without_a_measurement_the_table_says_so():
    table = script("table_of_speed", "docs")
    assert table.content([]).startswith("Not measured") and table.content(CELLS).count("\n") == 5
    assert "all of it took 0 minutes" in table.content(CELLS)


def test_checks_say_by_how_much_and_call_nothing_met_of_half_a_table():
    met = {one["what"]: one["met"] for one in standings.summary(CELLS)["checks"]}
    assert list(met.values()) == [True, True, None, False]
    half = [one["met"] for one in standings.summary(CELLS, 22)["checks"]]
    assert half == [None, None, None, False]


def test_every_cell_has_every_library_with_its_settings():
    names = {cell.name: [one.name for one in peers.contestants(cell)] for cell in peers.cells()}
    assert len(names) == 4 * 4 + 2 + 4
    assert "vitrail loop" in names["B/16 training float32 eager"]
    assert names["S/16 inference bfloat16 eager"].count("timm, not fused, memory kept, weights cast") == 1
    assert names["S/16 inference bfloat16 eager"].count("timm") == 1
    assert names["B/16 inference float32 eager"].count("vitrail predict") == 1
    libraries = {one.library for cell in peers.cells() if not cell.compiled for one in peers.contestants(cell)}
    assert libraries == {"vitrail", "timm", "transformers", "torchvision", "vit-pytorch"}


def test_a_cell_that_is_measured_again_stands_where_it_stood():
    names = [cell.name for cell in peers.cells()]
    rows = [{"cell": name, "threads": threads} for threads in (1, 2) for name in names]
    assert sorted(rows[9:] + rows[:9], key=peers.place) == rows


def test_the_table_of_speed_has_a_line_a_cell():
    table = script("table_of_speed", "docs")
    lines = table.table(CELLS).splitlines()
    assert (
        lines[2]
        == "| S/16 training bfloat16 eager | 16 | 110.0 | 55% | 100.0 | timm, not fused | 1.10 | 90.0 | 130.0 |"
    )
    assert "7 interleaved rounds on Some CPU, 2 threads, torch 2.13, timm 1.0;" in table.around(CELLS)


@pytest.mark.wide
@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "mode", "own"),
    [
        ("vitrail", "training", False), ("vitrail", "training", True), ("vitrail", "inference", True),
        ("vit-pytorch", "training", False), ("timm", "training", False), ("torchvision", "training", False),
        ("transformers", "training", False),
    ],
)  # fmt: skip
def test_a_contestant_answers_what_it_is_asked(library, mode, own):
    told = {
        "library": library, "fused": True, "cast": False, "own": own, "shape": "quick", "mode": mode,
        "format": "float32", "compiled": False, "threads": 1,
    }  # fmt: skip
    words = [sys.executable, str(ROOT / "benchmarks" / "making" / "contestant.py"), json.dumps(told)]
    done = subprocess.run(words, input="warm\ntime 0\nlimit 0\nend\n", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    warm, timed, limit = map(json.loads, done.stdout.splitlines())
    assert warm["seconds"] > 0 and timed["seconds"] > 0 and limit["rate"] > 0
    assert 5_300_000 < warm["parameters"] < 5_600_000


def test_imports_are_added_up_by_library():
    assert [cold_start.group(name) for name in ("torch.nn.functional", "json.decoder", "vitrail.cli.main")] == [
        "torch", "Python's own", "vitrail",
    ]  # fmt: skip


def test_the_parts_of_a_cold_start_add_up_to_the_whole():
    parts = [{"interpreter": 0.1, "forward": 0.5}, {"interpreter": 0.3, "forward": 0.7}]
    assert cold_start.summarize_parts(parts, 1.0) == pytest.approx(
        {"interpreter": 0.2, "forward": 0.6, "the rest": 0.2}
    )


def test_ways_from_files_are_compared_within_their_number_format_and_with_the_defaults():
    seconds = {
        "vitrail float32": 40.0, "vitrail bfloat16": 20.0, "timm-inference float32": 60.0, "pipeline float32": 80.0,
        "pipeline-batched float32": 50.0, "loader float32": 44.0, "pipeline-batched bfloat16": 50.0,
        "loader bfloat16": 26.0,
    }  # fmt: skip
    assert files_to_csv.ratios(seconds) == {"best, float32": 1.1, "best, bfloat16": 1.3, "defaults": 3.0}
    rows = [{"files": "640x427", "way": way, "seconds": taken, "round": 0} for way, taken in seconds.items()]
    found = files_to_csv.compare_speeds([*rows, {**rows[0], "seconds": None}], "640x427")
    assert [one["met"] for one in found.values()] == [False, True, True]
    assert files_to_csv.compare_speeds(rows, "2560x1708") == {}


def test_a_way_that_fails_keeps_its_last_words(tmp_path):
    words = [sys.executable, "-c", "raise ValueError('no such model')"]
    row = files_to_csv.measure_process(words, tmp_path / "answers.csv", "timm", 16)
    assert row["seconds"] is None and row["reason"] == "ended with 1 and 0 rows: ValueError: no such model"


def test_what_was_foretold_stands_beside_what_was_taken():
    told = {"step": 1.0, "answers": 0.5, "training_memory": 2e9, "inference_memory": 1e9}
    made = {"model": "vit_x", "batch": 8, "number_format": "float32", "optimizer": "adamw"}
    took = {**told, "step": 1.2, "training_memory": 1.5e9}
    found = {**made, "foretold": told, "taken": took}
    assert cost_model.shares(found) == {"step": 1.2, "answers": 1, "training_memory": 0.75, "inference_memory": 1}
    assert "| vit_x | 8 | float32 | adamw | 1,000 ms | 1,200 | +20% |" in cost_model.table([found])


def test_the_page_of_large_trainings_says_what_the_command_says():
    scale = script("table_of_scale", "docs")
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    for name in scale.CASES:
        assert f"<!-- {name}: begin -->\n{scale.describe_plans(name)}\n<!-- {name}: end -->" in page


def test_levers_of_speed_are_pairs_that_give_nearly_the_same(capsys, monkeypatch):
    levers = script("levers_of_speed")
    monkeypatch.setattr(sys, "argv", ["levers_of_speed.py", "--quick"])
    levers.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 15 and sum(line.endswith(", kept") for line in lines) == 13
    row = levers.time_both(levers.Lever("nothing", ("x", 1), lambda: None, lambda: sum(range(10_000)), True), 3, 0.001)
    assert row["times"] > 2
