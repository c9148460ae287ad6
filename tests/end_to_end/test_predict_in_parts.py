"""`vitrail predict` shared by several processes and stopped on the way: the file is the one of a single process."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import partners
from end_to_end.test_wrong_inputs import sentence
from nursery import Nursery

COUNT = 200
"""Pictures, which are four parts of 64, the last one of 8."""


@pytest.fixture
def listed(flowers, tmp_path):
    """A list that names ten pictures over and over."""
    pictures = sorted(flowers.rglob("*.png"))
    path = tmp_path / "list.txt"
    path.write_text("\n".join(str(pictures[k % len(pictures)]) for k in range(COUNT)), encoding="utf-8")
    return f"@{path}"


@pytest.fixture
def alone(vitrail, run_folder, listed, tmp_path) -> bytes:
    """The file of one process, in one piece."""
    assert vitrail("predict", run_folder, listed, "--to", tmp_path / "alone.csv").code == 0
    return (tmp_path / "alone.csv").read_bytes()


@pytest.fixture
def as_rank(monkeypatch):
    """Give this process the variables of a rank; processes that predict say nothing to each other."""

    def be(kind: str, rank: int, world: int = 2) -> None:
        for name in [name for name in os.environ if name.startswith("SLURM_")]:
            monkeypatch.delenv(name)
        for name, text in partners.variables(kind, rank, world, "29500").items():
            monkeypatch.setenv(name, text)

    return be


def part(out: Path, number: int) -> dict:
    return json.loads((out.with_name(f"{out.name}.parts") / f"part-{number:05d}.json").read_text())


@pytest.mark.parametrize("kind", ["torchrun", "SLURM"])
def test_ranks_that_come_one_after_another_write_the_bytes_of_one_process(
    kind, vitrail, run_folder, listed, alone, as_rank, tmp_path
):
    out = tmp_path / "shared.csv"
    words = ("predict", run_folder, listed, "--part-size", "64", "--to", out)
    as_rank(kind, 1)
    first = vitrail(*words)
    assert first.code == 0 and not out.exists(), first.err
    assert "Rank 1 of 2 has written its share; still to come are 2 of 4 parts in" in first.out
    as_rank(kind, 0)
    assert f"200 rows written to {out}, from 4 parts;" in vitrail(*words).out
    assert out.read_bytes() == alone


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_parts_become_json_lines_or_parquet_too(ending, vitrail, run_folder, listed, tmp_path):
    whole, out = tmp_path / f"whole{ending}", tmp_path / f"parts{ending}"
    assert vitrail("predict", run_folder, listed, "--to", whole).code == 0
    answer = vitrail("predict", run_folder, listed, "--part-size", "64", "--to", out)
    assert answer.code == 0 and f"200 rows written to {out}, from 4 parts" in answer.out
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.wide
def test_ranks_at_the_same_time_do_too(run_folder, listed, alone, tmp_path):
    out = tmp_path / "shared.csv"
    line = ["-m", "vitrail", "predict", str(run_folder), listed, "--part-size", "64", "--to", str(out)]
    answers = partners.ended(partners.start(line))
    assert [code for code, _, _ in answers] == [0, 0], answers
    assert any("from 4 parts" in told for _, told, _ in answers)
    assert out.read_bytes() == alone


@pytest.mark.wide
def test_a_killed_process_loses_the_part_at_hand_and_no_other(vitrail, run_folder, listed, alone, tmp_path):
    out = tmp_path / "parts.csv"
    words = ("predict", run_folder, listed, "--part-size", "64", "--to", out)
    with Nursery() as nursery:
        killed = nursery.run(*words, VITRAIL_DIE_AT="half-written part-00002.json")
    assert killed.code == -9, killed.said
    before = {number: part(out, number) for number in (0, 1)}
    again = json.loads(vitrail(*words, "--json").out)
    assert (again["kept"], again["written"], again["missing"], again["rows"]) == (2, 2, 0, COUNT)
    assert out.read_bytes() == alone
    assert {number: part(out, number) for number in (0, 1)} == before
    assert not list((tmp_path / "parts.csv.parts").glob(".tmp-*"))
    assert json.loads(vitrail(*words, "--json").out)["written"] == 0  # nothing is left to do


def test_a_part_that_was_damaged_or_whose_pictures_have_changed_is_made_again(vitrail, run_folder, flowers, tmp_path):
    own = shutil.copytree(flowers, tmp_path / "flowers")
    out = tmp_path / "parts.csv"
    pictures = sorted(own.rglob("*.png"))
    (tmp_path / "own.txt").write_text("\n".join(str(pictures[0 if k < 64 else 9]) for k in range(COUNT)))
    words = ("predict", run_folder, f"@{tmp_path / 'own.txt'}", "--part-size", "64", "--to", out, "--json")
    assert json.loads(vitrail(*words).out)["written"] == 4
    whole = out.read_bytes()
    table = tmp_path / "parts.csv.parts" / "part-00003.csv"
    table.write_bytes(table.read_bytes().replace(b",", b";", 1))
    assert json.loads(vitrail(*words).out)["written"] == 1
    assert out.read_bytes() == whole
    shutil.copy(pictures[5], pictures[0])
    assert json.loads(vitrail(*words).out)["written"] == 1
    changed = out.read_bytes()
    assert changed != whole and changed.splitlines()[65:] == whole.splitlines()[65:]


def test_parts_of_another_prediction_are_refused_by_what_differs(vitrail, run_folder, listed, flowers, tmp_path):
    out = tmp_path / "parts.csv"
    words = ("predict", run_folder, listed, "--part-size", "64", "--to", out)
    assert vitrail(*words).code == 0
    longer = vitrail("predict", run_folder, listed, flowers, "--part-size", "64", "--to", out)
    assert "parts.csv.parts holds parts of another prediction (another list of pictures), which" in sentence(longer, 2)
    larger = sentence(vitrail(*words[:4], "128", *words[5:]), 2)
    assert "(another --part-size)" in larger
    other = sentence(vitrail(*words, "--image.max_pixels", "1000"), 2)
    assert "(another model, or other page and size limits" in other
    assert "with and without --skip-bad" in sentence(vitrail(*words, "--skip-bad"), 2)


def test_what_was_left_out_before_the_restart_is_named_after_it(vitrail, run_folder, flowers, tmp_path):
    own = shutil.copytree(flowers, tmp_path / "flowers")
    (own / "disc" / "broken.png").write_bytes(b"no picture")
    words = ("predict", run_folder, own, "--skip-bad", "--part-size", "64", "--to", tmp_path / "parts.csv")
    for _ in range(2):
        answer = vitrail(*words)
        assert answer.code == 0 and "10 rows written to" in answer.out
        assert answer.err.startswith("left out ") and "broken.png" in answer.err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--part-size", "100", "--to", "x.csv"), r"must be a multiple of 64, .* Got 100; use 128\."),
        (("--part-size", "64"), r"Answers in parts lie beside the file that they become\. Name it with --to FILE\.csv"),
        (("--engine", "ray"), r"Name it with --to FILE\.csv"),
        (("--engine", "spark"), r"spark"),
    ],
)
def test_what_cannot_be_parted_is_said_in_a_sentence(vitrail, run_folder, flowers, more, said, tmp_path, monkeypatch):

    monkeypatch.chdir(tmp_path)
    assert re.search(said, sentence(vitrail("predict", run_folder, flowers, *more), 2))
    assert not list(tmp_path.iterdir())


def test_a_folder_of_something_else_is_left_alone(vitrail, run_folder, flowers, tmp_path):
    mine = tmp_path / "answers.csv.parts"
    mine.mkdir()
    (mine / "diary.txt").write_text("mine")
    answer = vitrail("predict", run_folder, flowers, "--part-size", "64", "--to", tmp_path / "answers.csv")
    assert "is where parts would lie, and it holds something else" in sentence(answer, 2)


def test_several_processes_need_a_file_to_write_to(vitrail, run_folder, flowers, as_rank):
    as_rank("torchrun", 0)
    assert "Name it with --to FILE.csv" in sentence(vitrail("predict", run_folder, flowers), 2)


def test_without_ray_a_sentence_says_what_to_install(vitrail, run_folder, flowers, tmp_path, monkeypatch):

    monkeypatch.setitem(sys.modules, "ray", None)
    answer = vitrail("predict", run_folder, flowers, "--engine", "ray", "--to", tmp_path / "a.csv")
    assert "--engine ray needs Ray and Ray Data: pip install 'vitrail[ray]'." in sentence(answer, 2)
