"""`vitrail explain` as it is typed: the files it writes, what it prints, what it refuses."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import vitrail as package


def test_explaining_writes_a_picture_its_numbers_and_what_was_chosen(vitrail, run_folder, flowers, tmp_path):
    answer = vitrail("explain", run_folder, flowers / "disc" / "0.png", flowers / "stripes" / "0.png", "--to", tmp_path)
    assert answer.code == 0, answer.err
    names = ["0.relevance", "0-2.relevance"]
    assert [line.partition(": ")[0] for line in answer.out.splitlines()] == [f"wrote {tmp_path / n}.png" for n in names]
    for name in names:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        facts = json.loads((tmp_path / f"{name}.json").read_text())
        assert facts["model"] == str(run_folder) and len(facts["weights_sha256"]) == 64
        with np.load(tmp_path / f"{name}.npz") as arrays:
            assert arrays["values"].shape == (2, 2) == (facts["rows"], facts["columns"])


def test_explaining_for_machines_and_in_python_gives_the_same_map(vitrail, run_folder, flowers, tmp_path):
    picture = flowers / "disc" / "1.png"
    asked = ("--method", "occlusion", "--class", "stripes", "--fill", "black", "--to", tmp_path, "--json")
    (facts,) = json.loads(vitrail("explain", run_folder, picture, *asked).out)
    assert (facts["class"], facts["options"]["fill"]) == ("stripes", "black")
    (one,) = package.open(run_folder).explain(picture, "occlusion", target="stripes", fill="black")
    with np.load(facts["file"].replace(".png", ".npz")) as arrays:
        np.testing.assert_array_equal(arrays["values"], one.heatmap.values[0])
    (row,) = json.loads(vitrail("predict", run_folder, picture, "--json").out)
    assert facts["value"] == pytest.approx(row["prob_stripes"], abs=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), r"PATHS are missing"),
        (("PICTURE", "--opacity", "2"), r"--opacity must lie in 0\.\.1\. Got 2\."),
        (("PICTURE", "--method", "lime"), r"--method must be one of relevance, legrad, .*Got 'lime'"),
        (("PICTURE", "--method", "rollout", "--class", "disc"), r"rollout draws the same map for every class"),
        (("PICTURE", "--heads", "0"), r"relevance has no use for heads\. It knows layer\."),
        (("PICTURE", "--class", "rose"), r"The model has no output 'rose'\. Its outputs are disc, stripes\."),
    ],
)
def test_what_cannot_be_explained_is_said(vitrail, run_folder, flowers, tmp_path, words, message):
    words = [flowers / "disc" / "0.png" if word == "PICTURE" else word for word in words]
    answer = vitrail("explain", run_folder, *words, "--to", tmp_path)
    assert answer.code == 2 and re.search(message, answer.err), answer.err


def test_bad_pictures_are_left_out_by_name_or_stop_the_verb(vitrail, run_folder, flowers, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"nothing")
    words = ("explain", run_folder, tmp_path / "bad.png", flowers / "disc" / "0.png", "--to", tmp_path / "to")
    assert vitrail(*words).code == 3
    answer = vitrail(*words, "--skip-bad")
    assert answer.code == 0 and answer.err.startswith(f"left out {tmp_path / 'bad.png'}: ")
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == [
        f"0.relevance.{end}" for end in ("json", "npz", "png")
    ]
    answer = vitrail("explain", run_folder, tmp_path / "bad.png", "--skip-bad")
    assert answer.code == 3 and "None of the pictures could be explained" in answer.err


def test_X12_a_figure_of_a_paper_is_one_command(vitrail, run_folder, flowers, tmp_path):
    pictures = (flowers / "disc" / "0.png", flowers / "stripes" / "0.png")
    answer = vitrail("explain", run_folder, *pictures, "--figure", "token-norms", "--to", tmp_path)
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f"wrote {tmp_path / 'token-norms.png'}, ")
    assert json.loads((tmp_path / "token-norms.json").read_text())["figure"] == "token-norms"
    answer = vitrail("explain", run_folder, "--figure", "position-similarity", "--to", tmp_path / "mine.png", "--json")
    files = json.loads(answer.out)
    assert files[0] == str(tmp_path / "mine.png") and (tmp_path / "mine.png").read_bytes().startswith(b"\x89PNG")


def test_how_true_maps_are_is_told_as_a_table_and_for_machines(vitrail, run_folder, flowers):
    answer = vitrail("explain", run_folder, "--faithfulness", "--method", "relevance", "--json")
    assert answer.code == 0, answer.err
    own = json.loads(answer.out)
    assert own["model"] == str(run_folder) and "relevance" in json.dumps(own)
    answer = vitrail("explain", run_folder, flowers, "--faithfulness", "--method", "rollout")
    assert answer.code == 0 and "rollout" in answer.out and "measuring rollout on" in answer.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--figure", "pca", "--method", "lens"), r"--method has no use with --figure pca; it is for maps\."),
        (("--figure", "pca", "--class", "disc"), r"--class has no use with --figure pca"),
        (
            ("--faithfulness", "--image-size", "64"),
            r"--image-size has no use with --faithfulness; it is for --figure\.",
        ),
        (("PICTURE", "--image-size", "64"), r"--image-size has no use with maps; it is for --figure\."),
        (("PICTURE", "PICTURE", "--faithfulness"), r"takes one SOURCE in the place of PATHS\. Got 2\."),
        (("--faithfulness", "--method", "similarity"), r"Measured can be relevance, .*Got 'similarity'\."),
        (("--figure", "pca"), r"pca"),
    ],
)
def test_what_goes_with_neither_is_refused_by_name(vitrail, run_folder, flowers, words, message):
    words = [flowers / "disc" / "0.png" if word == "PICTURE" else word for word in words]
    answer = vitrail("explain", run_folder, *words)
    assert answer.code == 2 and re.search(message, answer.err), answer.err


def test_a_model_without_pictures_of_its_own_is_measured_on_a_source(vitrail, run_folder, flowers):
    answer = vitrail("explain", run_folder / "model", "--faithfulness")
    assert answer.code == 2 and "Only a run folder knows which pictures it has held out" in answer.err
