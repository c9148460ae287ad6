"""Good pictures that are taught to a run and forgotten again: the same bytes, versions, every door, wrong input."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from good_parts import MACHINE, draw_part, draw_parts, save_weights
from vitrail.checkpoints import bundle, bundle_weights
from vitrail.cli.main import main
from vitrail.data.parallel import ImageName
from vitrail.data.preprocess import preprocess_image
from vitrail.data.settings import DataSettings
from vitrail.errors import DamagedFileError, DataError, UsageError
from vitrail.files.atomic import sha256
from vitrail.predict.kept_decisions import read_kept_decisions
from vitrail.predict.predictor import Predictor
from vitrail.report.page import build_report
from vitrail.serve.served_model import load_served_model
from vitrail.services.bank_versions import read_forget_list, require_good_folders, teach
from vitrail.services.deciding import DecisionRequest, decide
from vitrail.train import fit as training
from vitrail.train.calibration_file import read_calibration
from vitrail.train.request import TrainRequest
from vitrail.train.seen_images import read_seen_images


def fit(run: Path, source: Path, weights: Path, **data: Any) -> Path:
    settings = DataSettings(source=str(source), task="anomaly", **data)
    list(training.fit(TrainRequest(data=settings, weights=str(weights)), MACHINE, run))
    return run


def draw(folder: Path, seeds: Sequence[int], spot: bool = False) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{seed}.png" for seed in seeds]
    for path, seed in zip(paths, seeds, strict=True):
        Image.fromarray(draw_part(seed, spot)).save(path)
    return paths


def record_of(run: Path, name: str) -> dict[str, object]:
    content: dict[str, object] = json.loads((run / "model" / "decisions" / f"{name}.json").read_text())
    return content


def scores_of(predictor: Predictor, paths: Sequence[Path]) -> np.ndarray:
    scores = predictor.predict(paths).scores  # type: ignore[union-attr]
    assert isinstance(scores, np.ndarray)
    return scores


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 good pictures."""
    root = tmp_path_factory.mktemp("teaching")
    return fit(root / "run", draw_parts(root / "parts"), save_weights(root / "theirs"))


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def test_what_is_forgotten_leaves_the_bytes_of_a_bank_that_never_had_it(run: Path, tmp_path: Path):
    kept, gone = draw(tmp_path / "kept", [50, 51]), draw(tmp_path / "gone", [60, 61, 62])
    other = shutil.copytree(run, tmp_path / "other")
    teach(run, kept, keep="never")
    teach(other, gone, keep="with")
    both = teach(other, kept, keep="both")
    assert (both.pictures, both.added) == (17, 2)
    back = teach(other, forget=["60.png", "61.png", "62.png"], keep="again")
    assert (back.pictures, back.forgotten, back.before) == (14, 3, "both")
    one, two = (folder / "model" / "decisions" for folder in (run, other))
    assert sha256(one / "never.safetensors") == sha256(two / "again.safetensors")
    assert sha256(one / "never.safetensors") != sha256(two / "both.safetensors")
    never, again = record_of(run, "never"), record_of(other, "again")
    for key in ("bank", "pictures", "task", "classes", "data"):
        assert never[key] == again[key]
    decisions = [dict(one["decisions"], version="") for one in (never, again)]  # type: ignore[call-overload]
    assert json.dumps(decisions[0]) == json.dumps(decisions[1])
    listed = [json.loads((folder.parent / "manifest.json").read_text())["files"] for folder in (one, two)]
    assert listed[0]["decisions/never.safetensors"] == listed[1]["decisions/again.safetensors"]
    assert listed[0]["model.safetensors"] == listed[1]["model.safetensors"]
    assert (run / "bank" / "never.csv").read_bytes() == (other / "bank" / "again.csv").read_bytes()


