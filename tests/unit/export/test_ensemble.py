"""Several models in one file answer as their mean does in every interface."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from exportable import DECIDED, member, pictures
from vitrail.data.preprocess import to_batch_tensor
from vitrail.errors import DamagedFileError, UsageError
from vitrail.evaluate.calibration import TargetScaling
from vitrail.evaluate.tta import TtaViews
from vitrail.export import verify
from vitrail.export.browser_page import describe_for_page
from vitrail.export.build import export_file, hash_model, make_metadata
from vitrail.export.ensemble import EnsembleModule, join_models, make_module
from vitrail.export.quantize import export_reduced_precision
from vitrail.export.sensitive_layers import measure_layers
from vitrail.export.verify import predict_with_model, verify_file
from vitrail.model.vit import ViT
from vitrail.predict import onnx_predictor
from vitrail.predict.onnx_predictor import OnnxPredictor
from vitrail.predict.predictor import Predictor, PredictorMember

KIND = "class token, learned"
CASES = [(task, decided) for task in ("classification", "multilabel") for decided in DECIDED]
CASES = [case for case in CASES if (case[1] == "labels") == (case[0] == "multilabel")] + [("regression", "nothing")]


def several(task: str = "classification", decided: str = "nothing", count: int = 3) -> list[PredictorMember]:
    """Models of other weights, normalisation, views, calibration and scaling."""
    members = []
    for place in range(count):
        one = member(KIND, task, decided, views=TtaViews(flip=place == 1))
        model = ViT(one.model.config).eval()
        generator = torch.Generator().manual_seed(place)
        model.load_state_dict(
            {
                name: tensor + 0.2 * torch.randn(tensor.shape, generator=generator)
                for name, tensor in one.model.state_dict().items()
            }
        )
        members.append(
            dataclasses.replace(
                one,
                model=model,
                spec=dataclasses.replace(one.spec, mean=(0.4 + 0.1 * place,)),
                decisions=dataclasses.replace(
                    one.decisions, temperature=tuple(t + 0.3 * place for t in one.decisions.temperature)
                ),
                scaling=one.scaling and TargetScaling((20.0 + place, 30.0, 40.0), (5.0, 1.0 + place, 0.1)),
            )
        )
    return members


def answers_of(module: EnsembleModule, predictor: Predictor, images: np.ndarray):
    """The table that a file of this module would give, and its outputs."""
    with torch.inference_mode():
        found = module(torch.from_numpy(images))
    outputs = {name: value.numpy() for name, value in zip(module.output_names, found, strict=True)}
    ids = tuple(map(str, range(len(images))))
    metadata = make_metadata(module, predictor)
    return onnx_predictor.predictions_from_outputs(metadata, outputs, ("",) * len(ids), ids), outputs


def scores_of(table) -> np.ndarray:
    return table.values if hasattr(table, "values") else table.probabilities


@pytest.mark.parametrize(("task", "decided"), CASES)
def test_the_module_says_what_the_models_say_together(task, decided):
    predictor = Predictor(several(task, decided))
    images = pictures(predictor.spec, 20)
    expected = predict_with_model(predictor, images)
    found, outputs = answers_of(make_module(predictor), predictor, images)
    np.testing.assert_allclose(scores_of(found), scores_of(expected), atol=2e-5)
    assert found.abstain_reasons == expected.abstain_reasons
    assert found.is_unlike_known == expected.is_unlike_known
    if task != "regression":
        assert found.labels == expected.labels
        logits = outputs["logits"].astype(np.float64)
        again = 1 / (1 + np.exp(-logits)) if task == "multilabel" else np.exp(logits)
        np.testing.assert_allclose(again, outputs["probabilities"], atol=1e-6)
    alone = [scores_of(predict_with_model(one, images)) for one in predictor.members]
    assert min(np.abs(one - scores_of(expected)).max() for one in alone) > 1e-3, "equal models prove no mean"


@pytest.mark.parametrize("count", [2, 3, 4])
def test_half_of_the_models_decide_that_a_picture_is_unlike_the_training(count):
    members = several(decided="unlike", count=count)
    images = pictures(members[0].spec, 60)
    distances = [one.compute_outputs(to_batch_tensor(images)).distances for one in members]
    cuts = [float(np.quantile(each, 0.4 + 0.1 * place)) + 1e-6 for place, each in enumerate(distances)]
    predictor = Predictor(
        [
            dataclasses.replace(one, decisions=dataclasses.replace(one.decisions, unlike=cut))
            for one, cut in zip(members, cuts, strict=True)
        ]
    )
    expected = predict_with_model(predictor, images).abstain_column()
    found, outputs = answers_of(make_module(predictor), predictor, images)
    assert found.abstain_column() == expected and 5 < expected.count("unlike") < 55
    votes = np.mean([each > cut for each, cut in zip(distances, cuts, strict=True)], axis=0)
    np.testing.assert_array_equal(outputs["distances"] > 0, votes >= 0.5)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("kind", "task", "decided"), [("onnx", "classification", "unlike"), ("pt2", "regression", "nothing")]
)
def test_one_file_holds_all_models_and_is_proved_against_all(kind, task, decided, tmp_path):
    predictor = Predictor(several(task, decided, count=2))
    images = pictures(predictor.spec)
    proof, resized = export_file(predictor, kind, tmp_path / f"model.{kind}", list(images), resize=kind == "pt2")
    assert proof.difference < 2e-5 and proof.num_changed == 0 and (resized is None) == (kind == "onnx")
    assert str(proof).startswith("compared on 12 pictures")
    if kind == "onnx":
        file = OnnxPredictor(tmp_path / "model.onnx", 1)
        assert file.metadata.outputs == ("probabilities", "logits", "decisions", "abstained", "distances")
        assert file.metadata.sha256 == hash_model(join_models(predictor)) != hash_model(predictor.members[0].model)
        found = scores_of(file.predict(list(images)))
        np.testing.assert_allclose(found, scores_of(predict_with_model(predictor, images)), rtol=1e-5, atol=2e-5)


def test_a_file_of_one_of_the_models_is_not_taken_for_all():
    predictor = Predictor(several())
    module = make_module(predictor.members[0])

    def run(images):
        with torch.inference_mode():
            found = module(torch.from_numpy(np.ascontiguousarray(images)))
        return {name: value.numpy() for name, value in zip(module.output_names, found, strict=True)}

    with pytest.raises(DamagedFileError, match="answers otherwise than the run: scores differ by up to"):
        verify_file(run, make_metadata(module, predictor.members[0]), predictor, pictures(predictor.spec))


@pytest.mark.wide
@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_fewer_bits_are_compared_with_all_models_and_layers_have_names_of_their_own(precision, tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "MIN_AGREEMENT", 0.0)
    predictor = Predictor(several(count=2))
    images = pictures(predictor.spec)
    names = [layer.name for layer in measure_layers(predictor, images)]
    assert len(names) == len(set(names)) == 2 * len(measure_layers(Predictor(predictor.members[:1]), images))
    assert {name.partition(".")[0] for name in names} == {"0", "1"}
    with torch.no_grad():
        predictor.members[1].model.encoder.blocks[0].mlp.fc1.bias[0] = 5e4
    agreed = export_reduced_precision(predictor, "onnx", precision, tmp_path / "model.onnx", list(images), list(images))
    assert agreed.num_images == 12 and (tmp_path / "model.onnx").is_file()
    if precision == "float16":
        assert any(name.startswith("1.encoder.blocks.0.mlp.") for name in agreed.kept)
        assert not any(name.startswith("0.") for name in agreed.kept) and agreed.difference < 0.05


def test_models_of_which_some_cannot_vote_are_refused_in_a_sentence():
    told, blind = several(decided="unlike", count=2), several(count=1)
    with pytest.raises(UsageError, match=r"^Of 3 models that answer together 1 cannot tell which pictures are unlike"):
        make_module(Predictor([*told, *blind]))


def test_numbers_too_large_for_float32_stay_float64():
    members = [
        dataclasses.replace(one, scaling=TargetScaling((1.7e9,) * 3, (5.0,) * 3)) for one in several("regression")
    ]
    predictor = Predictor(members)
    images = pictures(predictor.spec)
    found, outputs = answers_of(make_module(predictor), predictor, images)
    assert outputs["values"].dtype == np.float64 and outputs["logits"].dtype == np.float32
    np.testing.assert_allclose(found.values, predict_with_model(predictor, images).values, rtol=1e-12)


def test_the_page_says_of_all_models_what_the_server_says():
    described = describe_for_page(Predictor(several(decided="unlike")), "x", "")
    assert described["unlike"] and not described["calibrated"] and described["answered"] == "no"
    assert describe_for_page(Predictor(several(decided="calibrated")), "x", "")["calibrated"]
