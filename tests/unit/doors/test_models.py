from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vitrail.checkpoints import bundle
from vitrail.doors.anatomy import anatomy, seen, table
from vitrail.doors.models import bundle_of, find
from vitrail.errors import UsageError
from vitrail.explain.picture import PANES
from vitrail.model.sizes import named
from vitrail.model.vit import create
from vitrail.spec import ImageSpec


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    spec = ImageSpec(height=16, width=16, mean=(0.25,))
    bundle.save(
        tmp_path / "run" / "model",
        create(find("vit_mu_patch8_16", outputs=2).config),
        spec,
        "classes",
        ("cat", "dog"),
        {},
    )
    return tmp_path / "run"


def test_a_name_is_a_shape_without_weights():
    found = find("vit_tiny_patch16_224", image_size=(224, 320), channels=1, outputs=14)
    assert (found.kind, found.trained, found.classes) == ("name", None, ())
    assert (found.config.image_size, found.config.channels, found.config.outputs) == ((224, 320), 1, 14)
    assert found.spec.size == (224, 320)


def test_a_run_folder_and_its_bundle_are_the_same_model(kept):
    run, inside = find(str(kept)), find(str(kept / "model"))
    assert (run.kind, inside.kind) == ("run", "bundle")
    assert run.classes == inside.classes == ("cat", "dog") and run.spec.mean == (0.25,)
    assert torch.equal(run.model.head.linear.weight, inside.model.head.linear.weight)


def test_another_number_of_outputs_has_no_class_names(kept):
    assert find(str(kept), outputs=3).classes == ()


def test_a_folder_that_is_no_model_says_what_is(tmp_path):
    with pytest.raises(UsageError, match=r"must be a run folder, a bundle .* is none of them"):
        bundle_of(tmp_path)


def test_a_run_without_a_model_says_how_to_finish_it(tmp_path):
    (tmp_path / "plan.toml").touch()
    with pytest.raises(UsageError, match=rf"has no model yet\. Finish it with: vitrail train --resume {tmp_path}"):
        bundle_of(tmp_path)


def test_layout_and_heads_belong_to_files():
    with pytest.raises(UsageError, match=r"describe a weights file\. There is no file vit_tiny_patch16_224"):
        find("vit_tiny_patch16_224", heads=3)


@pytest.mark.parametrize("name", ["xray_vit_patch16_224", "explained_vit_patch20_60x100", "vit_nano_patch4_28"])
def test_parts_add_up_to_all_parameters(name):
    facts = anatomy(find(name))
    assert sum(facts["parts"].values()) == facts["parameters"] > 0
    assert facts["tokens"] == named(name).tokens


def test_the_table_says_what_a_shape_is():
    found = find("explained_vit_patch20_60x100")
    text = table(found, {"model": "explained_vit_patch20_60x100", **anatomy(found)})
    assert "20 x 20 pixels, 3 rows x 5 columns" in text
    assert "16 (1 class token + 15 patches), 768 numbers each" in text
    assert "and 12,288 fixed numbers" in text


def test_figures_show_what_the_model_sees():
    assert seen(find("explained_vit_patch20_60x100"), PANES).shape == (60, 100, 1)
    assert seen(find("vit_mu_patch8_16"), PANES).shape == (16, 16, 3)
