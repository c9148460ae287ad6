"""Wrong decisions at every door: one sentence, the documented exit code, and nothing is changed."""

from __future__ import annotations

import io
import shutil

import numpy as np
import pytest
from PIL import Image

import vitrail
from stored_runs import store_run
from vitrail.checkpoints import decision_versions
from vitrail.cli.main import main
from vitrail.errors import DamagedFileError, UsageError
from vitrail.files import checksums
from vitrail.services.deciding import DecisionRequest, decide

DOORS = {
    "predict": ("predict", "{run}", "{picture}"),
    "predict, in parts": ("predict", "{run}", "{picture}", "--to", "{run}/answers.csv", "--part-size", "64"),
    "explain": ("explain", "{run}", "{picture}", "--to", "{run}/maps"),
    "embed": ("embed", "{run}", "{picture}", "--to", "{run}/features.npy"),
    "export": ("export", "{run}", "--to", "pt2"),
    "decide": ("decide", "{run}"),
    "decide, use": ("decide", "{run}", "--use", "clinic"),
    "decide, into": ("decide", "{run}", "--into", "{run}/exports/model.onnx"),
    "serve": ("serve", "{run}", "--port", "0", "--threads", "1", "--workers", "1"),
}


def picture(folder) -> str:
    file = io.BytesIO()
    Image.fromarray(np.zeros((12, 8), np.uint8)).save(file, "PNG")
    (folder / "a.png").write_bytes(file.getvalue())
    return str(folder / "a.png")


def refused_at(door: str, run, capsys) -> tuple[int, str]:
    """The exit code and the sentence of a command."""
    words = [word.format(run=run, picture=picture(run.parent)) for word in DOORS[door]]
    before = {path: path.read_bytes() for path in (run / "model").rglob("*") if path.is_file()}
    capsys.readouterr()
    code = main(words)
    lines = capsys.readouterr().err.strip().splitlines()
    assert {path: path.read_bytes() for path in (run / "model").rglob("*") if path.is_file()} == before
    return code, next(line for line in lines if line.startswith("vitrail: "))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """A run whose decision in use has another threshold than when it was written."""
    run = store_run(tmp_path_factory.mktemp("damaged") / "run")
    decide(run, DecisionRequest(at={"defect": 0.3}), keep="clinic", use="clinic")
    file = run / "model" / "decisions" / "clinic.json"
    file.write_bytes(file.read_bytes().replace(b"0.3", b"0.4"))
    return run


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """A run whose decision in use is that of labels, though it answers classes."""
    folder = tmp_path_factory.mktemp("foreign")
    run, other = store_run(folder / "run"), store_run(folder / "other", "multilabel")
    decide(other, DecisionRequest(rule="youden"), keep="clinic")
    inside = run / "model" / "decisions"
    (inside / "use").mkdir(parents=True)
    shutil.copy(other / "model" / "decisions" / "clinic.json", inside / "clinic.json")
    checksums.add_to_manifest(run / "model", inside / "clinic.json")
    listed = checksums.verify_manifest(run / "model")
    decision_versions.add_use_record(run / "model", "clinic", "", "now", listed)
    return run


@pytest.mark.parametrize("door", DOORS)
def test_a_damaged_decision_is_refused_at_every_door(door, damaged, capsys):
    code, said = refused_at(door, damaged, capsys)
    assert code == 4 and "Checksum mismatch in" in said and "clinic.json" in said


@pytest.mark.parametrize("door", DOORS)
def test_a_decision_of_another_task_is_refused_at_every_door(door, foreign, capsys):
    code, said = refused_at(door, foreign, capsys)
    assert code == 4 and "decides multilabel of bars, nodule, and the model answers classification of sound" in said


def test_python_and_the_report_refuse_them_too(damaged, foreign):
    from vitrail.report.decision_section import decide_run
    from vitrail.report.provenance import ReportFacts, write_facts

    for run, words in ((damaged, "Checksum mismatch"), (foreign, "decides multilabel")):
        with pytest.raises(DamagedFileError, match=words):
            vitrail.open(run).predict([np.zeros((12, 8), np.uint8)])
        facts = ReportFacts(
            title="", source="", counts=(), classes=("sound", "defect"), model="", parameters=1, seconds=1.0, steps=1,
            images_seen=1, images_per_second=1.0, command="", plan="",
        )  # fmt: skip
        write_facts(run, facts)
        with pytest.raises(DamagedFileError, match=words):
            decide_run(run)


@pytest.mark.parametrize(("words", "code", "said"), [
    (("--use", "gone"), 2, "No decision 'gone' is kept in"),
    (("--at", "scratch=0.3"), 2, "--at must name one of the classes sound, defect. Got 'scratch'."),
    (("--rule", "f1", "--positive", "defect"), 3, "The rule 'f1' takes 10 validation pictures with defect and 10"),
    (("--into", "x.txt"), 2, "--into takes a file that vitrail export wrote, NAME.onnx or NAME.pt2. Got x.txt."),
    (("--into", "gone.onnx"), 2, "There is no gone.onnx to write a decision into."),
    (("--into", "a.onnx", "--rule", "f1", "--positive", "defect"), 2, "--into writes the decision in use into a.onnx"),
])  # fmt: skip
def test_decide_says_in_one_sentence_what_is_wrong(words, code, said, tmp_path, capsys):
    run = store_run(tmp_path / "run", share=0.01)
    assert main(["decide", str(run), *words]) == code
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not (run / "model" / "decisions").exists()


def test_a_file_of_numbers_has_no_decision_to_change(tmp_path):
    run = store_run(tmp_path / "run", "regression")
    with pytest.raises(UsageError, match="gives numbers and decides nothing"):
        decide(run, DecisionRequest(), into=run / "model.onnx")
