"""Hostile and damaged files through the public door: refused in words, at once, in little memory, and nothing runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hostile

SECONDS, MEBIBYTES = 2.0, 256


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict[str, dict]:
    """Every file opened once, all in one process."""
    folder = tmp_path_factory.mktemp("hostile")
    cases = hostile.corpus(folder)
    done = subprocess.run(
        [sys.executable, "-W", "error", hostile.__file__, str(folder)],
        input=json.dumps([case.name for case in cases]),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {answer["name"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert list(found) == [case.name for case in cases]
    return {case.name: {**found[case.name], "expected": case.words, "folder": folder} for case in cases}


def test_the_corpus_is_as_large_as_promised(answers):
    assert len(answers) >= 40


def test_every_file_is_refused_in_the_words_meant_for_it(answers):
    wrong = {
        name: (answer["kind"], answer["words"], answer["expected"])
        for name, answer in answers.items()
        if answer["kind"] != "DamagedFileError" or not re.search(answer["expected"], answer["words"])
    }
    assert not wrong, json.dumps(wrong, indent=1)


def test_every_refusal_names_the_file_on_one_short_line(answers):
    for name, answer in answers.items():
        assert name in answer["words"] and "\n" not in answer["words"] and len(answer["words"]) < 800, answer["words"]
        assert answer["words"].isprintable()


def test_nothing_in_any_file_was_run(answers):
    (folder,) = {answer["folder"] for answer in answers.values()}
    assert not (folder / hostile.CANARY).exists()


def test_every_refusal_is_quick(answers):
    slow = {name: answer["seconds"] for name, answer in answers.items() if answer["seconds"] > SECONDS}
    assert not slow


def test_every_refusal_takes_little_memory(answers):
    large = {name: answer["mebibytes"] for name, answer in answers.items() if answer["mebibytes"] > MEBIBYTES}
    assert not large


@pytest.mark.parametrize("name", ["overlap.safetensors", "popped.pt", "objects.npz"])
def test_the_command_line_says_one_sentence_and_exits_with_four(vitrail, answers, name):
    answer = vitrail("inspect", Path(answers[name]["folder"]) / name)
    assert answer.code == 4, answer.err
    assert answer.err.count("\n") == 1 and answer.err.startswith("vitrail: ") and name in answer.err
    assert re.search(answers[name]["expected"], answer.err)
