"""`vitrail evaluate --corruptions`: one figure for every kind and severity."""

from __future__ import annotations

import json


def test_a_run_is_asked_about_disturbed_pictures(vitrail, run_folder, flowers):
    answer = vitrail("evaluate", run_folder, flowers, "--corruptions", "films", "--most", 4)
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0].endswith("split all, films")
    assert lines[1].startswith("WARNING") and "has learnt from 6 of these 10 pictures" in lines[1]
    assert "on 4 pictures (all)" in lines[2] and "11 ways of 5 severities" in lines[2]
    assert len(lines) == 5 + 11 and lines[-1].startswith("dead pixels")
    asked = ("evaluate", run_folder, flowers, "--corruptions", "films", "--most", 4, "--json")
    told = json.loads(vitrail(*asked).out)["robustness"]
    assert (told["n"], told["figure"], len(told["disturbances"])) == (4, "accuracy", 11)
    assert all(len(one["by_severity"]) == 5 for one in told["disturbances"])


def test_words_that_do_not_go_together_are_refused(vitrail, run_folder):
    answer = vitrail("evaluate", run_folder, "--most", 4)
    assert (answer.code, answer.out) == (2, "") and "Give --corruptions imagenet-c or films too." in answer.err
    answer = vitrail("evaluate", run_folder, "--corruptions", "films", "--against", run_folder)
    assert answer.code == 2 and "Leave out what else is asked of it" in answer.err
    answer = vitrail("evaluate", run_folder, "--corruptions", "film")
    assert answer.code == 2 and "imagenet-c, films" in answer.err
    answer = vitrail("evaluate", run_folder, "--corruptions", "films", "--most", 0)
    assert answer.code == 2 and "At least 1 picture must be disturbed. Got 0." in answer.err
