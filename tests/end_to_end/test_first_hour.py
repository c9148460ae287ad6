"""What a new user meets in the first hour: nothing claimed that is unknown, nothing lost, nothing refused too late."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import warnings
from pathlib import Path

import pytest

from end_to_end.conftest import TINY


@pytest.fixture(scope="module")
def copied(flowers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ten pictures with their splits in a table; one test picture is a copy of a training picture."""
    folder = tmp_path_factory.mktemp("copied") / "beds"
    shutil.copytree(flowers, folder)
    shutil.copy(folder / "disc" / "0.png", folder / "disc" / "4.png")
    rows = [
        f"{kind}/{k}.png,{kind},{'test' if k == 4 else 'val' if k == 3 else 'train'}"
        for kind in ("disc", "stripes")
        for k in range(5)
    ]
    (folder / "beds.csv").write_text("\n".join(["path,kind,split", *rows]))
    return folder


@pytest.fixture(scope="module")
def copied_run(copied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    from vitrail.cli.main import main

    run, threads = tmp_path_factory.mktemp("copied_run") / "run", torch.get_num_threads()
    words = [word for word in TINY if word not in ("--data.val_fraction", "0.2")]
    assert main(["train", str(copied / "beds.csv"), *words, "--steps", "4", "--out", str(run)]) == 0
    torch.set_num_threads(threads)
    return run


def test_few_pictures_no_calibration_and_copies_are_said_everywhere(vitrail, copied_run):
    copy = "1 picture of test is also in train, so the figure on test will be too good."
    card, page = (copied_run / "model" / "README.md").read_text(), (copied_run / "report.html").read_text()
    head = page[: page.index('<div class="figure">')]
    warnings = json.loads((copied_run / "report.json").read_text())["warnings"]
    names = "disc/4.png = disc/0.png"
    for text in (card, head):
        assert copy in text and names in text
        assert "2 held-out pictures tell little" in text and "Probabilities are not calibrated, which takes 100" in text
    assert "not learnt from" not in card and "| Confidence calibration error | unknown | takes 100 pictures |" in card
    assert len(warnings) >= 4 and "–<small>it takes 100 pictures to show one" in page
    assert "calibration_error" not in (copied_run / "metrics-test.json").read_text()
    assert "calibration_error" not in (copied_run / "results.csv").read_text()
    answer = vitrail("evaluate", copied_run)
    assert answer.code == 0 and "calibration error unknown, which takes 100 pictures" in answer.out
    assert copy in answer.err and names in answer.err and "Probabilities are not calibrated" in answer.err
    notes = json.loads(vitrail("evaluate", copied_run, "--json").out)["notes"]
    assert any(copy in note for note in notes) and any("not calibrated" in note for note in notes)


def test_of_few_validation_pictures_abstain_is_unknown_and_not_no(vitrail, run_folder, flowers):
    answer = vitrail("predict", run_folder, flowers)
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    assert {row["abstain"] for row in rows} == {"unknown"} and len(rows) == 10
    assert [line.partition(",")[0] for line in answer.err.splitlines()[-2:]] == [
        "Probabilities are not calibrated", "Which pictures are unlike the training is unknown",
    ]  # fmt: skip
    assert {row["abstain"] for row in json.loads(vitrail("predict", run_folder, flowers, "--json").out)} == {"unknown"}


@pytest.mark.wide
def test_ids_are_unique_where_file_names_are_not(vitrail, run_folder, flowers, tmp_path):
    whole = vitrail("predict", run_folder, flowers, "--to", tmp_path / "whole.csv")
    assert whole.code == 0, whole.err
    ids = [row["id"] for row in csv.DictReader(io.StringIO((tmp_path / "whole.csv").read_text()))]
    assert len(set(ids)) == 10 and ids[0] == "disc/0.png"
    parts = vitrail("predict", run_folder, flowers, "--to", tmp_path / "parts.csv", "--part-size", 64)
    assert parts.code == 0 and (tmp_path / "parts.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    (one,) = csv.DictReader(io.StringIO(vitrail("predict", run_folder, flowers / "disc" / "0.png").out))
    assert one["id"] == "0.png"


def test_answers_replace_answers_and_no_other_file(vitrail, run_folder, flowers, tmp_path):
    table = tmp_path / "films.csv"
    table.write_text("path,finding\na.png,nodule\n")
    refused = vitrail("predict", run_folder, flowers, "--to", table)
    assert refused.code == 2 and "holds no answers, so it is not overwritten" in refused.err
    assert table.read_text() == "path,finding\na.png,nodule\n"
    assert vitrail("predict", run_folder, flowers, "--to", tmp_path / "a.csv").code == 0
    again = vitrail("predict", run_folder, flowers, "--to", tmp_path / "a.csv")
    assert again.code == 0 and f"{tmp_path / 'a.csv'} held earlier answers, which are replaced." in again.err


def test_a_format_in_the_place_of_a_file_and_the_other_way_round(vitrail, run_folder, flowers):
    answer = vitrail("predict", run_folder, flowers, "--to", "csv")
    assert answer.code == 2 and "--to names the file, whose ending says the format: --to answers.csv" in answer.err
    answer = vitrail("predict", run_folder, flowers, "--out", "a.csv")
    assert answer.code == 2 and "There is no flag --out here. It is called --to here." in answer.err
    answer = vitrail("convert", run_folder, "--to", "somewhere/model")
    assert answer.code == 2 and "--to names the format (bundle, timm, transformers" in answer.err


@pytest.mark.first(3)
@pytest.mark.parametrize(
    "words",
    [
        ("predict", "RUN", "FLOWERS", "--to", "FILE/a.csv"),
        ("embed", "RUN", "FLOWERS", "--to", "FILE/a.npy"),
        ("explain", "RUN", "FLOWERS", "--to", "FILE/maps"),
        ("evaluate", "RUN", "--suspects", "FILE/suspects.csv"),
        ("train", "FLOWERS", "--out", "FILE/run"),
        ("tune", "FLOWERS", "--out", "FILE/run"),
        ("export", "RUN", "--out", "FILE/model.onnx"),
        ("convert", "RUN", "--out", "FILE/model"),
        ("check", "FLOWERS", "--out", "FILE/checked"),
    ],
    ids=lambda words: words[0],
)
def test_a_place_that_cannot_be_written_is_said_before_the_work(words, vitrail, run_folder, flowers, tmp_path):
    (tmp_path / "FILE").touch()
    places = {"RUN": str(run_folder), "FLOWERS": str(flowers)}
    answer = vitrail(*(places.get(word, word.replace("FILE", str(tmp_path / "FILE"))) for word in words))
    assert answer.code == 5, answer.err
    (line,) = answer.err.splitlines()  # no word of any work before it
    assert "a file stands where a folder is expected" in line


def test_a_dry_run_has_about_ten_lines_and_the_whole_plan_on_request(vitrail, flowers, tmp_path):
    words = ("train", flowers, *TINY, "--steps", 3, "--dry-run")
    dry = vitrail(*words)
    lines = dry.out.splitlines()
    assert dry.code == 0 and len(lines) <= 25
    assert lines[0].startswith("Expected on this machine: ") and any(line.startswith("steps ") for line in lines)
    assert re.fullmatch(r"All \d+ lines: --dry-run --full, or --dry-run --out plan\.toml for --plan\.", lines[-1])
    kept = vitrail(*words, "--out", tmp_path / "plan.toml")
    assert kept.code == 0 and kept.out.endswith(f"vitrail train --plan {tmp_path / 'plan.toml'}\n")
    assert "steps = 3" in (tmp_path / "plan.toml").read_text() and list(tmp_path.iterdir()) == [tmp_path / "plan.toml"]
    again = vitrail(*words, "--out", tmp_path / "plan.toml")
    assert again.code == 2 and "is not overwritten" in again.err
    wrong = vitrail("train", flowers, "--full")
    assert wrong.code == 2 and "--full prints the whole plan of a --dry-run." in wrong.err


@pytest.mark.wide
def test_both_tables_of_the_report_count_the_same_pictures(vitrail, flowers, tmp_path):
    folder = tmp_path / "beds"
    shutil.copytree(flowers, folder)
    (folder / "disc" / "1.png").write_bytes(b"no picture")
    answer = vitrail("train", folder, *TINY, "--steps", 2, "--skip-bad", "--out", tmp_path / "run")
    assert answer.code == 0, answer.err
    by_class = json.loads((tmp_path / "run" / "check.json").read_text())["class_counts"]
    by_split = {one["split"]: one["n"] for one in json.loads((tmp_path / "run" / "report.json").read_text())["counts"]}
    assert {split: sum(counts.values()) for split, counts in by_class.items()} == by_split
    assert sum(by_split.values()) == 9


def test_no_folder_of_this_machine_is_in_the_report_and_no_name_in_a_tooltip(run_folder):
    page = (run_folder / "report.html").read_text()
    assert str(run_folder.parent) not in page and not re.search(r'"/(tmp|home|root|work)/', page)
    assert "<figure title" not in page and '<span class="id">' in page


def test_formats_are_listed_before_any_work(vitrail, run_folder, tmp_path):
    listed = vitrail("export", run_folder, "--formats")
    assert listed.code == 0 and listed.out.startswith(f"{run_folder} can be written as\n  onnx         yes\n")
    generic = vitrail("export")
    assert generic.code == 0 and "  transformers no: " in generic.out and "--model.rotary none" in generic.out
    assert {one["to"] for one in json.loads(vitrail("export", run_folder, "--formats", "--json").out)} >= {"timm"}


@pytest.mark.wide
def test_an_export_leaks_no_warning_of_a_library(vitrail, run_folder, tmp_path):
    pytest.importorskip("onnxruntime")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = vitrail("export", run_folder, "--to", tmp_path / "model.onnx")
    assert answer.code == 0, answer.err
    assert answer.err == "" and [str(one.message) for one in caught] == []
    assert "--to names the format: taken for --to onnx --out" in answer.out


def test_a_command_in_a_message_does_not_run_into_the_next_sentence(vitrail, flowers, tmp_path):
    for day in ("03", "14"):
        shutil.copytree(flowers, tmp_path / "phone" / "2024" / day)
    (tmp_path / "phone" / "2024" / "03" / "clip.mov").write_bytes(b"moov")
    answer = vitrail("check", tmp_path / "phone")
    assert answer.code == 3
    assert "those are the classes: --data.class_level 3 · Left out 1 file of other kinds: 1 x .mov" in answer.err


def test_folders_beside_those_of_the_classes_may_be_groups(vitrail, flowers, tmp_path):
    for day in ("03", "14"):
        shutil.copytree(flowers, tmp_path / "phone" / day)
    words = ("check", tmp_path / "phone", "--data.class_level", 2)
    assert "there are folders such as '03'. If they are days, persons or places: --group folder" in vitrail(*words).out
    assert "days, persons or places" not in vitrail(*words, "--group", "folder").out


def test_one_folder_beside_a_workbook_has_its_labels_there(vitrail, flowers, tmp_path):
    shutil.copytree(flowers / "disc", tmp_path / "export" / "Bilder größer")
    (tmp_path / "export" / "Ergebnisse März.xlsx").write_bytes(b"PK")
    answer = vitrail("check", tmp_path / "export")
    assert answer.code == 3
    assert "their labels seem to stand in Ergebnisse März.xlsx beside it, a workbook, which is not read" in answer.err


def test_a_row_of_sums_is_no_picture_and_counters_and_dates_are_not_proposed(vitrail, flowers, tmp_path):
    shutil.copytree(flowers, tmp_path / "bilder")
    files = sorted((tmp_path / "bilder").rglob("*.png"))
    rows = [
        f"{number};bilder/{file.parent.name}/{file.name};{file.parent.name};{'ab'[number % 2]};{number:02}.03.2024"
        for number, file in enumerate(files, 1)
    ]
    table = tmp_path / "export.csv"
    table.write_text("\n".join(["lfd. Nr.;Datei;Befund;Wer;Tag", *rows, ";Summe;10;;"]))
    answer = vitrail("check", table)
    assert answer.code == 3 and "2 columns that may be learnt: 'Befund', 'Wer'. Name one" in answer.err
    answer = vitrail("check", table, "--data.targets", "Befund")
    assert answer.code == 3 and "line 12: 'Summe' names no picture: it has no ending, as all rows above" in answer.err
    table.write_text("\n".join(["lfd. Nr.;Datei;Befund;Wer;Tag", *rows]))
    assert vitrail("check", table, "--data.targets", "Befund").code == 0
