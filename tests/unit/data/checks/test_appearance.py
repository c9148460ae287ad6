"""Pictures that are odd in themselves."""

from __future__ import annotations

import numpy as np
from PIL import Image

from unit.data.doctored import SPEC, codes, everything, of_arrays, textures
from vitrail.data.checks.check_dataset import check_dataset
from vitrail.data.checks.findings import DataCheckReport, DataIssue
from vitrail.data.source import Source
from vitrail.spec import ImageSpec


def checked(source: Source, spec: ImageSpec = SPEC, patch: tuple[int, int] = (1, 1)) -> DataCheckReport:
    return check_dataset(source, everything(source), spec, patch)


def concern(findings: DataCheckReport, code: str) -> DataIssue:
    (found,) = [each for each in findings.issues if each.code == code]
    return found


def test_pictures_smaller_than_a_patch_are_named():
    source = of_arrays(*textures(2, side=9), np.arange(60, dtype=np.uint8).reshape(3, 20))
    found = concern(checked(source, patch=(4, 4)), "smaller-than-a-patch")
    assert found.rows == (2,) and "(4 x 4 pixels)" in found.text


def test_pictures_that_are_enlarged_much_are_counted():
    source = of_arrays(*textures(3, side=40), *textures(2, side=8))
    found = concern(checked(source, ImageSpec(height=40, width=40, channels=1)), "much-enlarged")
    assert found.rows == (3, 4)


def test_odd_shapes_and_sizes_are_named():
    banner = np.random.default_rng(0).integers(0, 256, (10, 60), dtype=np.uint8)
    findings = checked(of_arrays(*textures(19, side=20), banner))
    assert concern(findings, "odd-shapes").rows == (19,)
    assert concern(findings, "odd-sizes").rows == (19,)
    assert concern(findings, "odd-sizes").text == "1 picture is not 20 x 20 as the others."


def test_D21_black_white_and_constant_pictures_are_told():
    flat = [np.full((8, 8), level, np.uint8) for level in (0, 255, 128)]
    findings = checked(of_arrays(*textures(3, side=8), *flat))
    assert concern(findings, "black-pictures").rows == (3,)
    assert concern(findings, "white-pictures").rows == (4,)
    assert concern(findings, "constant-pictures").rows == (5,)


def test_D21_a_class_of_constant_pictures_is_told():
    flat = [np.full((8, 8), level, np.uint8) for level in (20, 30, 40)]
    source = of_arrays(*textures(3, side=8), *flat, targets=np.array([0, 0, 0, 1, 1, 1]))
    assert concern(checked(source), "class-of-constant-pictures").text == (
        "Every picture of class 'b' is constant (3 pictures)."
    )


def test_D21_all_black_pictures_are_told_as_all():
    source = of_arrays(images=np.zeros((5, 8, 8), np.uint8), targets=np.array([0, 1, 0, 1, 0]), ids=tuple("abcde"))
    assert concern(checked(source), "black-pictures").text == (
        "5 pictures are black all over. That is every picture that was looked at."
    )


def test_mixed_depths_are_told():
    deep = textures(1, side=8)[0].astype(np.uint16) * 257
    findings = checked(of_arrays(*textures(2, side=8), deep), ImageSpec(height=8, width=8, channels=1, high=65535))
    assert findings.depths == {"uint8": 2, "uint16": 1}
    assert concern(findings, "mixed-depths").rows == (2,)


def test_a_range_that_does_not_fit_is_told():
    films = [(values.astype(np.uint16) * 4) for values in textures(4, side=16)]  # 10 bits
    wide = checked(of_arrays(*films), ImageSpec(height=8, width=8, channels=1, high=65535))
    assert "--data.range percentile" in concern(wide, "narrow-range").advice
    fitting = checked(of_arrays(*films), ImageSpec(height=8, width=8, channels=1, high=1023))
    assert "narrow-range" not in codes(fitting.issues)


def test_grey_pictures_in_colour_are_counted():
    spec = ImageSpec(height=8, width=8, channels=3)
    grey = [np.repeat(values[..., None], 3, -1) for values in textures(3, side=8)]
    colour = np.stack(textures(3, 5, side=8), -1)
    assert concern(checked(of_arrays(*grey), spec), "grey-in-colour").text == "All 3 colour pictures are grey."
    found = concern(checked(of_arrays(*grey, colour), spec), "grey-in-colour")
    assert found.text == "3 pictures of 4 in colour are grey." and found.rows == (0, 1, 2)


def test_formats_and_remarks_of_the_decoder_are_counted(tmp_path):
    for kind in ("cat", "dog"):
        (tmp_path / kind).mkdir()
    first, second = (Image.fromarray(values) for values in textures(2, side=20))
    first.save(tmp_path / "cat" / "1.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    second.save(tmp_path / "dog" / "1.jpg", exif=exif)
    first.save(tmp_path / "dog" / "2.jpg", "PNG")
    from vitrail.data.open import open_source

    findings = checked(open_source(str(tmp_path)))
    assert findings.kinds == {"PNG": 2, "JPEG": 1}
    assert concern(findings, "turned-upright-by-exif").rows == (1,)
    assert concern(findings, "ending-does-not-match-contents").rows == (2,)
    assert concern(findings, "mixed-formats").text == "Pictures of different formats: 1 JPEG, 2 PNG."


def test_strips_that_would_be_squashed_are_named_with_the_way_forward():
    strips = np.random.default_rng(0).integers(0, 256, (6, 8, 320), dtype=np.uint8)
    spec = ImageSpec(height=8, width=40, channels=1)
    found = concern(checked(of_arrays(*strips), spec, patch=(2, 2)), "much-squashed")
    assert len(found.rows) == 6 and found.severity == "warning"
    assert found.text == (
        "6 pictures are squashed from about 8 x 320 to the 8 x 40 pixels that the model reads, 8 times more along one "
        "side than along the other."
    )
    assert "such as --image-size 16x256, keeps more" in found.advice and "--image.fit crop" in found.advice
    own = concern(
        checked(of_arrays(*np.tile(strips[:, :, :200], (1, 8, 10))), ImageSpec(height=60, width=420, channels=1)),
        "much-squashed",
    )
    assert "such as --image-size 48x768, keeps more" in own.advice, "longer than what the model reads already"
    wide = checked(of_arrays(*strips), ImageSpec(height=8, width=320, channels=1), patch=(2, 2))
    assert "much-squashed" not in [each.code for each in wide.issues]


def test_so_many_patches_that_a_training_takes_long_are_counted():
    spec = ImageSpec(height=64, width=2048, channels=1)
    found = concern(checked(of_arrays(*textures(3, side=20)), spec, patch=(8, 8)), "many-patches")
    assert found.text == "The model would read each picture as 2,048 patches; about 64 are usual."
    assert "some 32 times as long" in found.advice
