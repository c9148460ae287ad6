"""Decisions are named tensors of an exported file, which change alone."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest

from exportable import member, pictures
from vitrail.errors import DamagedFileError, UsageError
from vitrail.evaluate.decisions import Decisions
from vitrail.export import build
from vitrail.export.build import export_file, hash_model
from vitrail.export.redecide import rewrite_onnx, rewrite_pt2
from vitrail.export.verify import predict_with_model, verify_file
from vitrail.predict.predictor import PredictorMember

ONNX = pytest.importorskip("onnx")
TWO = [
    Decisions(temperature=(1.1,), thresholds=(0.7,), chosen=(True,), positive="cat", version="cat"),
    Decisions(temperature=(1.1,), version="likeliest"),
    Decisions(temperature=(1.1,), sure=0.6, prior_ratio=(0.4, 1.6), version="shifted"),
    Decisions(temperature=(1.1,), thresholds=(0.52,), chosen=(True,), positive="dog"),
]
LABELS = [
    Decisions(temperature=(0.5, 1.0, 2.0), thresholds=(0.3, 0.9, 0.6), chosen=(True,) * 3, version="other"),
    Decisions(temperature=(0.5, 1.0, 2.0), prior_ratio=(0.2, 1.0, 5.0), version="shifted"),
]


def decided(one: PredictorMember, decisions: Decisions) -> PredictorMember:
    return dataclasses.replace(one, decisions=decisions)


def tensors(path) -> dict[str, str]:
    graph = ONNX.load(path).graph
    return {each.name: hashlib.sha256(each.SerializeToString()).hexdigest() for each in graph.initializer}


def rewritten(path, one, images, rewrite=rewrite_onnx):
    """Write the member's decisions into a file and compare it with the member; returns what was said."""
    told = rewrite(path, one.decisions, hash_model(one.model))
    path.write_bytes(told.data)
    file = build.reopen_file(path, path.suffix[1:])
    proof = verify_file(file.run, file.metadata, one, images)
    assert proof.num_changed == 0 and file.metadata.decision == one.decisions.version == told.metadata.decision
    return told, file


@pytest.mark.wide
@pytest.mark.parametrize(
    ("task", "name", "versions"), [("classification", "positive", TWO), ("multilabel", "labels", LABELS)]
)
def test_an_onnx_file_follows_decision_after_decision_and_its_weights_stay(task, name, versions, tmp_path):
    one, path = member(task=task, decided=name), tmp_path / "model.onnx"
    images = pictures(one.spec, 40)
    export_file(one, "onnx", path, list(images))
    first, whole = tensors(path), path.read_bytes()
    assert {"decision.thresholds", "decision.prior_ratio"} < set(first)
    answers = set()
    for decisions in versions:
        told, file = rewritten(path, decided(one, decisions), images)
        now = tensors(path)
        changed = {each for each in first if now[each] != first[each]}
        assert changed <= {f"decision.{each}" for each in ("thresholds", "choice", "sure", "prior_ratio")}
        assert told.unchanged == sum(not each.startswith("decision.") or each.endswith("temperature") for each in first)
        expected = predict_with_model(decided(one, decisions), images)
        outputs = file.run(images)
        np.testing.assert_allclose(outputs["probabilities"], expected.probabilities, atol=2e-5)
        answers.add(outputs["decisions"].tobytes() + outputs["abstained"].tobytes())
    assert len(answers) > len(versions) // 2, "decisions that never change an answer prove nothing"
    rewritten(path, one, images)
    assert tensors(path) == first and path.read_bytes() == whole


@pytest.mark.wide
@pytest.mark.parametrize("decisions", TWO)
def test_a_package_follows_too(decisions, tmp_path):
    one, path = member(decided="positive"), tmp_path / "model.pt2"
    images = pictures(one.spec, 40)
    export_file(one, "pt2", path, list(images))
    told, _ = rewritten(path, decided(one, decisions), images, rewrite_pt2)
    assert all(each.startswith("decision.") for each in told.changed)


def test_files_that_cannot_follow_are_refused(tmp_path):
    one, path = member(decided="positive"), tmp_path / "model.onnx"
    with pytest.raises(UsageError, match=r"There is no .*model\.onnx to write a decision into"):
        rewrite_onnx(path, one.decisions, "")
    path.write_bytes(b"no model")
    with pytest.raises(DamagedFileError, match="not a whole ONNX model"):
        rewrite_onnx(path, one.decisions, "")
    program = build.capture_graph(module := build.make_module(one))
    path.unlink()
    build.write_onnx(program, build.make_metadata(module, one), path)
    with pytest.raises(UsageError, match=r"holds other weights \([0-9a-f]{8}\) than the run \(0000\)"):
        rewrite_onnx(path, one.decisions, "0000")
    model = ONNX.load(path)
    for tensor in model.graph.initializer:
        tensor.name = tensor.name.replace("decision.choice", "choice")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UsageError, match=r"no tensor decision\.choice: an older version wrote it"):
        rewrite_onnx(path, one.decisions, hash_model(one.model))