def test_a_taught_bank_is_that_of_a_training_with_these_pictures(run: Path, tmp_path: Path):
    more = draw(tmp_path / "more", [12, 13, 14])
    larger = fit(tmp_path / "larger", draw_parts(tmp_path / "parts", good=15), save_weights(tmp_path / "theirs"))
    teach(run, more)
    one, two = (bundle_weights.load_bundle(folder / "model") for folder in (run, larger))
    assert one.architecture == two.architecture and one.architecture.bank_size == 15 * 64
    rows = [each.model.state_dict()["head.bank.rows"].numpy().tobytes() for each in (one, two)]
    assert rows[0] == rows[1]
    now, then = Predictor.open(run).decisions, Predictor.open(larger).decisions
    assert (now.calibration, now.alpha) == (then.calibration, then.alpha) and now.alpha == pytest.approx(1 / 16)
    teach(larger, forget=[f"train/good/{seed}.png" for seed in (12, 13, 14)])
    assert (
        Predictor.open(larger).decisions.calibration
        == read_kept_decisions(run / "model").by_name["training"].calibration
    )
    scores, _ = read_calibration(run / "bank" / "bank-1.csv")
    assert tuple(sorted(scores.tolist())) == now.calibration


def test_every_door_follows_the_version_in_use(run: Path, tmp_path: Path):
    pictures, more = draw(tmp_path / "in", [70, 71]), draw(tmp_path / "more", [50, 70, 71])
    opened = vitrail.open(run)
    before = scores_of(opened.predictor, pictures)
    result = opened.teach([str(path) for path in more])
    assert result.version == "bank-1" and result.before == "training" and result.path is not None
    fresh = Predictor.open(run)
    after = scores_of(fresh, pictures)
    assert (after < 1e-3).all() and (before > 1e-2).all()  # they are in the bank now
    np.testing.assert_allclose(scores_of(opened.predictor, pictures), after, atol=1e-6)
    assert fresh.decisions.version == opened.predictor.decisions.version == "bank-1"
    assert len(fresh.decisions.calibration) == 15
    served = load_served_model(str(run), "parts", "cpu", "float32", 1, {}, lambda: None)
    images = [preprocess_image(path, served.spec) for path in pictures]
    names = [ImageName(str(path), path.name) for path in pictures]
    mixed = [served.choose_decision("training"), served.choose_decision(None)]
    rows = served.predict_batch(names, torch.stack(images), mixed).rows
    assert rows[0]["score"] == pytest.approx(before[0], abs=1e-4)
    assert rows[1]["score"] == pytest.approx(after[1], abs=1e-4)
    teach(run, use="training")
    served.reload_decisions()
    rows = served.predict_batch(names, torch.stack(images), [served.choose_decision(None)] * 2).rows
    np.testing.assert_allclose([row["score"] for row in rows], before, atol=1e-4)
    np.testing.assert_allclose(scores_of(opened.predictor, pictures), before, atol=1e-6)


