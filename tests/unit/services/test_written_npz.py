"""An `.npz` in Google's layout that Vitrail wrote says what others do not: activation, patches, pictures, origin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.checkpoints.load import LoadOptions, load_checkpoint
from vitrail.checkpoints.save import save_model
from vitrail.errors import UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.services.conversion import convert_model
from vitrail.services.model_summary import format_provenance
from vitrail.services.open_model import find_model
from vitrail.spec import ImageSpec

SHAPE = ViTConfig(
    image_size=(16, 24), patch=(4, 8), width=16, depth=2, heads=2, mlp_width=24, outputs=2, resample="bilinear-corners"
)
SPEC = ImageSpec(height=16, width=24, channels=3, mean=(0.1, 0.2, 0.3), fit="pad", interpolation="bilinear")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A bundle of patches that are not square and an exact GELU."""
    model = create_model(SHAPE, 1).eval()
    with torch.no_grad():
        for number, weights in enumerate(model.parameters()):
            weights.copy_(0.3 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(number)))
    save_model(tmp_path / "kept", model, SPEC, ("cat", "dog"), "bundle", "multilabel")
    return tmp_path / "kept"


def test_it_is_read_back_as_the_model_that_it_is(kept: Path, tmp_path: Path) -> None:
    """F16."""
    done = convert_model(find_model(str(kept)), "google-npz", tmp_path / "own.npz")
    assert any("only vitrail reads out of the file that this model has GELU" in note for note in done.notes)
    loaded = load_checkpoint(tmp_path / "own.npz")
    assert loaded.config == replace(find_model(str(kept)).config, init="jax") and loaded.spec == SPEC
    assert (loaded.task, loaded.classes, loaded.assumed) == ("multilabel", ("cat", "dog"), ())
    images = torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        assert torch.equal(loaded.model(images), find_model(str(kept)).model(images))


def test_nothing_in_it_is_called_googles(kept: Path, tmp_path: Path) -> None:
    """F16."""
    convert_model(find_model(str(kept)), "google-npz", tmp_path / "own.npz")
    assert "google" not in " ".join(format_provenance(find_model(str(tmp_path / "own.npz"))))


def test_other_readers_find_the_arrays_alone(kept: Path, tmp_path: Path) -> None:
    convert_model(find_model(str(kept)), "google-npz", tmp_path / "own.npz")
    with np.load(tmp_path / "own.npz", allow_pickle=False) as arrays:
        assert all(array.dtype == np.float32 for array in arrays.values())
        np.savez(tmp_path / "again.npz", **arrays)
    with pytest.raises(UsageError, match=r'patches of 4x8 pixels, .* pass settings=\{"patch": \(4, 8\)\}'):
        load_checkpoint(tmp_path / "again.npz")
    known = LoadOptions(image_size=(16, 24), settings={"patch": (4, 8)})
    assert "activation=GELUTanh" in load_checkpoint(tmp_path / "again.npz", known).assumed[0]
    (licence,) = (row for row in format_provenance(find_model(str(tmp_path / "again.npz"), known)) if "licence" in row)
    assert licence.endswith("if these are weights that google-research/vision_transformer published")


def test_what_is_assumed_is_printed_once_in_a_process(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert_model(find_model(str(kept)), "google-npz", tmp_path / "own.npz")
    with np.load(tmp_path / "own.npz", allow_pickle=False) as arrays:
        np.savez(tmp_path / "bare.npz", **arrays)
    known = LoadOptions(image_size=(16, 24), settings={"patch": (4, 8)})
    capsys.readouterr()
    find_model(str(tmp_path / "bare.npz"), known, quiet=True)
    assert capsys.readouterr().err == ""
    for _ in range(2):
        find_model(str(tmp_path / "bare.npz"), known)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and all(f"{tmp_path / 'bare.npz'}: the file does not say " in line for line in said)


def test_class_names_without_end_are_left_out(kept: Path, tmp_path: Path) -> None:
    model = create_model(ViTConfig(image_size=(8, 8), patch=(4, 4), width=8, depth=1, heads=1, outputs=700), 1)
    names = tuple(f"{number} {'x' * 100}" for number in range(700))
    save_model(tmp_path / "long.npz", model, ImageSpec(height=8, width=8), names, "google-npz")
    loaded = load_checkpoint(tmp_path / "long.npz")
    assert loaded.classes == () and loaded.config.activation == "GELU"
