"""Decisions behind the server: chosen by a request, followed while they change, mixed in one batch."""

from __future__ import annotations

import numpy as np
import pytest

from stored_runs import store_run
from vitrail.data.parallel import ImageName
from vitrail.predict.kept_decisions import DecisionFollower, read_kept_decisions
from vitrail.predict.predictor import Predictor
from vitrail.serve.http_errors import HttpError
from vitrail.serve.limits import ServerLimits
from vitrail.serve.served_model import ServedModel, load_served_model
from vitrail.services.deciding import DecisionRequest, decide

NAMES = [ImageName(f"{n}.png", f"{n}") for n in range(6)]


def opened(run) -> ServedModel:
    return load_served_model(str(run), "tiny", "cpu", "float32", 1, {}, lambda: None)


def test_what_is_tried_before_the_first_request_is_no_line_of_the_score_log(tmp_path):
    log = tmp_path / "scores.jsonl"
    found = load_served_model(
        str(store_run(tmp_path / "run")), "tiny", "cpu", "float32", 1, {}, lambda: None, score_log=log
    )
    assert not log.exists()
    found.predict_batch(NAMES, images_of(found))
    assert len(log.read_text().splitlines()) == len(NAMES)


def images_of(found: ServedModel) -> object:
    import torch

    generator = torch.Generator().manual_seed(0)
    spec = found.spec
    return torch.randint(0, 255, (len(NAMES), spec.channels, *spec.size), generator=generator, dtype=torch.uint8)


def test_a_batch_of_several_decisions_gives_each_picture_the_answer_of_its_own(tmp_path):
    run = store_run(tmp_path / "run")
    decide(run, DecisionRequest(at={"defect": 0.999}), keep="high")
    decide(run, DecisionRequest(prevalence={"defect": 0.9}), keep="rich")
    found = opened(run)
    images, names = images_of(found), ["training", "high", "rich", "high", "training", "rich"]
    mixed = found.predict_batch(NAMES, images, [found.choose_decision(name) for name in names])
    for place, name in enumerate(names):
        alone = found.predict_batch(NAMES, images, [found.choose_decision(name)] * len(NAMES))
        row = mixed.rows[place]
        assert row == alone.rows[place] and row["path"] == NAMES[place].path
        assert row.get("decision") == (None if name == "training" else name)
        for output, values in mixed.outputs.items():
            np.testing.assert_array_equal(values[place], alone.outputs[output][place])
    assert mixed.rows[2]["prob_defect"] > mixed.rows[4]["prob_defect"] and mixed.rows[1]["label"] == "sound"


def test_the_decision_in_use_is_followed_and_every_kept_one_may_be_asked_for(tmp_path):
    run = store_run(tmp_path / "run")
    found = opened(run)
    assert found.kept.in_use == "training" and found.choose_decision(None).version == ""
    decide(run, DecisionRequest(at={"defect": 0.3}), keep="low", use="low")
    assert found.choose_decision(None).version == "", "not read yet"
    found.reload_decisions()
    assert found.choose_decision(None).version == "low" == found.choose_decision("low").version
    told = found.describe(ServerLimits(), False)
    assert told["decision"] == "low" and told["decisions"] == ["training", "low"]
    assert told["thresholds"] == {"defect": 0.3} and "decisions_problem" not in told
    assert found.explainer_for(found.choose_decision("low")).predictor.decisions.version == "low"
    with pytest.raises(HttpError, match=r"No decision 'clinic' is kept\. There are: training, low\.$") as refused:
        found.choose_decision("clinic")
    assert refused.value.status == 422
    seen = found.kept
    found.reload_decisions()
    assert found.kept is seen, "an unchanged folder is not read again"


def test_a_damaged_decision_leaves_those_before_and_is_told(tmp_path, caplog):
    run = store_run(tmp_path / "run")
    found = opened(run)
    decide(run, DecisionRequest(at={"defect": 0.3}), keep="low", use="low")
    file = run / "model" / "decisions" / "low.json"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"0.3", b"0.9"))
    for _ in range(2):
        found.reload_decisions()
    assert found.choose_decision(None).version == ""
    assert "Checksum mismatch" in found.describe(ServerLimits(), False)["decisions_problem"]
    assert len(caplog.records) == 1 and "those before stay" in caplog.text
    with pytest.raises(HttpError, match=r"No decision 'low' is kept\. There are: training\. Checksum mismatch"):
        found.choose_decision("low")
    file.write_bytes(whole)
    found.reload_decisions()
    assert found.choose_decision(None).version == "low" and found.decisions_problem == ""


def test_a_model_without_a_folder_has_its_own_decision_alone(tmp_path):
    run = store_run(tmp_path / "run")
    found = ServedModel(Predictor.open(run), "tiny")
    found.reload_decisions()
    assert list(found.kept.by_name) == ["training"] and found.choose_decision("training") == found.predictor.decisions


def test_kept_decisions_are_read_without_the_weights(tmp_path, monkeypatch):
    run = store_run(tmp_path / "run", "multilabel")
    decide(run, DecisionRequest(rule="sensitivity 0.9"), keep="careful", use="careful", by="A. Meier")
    (run / "model" / "model.safetensors").write_bytes(
        (run / "model" / "model.safetensors").read_bytes()[:-1] + b"?"  # of the same size
    )
    kept = read_kept_decisions(run / "model")
    assert (kept.in_use, list(kept.by_name)) == ("careful", ["training", "careful"])
    assert kept.records["careful"]["by"] == "A. Meier" and kept.current.version == "careful"
    follower = DecisionFollower(run / "model")
    assert follower.poll() is not None and follower.poll() is None