@pytest.mark.wide
def test_an_exported_file_has_the_bank_in_use_and_an_older_one_is_named(run: Path, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    from vitrail.services.predict_file import open_file_predictor

    opened, pictures = vitrail.open(run), draw(tmp_path / "in", [70, 271])
    opened.export("onnx")
    result = opened.teach(draw(tmp_path / "more", [50, 51, 52]))
    assert any("model.onnx holds the bank of before. Write it again: vitrail export" in note for note in result.notes)
    file = opened.export("onnx", out=tmp_path / "new.onnx")
    exact, from_file = opened.predict(pictures), open_file_predictor(str(file), "onnx", "cpu", {}).predict(pictures)
    np.testing.assert_allclose(from_file.scores, exact.scores, atol=1e-4)  # type: ignore[union-attr]
    assert from_file.labels == exact.labels  # type: ignore[union-attr]


def test_the_report_says_what_was_taught(run: Path, tmp_path: Path):
    teach(run, draw(tmp_path / "more", [50, 51]), by="A. Meier")
    teach(run, forget=["train/good/3.png"], keep="without-3")
    page = build_report(run).read_text()
    assert "Good pictures taught since the training" in page and "A. Meier" in page
    assert "The bank without-3 is in use now: 13 good pictures instead of 12" in page
    assert "<b>without-3</b>, in use" in page and "vitrail evaluate" in page
    teach(run, use="training")
    page = build_report(run).read_text()
    assert "is in use now" not in page and "without-3" in page and "<b>training</b>, in use" in page


def test_an_evaluation_knows_that_taught_pictures_were_learnt_from(run: Path, tmp_path: Path):
    before = read_seen_images(run)
    teach(run, draw(tmp_path / "more", [50, 51]))
    after = read_seen_images(run)
    assert before is not None and after is not None and len(after.train) == len(before.train) + 2


def test_another_alpha_makes_a_version_too(run: Path):
    result = teach(run, alpha=0.25, keep="loose")
    assert result.alpha == 0.25 and result.alpha_before == pytest.approx(1 / 13)
    assert result.alarm_score < result.alarm_score_before and result.pictures == 12
    assert teach(run, forget=["train/good/3.png"]).alpha == 0.25  # until another one is asked for


@pytest.mark.wide
def test_groups_are_taught_one_at_a_time(tmp_path: Path):
    source = tmp_path / "parts"
    paths = draw(source, range(12))
    lines = ["path,label,lot", *(f"{path.name},good,lot-{seed % 4}" for seed, path in enumerate(paths))]
    (source / "parts.csv").write_text("\n".join(lines) + "\n")
    run = fit(
        tmp_path / "run", source / "parts.csv", save_weights(tmp_path / "theirs"), group="lot", targets=("label",)
    )
    more = draw(tmp_path / "more", [50, 51, 52])
    with pytest.raises(UsageError, match=r"is of whole groups, such as 'lot-\d'.*--group NAME"):
        teach(run, more)
    assert Predictor.open(run).decisions.alpha == pytest.approx(1 / 5)
    result = teach(run, more, group="lot-9")
    assert result.alpha == pytest.approx(1 / 6) and result.pictures == 15
    assert teach(run, draw(tmp_path / "again", [53]), group="lot-9").alpha == pytest.approx(1 / 6)


def test_the_command_teaches_forgets_and_goes_back(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    draw(tmp_path / "more", [50, 51])
    assert main(["teach", str(run), str(tmp_path / "more"), "--by", "A. Meier"]) == 0
    shown = capsys.readouterr()
    assert "Bank     bank-1, in use: 14 good pictures (2 added), 896 patches" in shown.out
    assert "Promise  6.67% false alarms (before: 7.69%)" in shown.out
    assert "of the 2 added pictures would have been called defects before" in shown.err
    with (run / "bank" / "bank-1.csv").open(newline="") as file:
        oddest = next(csv.DictReader(file))["id"]
    (tmp_path / "odd.csv").write_text(f"id\n{oddest}\n")
    assert main(["teach", str(run), "--forget", str(tmp_path / "odd.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["forgotten"] == 1
    assert main(["teach", str(run), "--use", "training"]) == 0
    assert "Bank     training, in use: 12 good pictures" in capsys.readouterr().out


def test_wrong_input_is_named_and_changes_nothing(run: Path, tmp_path: Path):
    before = sorted((path.name, path.stat().st_size) for path in (run / "model").rglob("*") if path.is_file())
    copy = shutil.copy(draw(tmp_path / "x", [3])[0], tmp_path / "another.png")
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    all_but_one = [f"train/good/{seed}.png" for seed in range(11)]
    cases: list[tuple[type[Exception], str, dict[str, object]]] = [
        (UsageError, "Give good pictures to add, a list to --forget", {}),
        (UsageError, "--alpha must lie between 0 and 1", {"alpha": 1.5}),
        (UsageError, "puts a version to use that is there already", {"use": "training", "alpha": 0.1}),
        (UsageError, "No decision 'other' is kept", {"use": "other"}),
        (UsageError, "letters, digits, dots", {"keep": "a/b", "alpha": 0.1}),
        (UsageError, "counts every picture by itself", {"images": [copy], "group": "lot"}),
        (DataError, r"are in the bank already.*another.png = train/good/3.png\. Nothing is left", {"images": [copy]}),
        (DataError, "broken.png", {"images": [broken]}),
        (DataError, r"has no nobody\.png to forget.*such as train/good/", {"forget": ["nobody.png"]}),
        (DataError, "1 of the good pictures .* would be left", {"forget": all_but_one}),
        (DataError, r"10 good pictures would be left, which promise 9\.09% .* --alpha 0\.091", {}),
    ]
    for kind, match, arguments in cases[:-1]:
        with pytest.raises(kind, match=match):
            teach(run, **arguments)  # type: ignore[arg-type]
    assert before == sorted((path.name, path.stat().st_size) for path in (run / "model").rglob("*") if path.is_file())
    teach(run, alpha=1 / 13, keep="holds")
    plan = run / "plan.toml"
    plan.write_text(plan.read_text().replace("alpha = 0.01", "alpha = 0.08"))
    teach(run, draw(tmp_path / "one", [55]), keep="one")
    with pytest.raises(DataError, match=cases[-1][1]):
        teach(run, forget=[f"train/good/{seed}.png" for seed in (1, 2, 3)])
    assert teach(run, forget=[f"train/good/{seed}.png" for seed in (1, 2, 3)], alpha=0.1).alpha == 0.1


def test_a_copy_among_new_pictures_is_left_out_and_named(run: Path, tmp_path: Path):
    result = teach(run, [*draw(tmp_path / "a", [3, 50]), *draw(tmp_path / "b", [50])])
    assert result.added == 1 and result.pictures == 13
    assert "2 pictures of 3 are in the bank already, or twice among these" in result.notes[0]


def test_a_lost_file_of_the_bank_is_named(run: Path, tmp_path: Path):
    teach(run, draw(tmp_path / "more", [50, 51]))
    (run / "bank" / "bank-1.safetensors").unlink()
    with pytest.raises(DamagedFileError, match="does not have 2 of the 14 pictures of the bank any more"):
        teach(run, draw(tmp_path / "yet", [52]))
    assert len(Predictor.open(run).decisions.calibration) == 14  # answers go on


def test_folders_with_defects_are_refused(tmp_path: Path):
    images = [*draw(tmp_path / "good", [1]), *draw(tmp_path / "spot", [2])]
    with pytest.raises(UsageError, match="has pictures in spot/ beside good/"):
        require_good_folders(tmp_path, images)
    require_good_folders(tmp_path, images[1:])


def test_a_list_to_forget_has_a_column_id(tmp_path: Path):
    (tmp_path / "list.csv").write_text("id,score\na.png,1\n\n")
    assert read_forget_list(tmp_path / "list.csv") == ["a.png"]
    (tmp_path / "list.csv").write_text("name\na.png\n")
    with pytest.raises(DataError, match=r"must have a column id.*\['name'\]"):
        read_forget_list(tmp_path / "list.csv")
    with pytest.raises(DataError, match="is needed at"):
        read_forget_list(tmp_path / "none.csv")


def test_decide_names_teach_and_puts_nothing_to_use(run: Path):
    teach(run, alpha=0.2, keep="loose")
    with pytest.raises(UsageError, match=r"vitrail teach .* --alpha 0\.05, PICTURES or --use NAME"):
        decide(run, DecisionRequest(), use="training")
    assert read_kept_decisions(run / "model").in_use == "loose"


def test_a_run_of_another_task_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch):
    read = bundle.read_bundle_info
    monkeypatch.setattr(
        bundle, "read_bundle_info", lambda *words, **named: replace(read(*words, **named), task="regression")
    )
    with pytest.raises(UsageError, match=r"adds good pictures to an anomaly run, and .* answers regression"):
        teach(run, alpha=0.2)
