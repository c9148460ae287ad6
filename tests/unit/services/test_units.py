"""What a bundle notes beside the weights goes into the head for other libraries: the units of numbers, temperature."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail import config
from vitrail.checkpoints import bundle, bundle_weights
from vitrail.errors import UsageError
from vitrail.evaluate.calibration import SCALING_KEY, TargetScaling
from vitrail.evaluate.decisions import DECISIONS_KEY, Decisions
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.services.conversion import convert_model, fold_scaling_into_head
from vitrail.services.exporting import export_model
from vitrail.services.open_model import find_model
from vitrail.services.prediction import open_predictor
from vitrail.spec import ImageSpec

SHAPE = ViTConfig(image_size=(32, 32), patch=(16, 16), width=128, depth=1, heads=2, mlp_width=16, outputs=2)
SCALE = TargetScaling((300.0, -2.0), (40.0, 0.25))
IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_the_scale_moves_into_the_head():
    model = create_model(SHAPE).eval()
    with torch.inference_mode():
        plain, scaled = model(IMAGES).numpy(), fold_scaling_into_head(model, SCALE)(IMAGES).numpy()
        np.testing.assert_allclose(scaled, SCALE.unstandardize(plain), rtol=1e-5)
        np.testing.assert_array_equal(model(IMAGES).numpy(), plain)


def test_both_heads_of_a_distilled_model_take_it_up():
    shape = {**vars(SHAPE), "distillation_token": True, "distillation_head": True}
    model = create_model(ViTConfig(**shape)).eval()
    with torch.inference_mode():
        np.testing.assert_allclose(
            fold_scaling_into_head(model, SCALE)(IMAGES), SCALE.unstandardize(model(IMAGES).numpy()), rtol=1e-5
        )


def test_a_head_without_a_bias_is_refused():
    with pytest.raises(UsageError, match=r"head has none\. Convert it to a bundle"):
        fold_scaling_into_head(create_model(ViTConfig(**{**vars(SHAPE), "head_bias": False})), SCALE)


def test_a_converted_model_answers_in_units_and_a_bundle_keeps_its_scale(tmp_path):
    model = create_model(SHAPE).eval()
    with torch.no_grad():
        model.head.linear.weight.normal_(0, 0.1)
    info = {SCALING_KEY: SCALE.to_json()}
    bundle_weights.save_bundle(
        tmp_path / "kept", model, ImageSpec(height=32, width=32), "regression", ("power", "tilt"), info
    )
    convert_model(find_model(str(tmp_path / "kept")), "timm", tmp_path / "timm")
    convert_model(find_model(str(tmp_path / "kept")), "bundle", tmp_path / "again")
    assert bundle.read_bundle_info(tmp_path / "again").info[SCALING_KEY] == SCALE.to_json()
    with torch.inference_mode():
        theirs = find_model(str(tmp_path / "timm")).model(IMAGES)
        np.testing.assert_allclose(theirs, SCALE.unstandardize(model(IMAGES).numpy()), rtol=1e-5)


def calibrated(folder, task="classification", temperature=(2.5,), **info):
    """A bundle of two outputs that differ from picture to picture, with a temperature."""
    model = create_model(SHAPE).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim > 1:
                weights.normal_(0, 0.3, generator=generator)
    info |= {DECISIONS_KEY: config.write(Decisions(temperature=temperature))}
    bundle_weights.save_bundle(folder, model, ImageSpec(height=32, width=32), task, ("cat", "dog"), info)
    return folder


@pytest.mark.parametrize(("task", "temperature"), [("classification", (2.5,)), ("multilabel", (2.5, 0.4))])
def test_a_temperature_moves_into_the_head_of_a_model_with_one_view(task, temperature, tmp_path):
    """F6."""
    folder = calibrated(tmp_path / "kept", task, temperature)
    done = export_model(str(folder), "timm", tmp_path / "timm")
    assert any("folded into the weights of the head" in note for note in done.notes)
    assert not any("a temperature" in note for note in done.notes)
    assert any(note.endswith("others in timm") and ": 0 of 100 " in note for note in done.notes), done.notes
    with torch.inference_mode():
        theirs, ours = (find_model(str(each)).model(IMAGES) for each in (tmp_path / "timm", folder))
    np.testing.assert_allclose(theirs, ours / torch.tensor(temperature), rtol=1e-5, atol=1e-6)
    assert convert_model(find_model(str(folder)), "bundle", tmp_path / "again").notes == ()
    assert open_predictor(tmp_path / "again", "cpu").decisions.temperature == temperature


@pytest.mark.parametrize(("to", "name"), [("torchvision", "w.pth"), ("google-npz", "w.npz"), ("transformers", "w")])
def test_a_temperature_moves_into_the_head_for_every_target(to, name, tmp_path):
    done = export_model(str(calibrated(tmp_path / "kept")), to, tmp_path / name)
    assert any("folded into the weights of the head" in note for note in done.notes)
    assert any(": 0 of 100 " in note for note in done.notes), done.notes


def test_where_several_views_are_averaged_the_temperature_stays_and_the_difference_is_measured(tmp_path):
    """F6."""
    folder = calibrated(tmp_path / "kept", mirror=True)
    done = export_model(str(folder), "timm", tmp_path / "timm")
    assert any("(a temperature)" in note for note in done.notes)
    (note,) = (note for note in done.notes if note.endswith("others in timm"))
    assert float(note.split(" at most ")[1].split()[0]) > 0.01
    with torch.inference_mode():
        theirs, ours = (find_model(str(each)).model(IMAGES) for each in (tmp_path / "timm", folder))
    np.testing.assert_array_equal(theirs, ours)


@pytest.mark.parametrize("spread", [0.3, 0.0])
def test_the_mean_beside_a_class_token_is_written_for_transformers(spread, tmp_path):
    """F16: its classifier of DINOv2 reads the class token too, with weights of 0."""
    model = create_model(ViTConfig(**{**vars(SHAPE), "mlp_width": 256, "pool": "mean"})).eval()
    with torch.no_grad():
        model.head.linear.weight.normal_(0, spread, generator=torch.Generator().manual_seed(2))
    bundle_weights.save_bundle(
        tmp_path / "kept", model, ImageSpec(height=32, width=32), "classification", ("cat", "dog"), {}
    )
    convert_model(find_model(str(tmp_path / "kept")), "transformers", tmp_path / "there")
    there = find_model(str(tmp_path / "there"))
    assert there.config.pool == "class+mean"
    with torch.inference_mode():
        np.testing.assert_allclose(there.model(IMAGES), model(IMAGES), rtol=1e-5, atol=1e-6)
