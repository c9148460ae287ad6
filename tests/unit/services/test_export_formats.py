"""What a model can be written as is said before any work, and the settings that are named make it writable."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vitrail.checkpoints import bundle_weights
from vitrail.config import override
from vitrail.errors import UsageError
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model
from vitrail.services import conversion
from vitrail.services.export_formats import find_support, list_formats
from vitrail.services.exporting import export_model
from vitrail.services.open_model import ModelInfo
from vitrail.spec import ImageSpec
from vitrail.train.plan import Plan

SMALL = replace(config_from_name("vit_femto_patch4_16"), outputs=2, channels=1)
SPEC = ImageSpec(height=16, width=16, channels=1)
INFO = ModelInfo(kind="name", config=SMALL, spec=SPEC, classes=("a", "b"))


def test_a_model_of_the_default_plan_is_writable_as_these_and_not_as_those():
    formats = {one.to: one for one in list_formats()}
    written = [name for name, one in formats.items() if not one.refusal]
    assert written == ["onnx", "openvino", "pt2", "web", "triton", "mlflow", "bundle", "timm"]
    assert "rotary" in formats["transformers"].refusal and formats["transformers"].changes == ("--model.rotary none",)
    assert formats["timm"].describe() == "timm         yes"
    said = formats["google-npz"].describe()
    assert said.startswith("google-npz   no: ") and said.endswith(" can be written so.")


@pytest.mark.parametrize("to", ["transformers", "torchvision", "google-npz"])
def test_the_settings_that_are_named_make_the_model_writable(to, tmp_path):
    support = find_support(INFO, to)
    assert support.refusal and support.changes
    words = [change.removeprefix("--").split() for change in support.changes]
    names = {"model.channels" if name == "channels" else name: text for name, text in words}
    plan = override(Plan(model=SMALL, image=SPEC), names)
    spec = replace(SPEC, channels=plan.model.channels)
    info = replace(INFO, config=plan.model, spec=spec, trained_model=create_model(plan.model).eval())
    written = conversion.convert_model(info, to, tmp_path / conversion.add_extension("model", to))
    assert written.path.exists()
    for name in names:
        with pytest.raises(UsageError):
            fewer = override(Plan(model=SMALL, image=SPEC), {one: text for one, text in names.items() if one != name})
            model = create_model(fewer.model).eval()
            less = replace(
                info, config=fewer.model, spec=replace(SPEC, channels=fewer.model.channels), trained_model=model
            )
            conversion.convert_model(less, to, tmp_path / conversion.add_extension(f"without-{name}", to))


def test_a_part_that_no_setting_changes_is_named_without_advice():
    wide = replace(SMALL, image_size=(16, 24))
    support = find_support(replace(INFO, config=wide, spec=replace(SPEC, width=24)), "torchvision")
    assert "not square (16x24)" in support.refusal and support.changes == () and support.advise() == ""


def test_a_refused_export_of_a_run_names_the_settings(tmp_path):
    (tmp_path / "plan.toml").touch()
    bundle_weights.save_bundle(tmp_path / "model", create_model(SMALL), SPEC, "classification", ("a", "b"), {})
    with pytest.raises(UsageError, match=r"rotary='axial'.* A run with --model\.rotary none can be written so\.$"):
        export_model(str(tmp_path), "transformers")


@pytest.mark.parametrize(("to", "meant"), [("x.onnx", "onnx"), ("a/b.pt2", "pt2"), ("m.npz", "google-npz")])
def test_a_file_in_the_place_of_the_format_is_taken_for_both(to, meant):
    known = ("onnx", "pt2", "google-npz")
    named = conversion.name_format(to, None, known)
    assert (named.to, str(named.out)) == (meant, to) and f"--to {meant} --out {to}" in named.note
    assert conversion.name_format(meant, None, known) == (meant, None, "")


def test_a_path_that_says_no_format_is_explained(tmp_path):
    with pytest.raises(UsageError, match=r"^--to names the format \(onnx, pt2\), and --out the file or folder\. Got"):
        conversion.name_format("out/model", None, ("onnx", "pt2"))
    with pytest.raises(UsageError, match="--to names the format"):
        conversion.name_format("a.onnx", tmp_path / "b.onnx", ("onnx", "pt2"))
    assert conversion.name_format("hub:me/x", None, ("onnx",)).to == "hub:me/x"
