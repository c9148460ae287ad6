"""RELIABILITY B1 at full size: whatever byte of a ViT-B bundle flips a bit, the bundle is refused before it is used."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from vitrail.checkpoints import bundle_weights
from vitrail.errors import DamagedFileError
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model
from vitrail.spec import ImageSpec

REASONS = "Checksum mismatch in|changed since it|is not a list of files|is missing, though|not listed|has .* bytes"
PARTS, FLIPS = 80, 25  # 2,000 flips in all; the first part runs always


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A bundle of ViT-B/16: 86 million random weights, 346 MB."""
    shape = config_from_name("vit_base_patch16_224")
    folder = tmp_path_factory.mktemp("full-size") / "bundle"
    spec = ImageSpec(height=224, width=224, channels=3)
    bundle_weights.save_bundle(
        folder, create_model(shape, 0), spec, "classification", tuple(map(str, range(shape.outputs))), {}
    )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_B1_a_flipped_bit_in_any_file_of_a_full_size_bundle_is_noticed(whole, part):
    draw = random.Random(part)
    files = sorted(path for path in whole.iterdir() if path.is_file())
    assert sum(path.stat().st_size for path in files) > 340 * 10**6
    for number in range(FLIPS):
        # the weights are nearly all of the bytes, so one flip in five goes to a small file
        path = whole / "model.safetensors" if number % 5 else draw.choice(files)
        place, bit = draw.randrange(path.stat().st_size), 1 << draw.randrange(8)
        flip(path, place, bit)
        try:
            with pytest.raises(DamagedFileError, match=REASONS):
                bundle_weights.load_bundle(whole)
        finally:
            flip(path, place, bit)


def flip(path: Path, place: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ bit]))
