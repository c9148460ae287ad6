"""The module that an exported file is made of answers and decides as the run does."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from exportable import BOTH, DECIDED, member, pictures
from kinds import KINDS
from vitrail.data.preprocess import to_batch_tensor
from vitrail.evaluate.decisions import predictions_from_outputs
from vitrail.evaluate.tta import TtaViews
from vitrail.export.build import hash_model, make_metadata
from vitrail.export.module import ExportModule
from vitrail.predict import exported, onnx_predictor

CASES = [
    *((kind, "classification", "nothing") for kind in KINDS),
    *(("class token, learned", "classification", decided) for decided in DECIDED if decided != "labels"),
    ("mean, indexed", "multilabel", "labels"),
    ("mean, indexed", "multilabel", "nothing"),
    ("class token, learned", "regression", "nothing"),
]


def told_by_run(one, images):
    outputs, distances, *_ = one.compute_outputs(to_batch_tensor(images))
    rows = [("", str(row)) for row in range(len(images))]
    return predictions_from_outputs(
        one.task, outputs, one.classes, one.scaling, rows, decisions=one.decisions, distances=distances
    ), distances  # fmt: skip


def told_by_module(one, images):
    answering = ExportModule(one)
    with torch.inference_mode():
        found = answering(torch.from_numpy(images))
    outputs = {name: value.numpy() for name, value in zip(answering.output_names, found, strict=True)}
    ids = tuple(map(str, range(len(images))))
    return onnx_predictor.predictions_from_outputs(
        make_metadata(answering, one), outputs, ("",) * len(images), ids
    ), outputs


@pytest.mark.parametrize(("kind", "task", "decided"), CASES)
def test_it_says_what_the_run_says(kind, task, decided):
    one = member(kind, task, decided)
    images = pictures(one.spec)
    expected, _ = told_by_run(one, images)
    found, outputs = told_by_module(one, images)
    scores = (lambda table: table.values) if task == "regression" else (lambda table: table.probabilities)
    np.testing.assert_allclose(scores(found), scores(expected), atol=2e-5)
    assert np.ptp(scores(found), axis=0).max() > 1e-3, "answers that never change prove nothing"
    assert found.abstain_reasons == expected.abstain_reasons
    if task != "regression":
        assert found.labels == expected.labels
    assert next(iter(outputs)) == ("values" if task == "regression" else "probabilities")


def test_unlike_pictures_are_told_by_the_same_distances():
    one = member(decided="unlike")
    images = pictures(one.spec, count=30)
    outputs = told_by_module(one, images)[1]
    _, distances = told_by_run(one, images)
    np.testing.assert_allclose(outputs["distances"], distances, rtol=1e-5)
    cut = float(np.median(distances)) + 1e-3
    one = dataclasses.replace(one, decisions=dataclasses.replace(one.decisions, unlike=cut))
    said = told_by_module(one, images)[0].abstain_column()
    assert said == told_by_run(one, images)[0].abstain_column()
    assert {"unlike"} < set(said)


def test_an_unsure_picture_is_told_and_still_has_its_likeliest_class():
    one = member(decided="unsure")
    sure = float(np.median(told_by_run(one, pictures(one.spec))[0].probabilities.max(1))) + 1e-4
    one = dataclasses.replace(one, decisions=dataclasses.replace(one.decisions, sure=sure))
    found, outputs = told_by_module(one, pictures(one.spec))
    assert 0 < sum(why == "unsure" for why in found.abstain_column()) < 12
    np.testing.assert_array_equal(outputs["decisions"], found.probabilities.argmax(1))


def test_the_positive_class_is_answered_from_its_threshold_on_and_not_from_one_half():
    one = member(decided="positive")
    images = pictures(one.spec, count=40)
    chances = told_by_run(one, images)[0].probabilities[:, 1]
    cut = float(np.sort(chances)[30] + 1e-6)
    one = dataclasses.replace(one, decisions=dataclasses.replace(one.decisions, thresholds=(cut,)))
    found, _ = told_by_module(one, images)
    np.testing.assert_array_equal(found.indices == 1, chances >= np.float32(cut))
    assert 0 < (found.indices == 1).sum() < 40


def test_every_view_is_looked_at():
    images, sideways = pictures(member().spec), TtaViews(flip=True, shift=1)
    alone, six, both = (
        told_by_module(member(views=views), images)[0].probabilities for views in (TtaViews(), sideways, BOTH)
    )
    assert np.abs(alone - both).max() > 1e-3 and np.abs(six - both).max() > 1e-3
    mirrored = told_by_module(member(), np.ascontiguousarray(images[:, :, ::-1]))[0].probabilities
    np.testing.assert_allclose(both, mirrored, atol=1e-5)


def test_the_hash_names_the_weights():
    one, other = member().model, member().model
    assert hash_model(one) == hash_model(other)
    with torch.no_grad():
        other.head.linear.bias[0] += 1e-3
    assert hash_model(one) != hash_model(other)


def test_the_module_leaves_the_model_as_it_was():
    one = member("two heads, recomputed")
    ExportModule(one)
    assert one.model.encoder.grad_checkpointing and next(one.model.parameters()).requires_grad
    assert one.model.encoder.blocks[0].attention.choice == "auto"


def test_notes_come_back_as_they_were_written():
    facts = make_metadata(ExportModule(member(decided="unlike")), member(decided="unlike"))
    assert exported.parse_metadata(facts.to_metadata(), "file") == facts
    assert facts.outputs == ("probabilities", "logits", "decisions", "abstained", "distances")
