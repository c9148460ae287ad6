"""Cases behind every interface: one good picture among three useless ones, from the training to the exported file."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail as package
from served import asked, form, reading
from serving_here import serving_here
from vitrail.cli.main import main
from vitrail.errors import UsageError
from vitrail.evaluate.cases import CasePool
from vitrail.evaluate.predictions import read_class_predictions_csv
from vitrail.predict.predictor import Predictor
from vitrail.report.provenance import read_facts
from vitrail.services.evaluation import load_held_out

WORDS = (
    "--data.targets", "label", "--group", "part", "--weights", "none", "--model", "vit_mu_patch8_16", "--steps", "60",
    "--recipe.batch_size", "64", "--compute.threads", "1", "--compute.num_workers", "0", "--data.val_fraction", "0.4",
    "--data.test_fraction", "0.3", "--recipe.flip", "false", "--recipe.tta_flip", "false", "--recipe.mixup", "0",
    "--recipe.patch_keep_rate", "1", "--recipe.evaluate_every", "60", "--decisions.positive", "defect",
)  # fmt: skip


def draw_parts(folder: Path, cases: int = 100) -> Path:
    """Pictures of 16 x 16 and a manifest: one of each part has a bright or dark half, three are grey."""
    generator, rows = np.random.default_rng(0), []
    folder.mkdir()
    for case in range(cases):
        for k, place in enumerate(generator.permutation(4).tolist()):
            grey = np.full((16, 16), generator.uniform(100, 156))
            if k == 0:
                grey[:, 8:] += generator.uniform(40, 90) * (1 if case % 2 else -1)
            name = f"{case:03d}-{place}.png"
            Image.fromarray(grey.clip(0, 255).astype(np.uint8)).save(folder / name)
            rows.append((name, "defect" if case % 2 else "sound", f"p{case:03d}", "good" if k == 0 else "useless"))
    with (folder / "parts.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "part", "kind"), *rows])
    return folder / "parts.csv"


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_parts(tmp_path_factory.mktemp("cases") / "parts")


@pytest.fixture(scope="module")
def run(table: Path) -> Path:
    before, out = torch.get_num_threads(), table.parents[1] / "run"
    assert main(["train", str(table), *WORDS, "--case", "attention", "--out", str(out)]) == 0
    torch.set_num_threads(before)
    return out


def test_the_good_picture_speaks_and_the_case_is_better_answered_than_its_pictures(run, table):
    pictures = read_class_predictions_csv(run / "predictions" / "test.csv")
    cases = read_class_predictions_csv(run / "predictions" / "test-cases.csv")
    kinds = {row["path"]: row["kind"] for row in read_rows(table)}
    loudest = [kinds[Path(path).name] for path in cases.paths]
    assert len(cases) == 30 and loudest.count("good") >= 20  # by chance 7 or 8
    of = {kind: [kinds[id] == kind for id in pictures.ids] for kind in ("good", "useless")}
    assert pictures.shares[of["good"]].mean() > 2 * pictures.shares[of["useless"]].mean()
    metrics = {name: json.loads((run / f"metrics-{name}.json").read_text()) for name in ("test", "test-cases")}
    assert metrics["test-cases"]["n"] == 30 and metrics["test"]["n"] == 120 and metrics["test"]["groups"] == 30
    assert metrics["test-cases"]["auroc"] > metrics["test"]["auroc"] + 0.15
    assert metrics["test-cases"]["accuracy_interval"][0] < metrics["test-cases"]["accuracy"]


def test_no_case_has_pictures_in_two_splits(run):
    names = {}
    for split in ("val", "test"):
        names[split] = set(read_class_predictions_csv(run / "predictions" / f"{split}.csv").case_names)
    labelled = load_held_out(run, "train")
    names["train"] = set(labelled.source.groups[labelled.rows].tolist())
    assert [len(names[split]) for split in ("train", "val", "test")] == [30, 40, 30]
    assert len(set.union(*names.values())) == 100


def test_official_splits_that_part_a_case_are_refused(table, tmp_path, capsys):
    lines = table.read_text().splitlines()
    splits = [
        "split",
        *("test" if number < 30 else "train" for number in range(len(lines) - 1)),
    ]  # in the midst of a part
    parted = table.with_name("parted.csv")
    parted.write_text("\n".join(f"{line},{split}" for line, split in zip(lines, splits, strict=True)))
    assert main(["train", str(parted), *WORDS, "--case", "mean", "--out", str(tmp_path / "run")]) == 3
    assert "Group p007 has pictures in" in capsys.readouterr().err


def test_card_report_and_results_show_cases_beside_pictures(run):
    card, page = ((run / name).read_text() for name in ("model/README.md", "report.html"))
    for text in (card, page):
        assert "Per case" in card and "30 cases" in page and "weighted by attention" in text
    assert read_facts(run).case_pool.method == "attention"
    rows = {row["split"] for row in read_rows(run / "results.csv")}
    assert rows == {"val", "val-cases", "test", "test-cases"}


def test_evaluate_predict_and_python_answer_cases_as_the_training_did(run, table, tmp_path, capsys):
    stored = read_class_predictions_csv(run / "predictions" / "test-cases.csv")
    assert main(["evaluate", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cases"]["n"] == 30
    assert main(["evaluate", str(run)]) == 0
    assert "120 pictures" in (told := capsys.readouterr().out) and "30 cases" in told
    assert main(["predict", str(run), str(table), "--group", "part", "--to", str(tmp_path / "answers.csv")]) == 0
    assert "100 cases written to" in capsys.readouterr().out
    cases = read_class_predictions_csv(tmp_path / "cases.csv")
    places = [cases.ids.index(name) for name in stored.ids]
    np.testing.assert_allclose(cases.probabilities[places], stored.probabilities, atol=1e-5)
    pictures = read_class_predictions_csv(run / "predictions" / "test.csv")
    found = package.open(run).predict(list(pictures.paths), groups=pictures.case_names)
    np.testing.assert_allclose(found.cases.probabilities, stored.probabilities, atol=1e-5)
    np.testing.assert_allclose(found.shares, pictures.shares, atol=1e-5)
    assert found.cases.ids == stored.ids and found.cases.labels == stored.labels
    for bad in ([], ["a"]):
        with pytest.raises(UsageError, match="needs the name of its case"):
            package.open(run).predict(list(pictures.paths), groups=bad)


def test_a_folder_for_each_case_is_a_case(run, table, tmp_path, capsys):
    for name in ("000-0.png", "000-1.png", "001-0.png"):
        folder = tmp_path / "patients" / name[:3]
        folder.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes((table.parent / name).read_bytes())
    (tmp_path / "patients" / "001" / "bad.png").write_bytes(b"no picture")
    words = ["predict", str(run), str(tmp_path / "patients"), "--group", "folder", "--to", str(tmp_path / "a.csv")]
    assert main([*words, "--skip-bad"]) == 0
    assert [Path(name).name for name in read_class_predictions_csv(tmp_path / "cases.csv").ids] == ["000", "001"]


def test_the_server_answers_the_pictures_of_a_form_as_a_case():
    member = reading()
    query = tuple(np.linspace(-1, 1, member.model.config.width).tolist())
    member = replace(member, case_pool=CasePool(method="attention", query=query, temperature=(1.5,)))
    files = []
    for seed in range(3):
        file = io.BytesIO()
        pixels = np.random.default_rng(seed).integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file, "PNG")
        files.append((f"{seed}.png", file.getvalue()))
    expected = Predictor([member])
    table = expected.add_cases(expected.predict([data for _, data in files]), ["p"] * 3)
    with serving_here(member) as here:
        answer = asked(here.port, "/predict?case=p", *form(*files)).json
        (row,), case = table.cases.records(), answer["case"]
        assert (
            case["id"] == "p" and case["path"] == files[int(table.shares.argmax())][0] and case["label"] == row["label"]
        )
        assert case["probability"] == pytest.approx(row["probability"], abs=1e-4)
        assert [one["share"] for one in answer["rows"]] == pytest.approx(table.shares.tolist(), abs=1e-4)
        assert asked(here.port, "/about").json["cases"] == "attention"
        lacking = asked(here.port, "/predict?case=p", *form(*files, ("a.txt", b"text"))).json
        assert lacking["case"]["status"] == 415 and "The case lacks a.txt" in lacking["case"]["error"]
        assert "share" not in lacking["rows"][0] and "label" in lacking["rows"][0]
        for body, headers, path in ((files[0][1], {}, "/predict?case=p"), (*form(*files), "/predict?case=")):
            assert asked(here.port, path, body, headers).status == 400
    with serving_here() as here:
        refused = asked(here.port, "/predict?case=p", *form(*files))
        assert refused.status == 422 and "answers each picture by itself" in refused.json["error"]


@pytest.mark.wide
def test_an_exported_file_pools_cases_as_the_run_does(run, tmp_path):
    pytest.importorskip("onnxruntime")
    from vitrail.export.case_file import CaseFile
    from vitrail.predict.onnx_predictor import OnnxPredictor

    done = package.open(run).export("onnx", tmp_path / "model.onnx")
    assert (tmp_path / "model-cases.onnx").is_file(), done
    stored = read_class_predictions_csv(run / "predictions" / "test-cases.csv")
    pictures = read_class_predictions_csv(run / "predictions" / "test.csv")
    rows = [row for row, name in enumerate(pictures.case_names) if name == stored.ids[3]]
    images = np.stack([np.array(Image.open(pictures.paths[row]))[..., None] for row in rows])
    answer = CaseFile(tmp_path / "model-cases.onnx").run(OnnxPredictor(tmp_path / "model.onnx").run(images))
    np.testing.assert_allclose(answer["probabilities"][0], stored.probabilities[3], atol=1e-4)
    np.testing.assert_allclose(answer["shares"], pictures.shares[rows], atol=1e-4)
    assert answer["decisions"].tolist() == [int(stored.indices[3])]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--case", "mean", "--group", ""], "have no groups"),
        (["--case", "median"], "median"),
        (["--case", "mean", "--group", "kind"], "has pictures of defect and of sound: group them by another column"),
        (["--case", "mean", "--folds", "3"], "--folds trains several"),
        (["--case", "attention", "--data.val_fraction", "0.1"], "takes 20 of them; there are 10"),
        (["--case", "mean", "--decisions.case", "max"], "are the same setting"),
    ],
)
def test_what_cannot_be_had_is_refused_before_anything_is_trained(table, tmp_path, capsys, words, said):
    base = list(WORDS)
    for flag in set(words) & {"--group", "--data.val_fraction"}:
        place = base.index(flag)
        del base[place : place + 2]
    words = [word for word in words if word != ""] if "" not in words else words[:2]
    assert main(["train", str(table), *base, *words, "--out", str(tmp_path / "run")]) in (2, 3)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_model_of_pictures_alone_says_so(run, table, tmp_path, capsys):
    plain = shutil.copytree(run, tmp_path / "plain")
    bundle = json.loads((plain / "model" / "config.json").read_text())
    assert bundle["info"].pop("cases")["method"] == "attention"
    from vitrail.checkpoints import bundle_weights

    loaded = bundle_weights.load_bundle(run / "model")
    shutil.rmtree(plain / "model")
    bundle_weights.save_bundle(
        plain / "model", loaded.model, loaded.spec, loaded.task, loaded.classes, bundle["info"], loaded.feature_stats
    )
    words = ["predict", str(plain), str(table), "--group", "part", "--to", str(tmp_path / "a.csv")]
    assert main(words) == 2
    assert "answers each picture by itself" in capsys.readouterr().err
    assert main(["predict", str(run), str(table), "--group", "part"]) == 2
    assert "say where with --to FILE" in capsys.readouterr().err
    assert main(["predict", str(run), str(table.parent), "--group", "part", "--to", str(tmp_path / "a.csv")]) == 2
    assert "a column of one manifest" in capsys.readouterr().err
