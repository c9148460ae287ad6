"""HEIC and AVIF: the same pixels as were written, upright, with all their bits; named where nothing here reads them."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from corpus.frames import FILES
from corpus.writing import encoded, photo
from vitrail.data.decoding.decode import parse_image
from vitrail.errors import DataError, TooLargeError
from vitrail.spec import ImageSpec


def decoded(data: bytes, **fields):
    return parse_image(data, ImageSpec(**fields))


def test_ten_bits_of_a_heic_are_kept_scaled_to_sixteen():
    stored = decoded((FILES / "deep.heic").read_bytes())
    assert stored.kind == "HEIC" and stored.values.dtype == np.uint16
    assert np.abs(stored.values.astype(int) - 257 * photo().astype(int)).max() < 2 * 257


def test_a_heic_is_turned_by_the_file_and_not_again_by_exif():
    turned = decoded((FILES / "turned.heic").read_bytes())
    assert turned.values.shape == (36, 52, 3) and "turned upright by EXIF" not in turned.remarks


def test_an_avif_has_its_opacity_its_orientation_and_its_first_frame():
    clear = Image.fromarray(photo())
    clear.putalpha(Image.fromarray(np.full((36, 52), 80, np.uint8)))
    stored = decoded(encoded(clear, "AVIF", quality=100, subsampling="4:4:4"))
    assert stored.kind == "AVIF" and (stored.alpha == 80).all()
    exif = Image.Exif()
    exif[0x112] = 6
    lying = encoded(np.rot90(photo()).copy(), "AVIF", quality=100, subsampling="4:4:4", exif=exif.tobytes())
    assert np.abs(decoded(lying).values.astype(int) - photo()).max() <= 4
    out = io.BytesIO()
    Image.fromarray(photo()).save(out, "AVIF", save_all=True, append_images=[clear.convert("RGB").rotate(180)])
    assert "first of several frames" in decoded(out.getvalue()).remarks


def test_sizes_are_checked_before_pixels_and_deep_avif_is_refused():
    with pytest.raises(TooLargeError, match=r"\(36 x 52\)"):
        decoded((FILES / "photo.heic").read_bytes(), max_pixels=1000)
    data = bytearray(encoded(photo(), "AVIF"))
    with pytest.raises(TooLargeError, match=r"\(36 x 52\)"):
        decoded(bytes(data), max_pixels=1000)
    data[data.find(b"av1C") + 6] |= 0x40
    with pytest.raises(DataError, match="holds more than 8 bits for each channel, of which 8 would be read"):
        decoded(bytes(data))


@pytest.mark.parametrize("kind", ["heic", "avif"])
def test_a_cut_or_changed_file_is_refused_by_name_or_read(kind):
    whole = (FILES / "photo.heic").read_bytes() if kind == "heic" else encoded(photo(), "AVIF")
    for length in range(40, len(whole), 97):
        with pytest.raises(DataError, match=r"^(truncated|damaged)"):
            decoded(whole[:length])
    generator = np.random.default_rng(0)
    for _ in range(60):
        spoilt = bytearray(whole)
        spoilt[generator.integers(12, len(whole))] ^= 1 << generator.integers(8)
        try:
            decoded(bytes(spoilt))
        except DataError:  # what the decoder cannot tell gives other pixels
            continue


ABSENT = """
import sys
sys.modules["pi_heif"] = sys.modules["pillow_heif"] = None
from vitrail.data.decoding.decoded_image import IMAGE_EXTENSIONS, describe_unread_pictures
from vitrail.data.decoding.decode import decode_image, parse_image
from vitrail.errors import DataError
from vitrail.spec import ImageSpec
try:
    decode_image(open(sys.argv[1], "rb").read(), ImageSpec())
except DataError as error:
    print(error)
print(".heic" in IMAGE_EXTENSIONS, describe_unread_pictures({".heic": 2}))
"""


def test_without_a_reader_heic_is_named_with_both_ways_out():
    told = subprocess.run(
        [sys.executable, "-c", ABSENT, str(FILES / "photo.heic")], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "it looks like HEIC; pip install pi-heif reads it, or convert it to JPEG or PNG" in told[0]
    assert told[1].startswith("False 2 x .heic: pictures that Vitrail does not read; convert it")
    assert told[1].endswith("(pip install pi-heif reads .heic).")
