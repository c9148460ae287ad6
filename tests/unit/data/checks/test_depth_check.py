"""What the check says of pictures deeper than 8 bits."""

from __future__ import annotations

import numpy as np

from unit.data.doctored import everything
from vitrail.data.checks.check_dataset import check_dataset
from vitrail.data.checks.findings import DataIssue
from vitrail.data.source import Source
from vitrail.spec import ImageSpec

COUNT = 60


def films(amplitude: float, kind: type[np.number] = np.uint16) -> Source:
    """Stripes of this amplitude around 30050 of 65535: upright in one class, lying in the other."""
    generator, (y, x) = np.random.default_rng(0), np.mgrid[:24, :24]
    waves = [
        np.sin(2 * np.pi * (x if row % 2 else y) / 8 + generator.uniform(0, 6)) * amplitude for row in range(COUNT)
    ]
    images = np.rint(30_050 + np.array(waves) + generator.normal(0, amplitude / 4, (COUNT, 24, 24))).astype(kind)
    targets = np.arange(COUNT) % 2
    return Source(
        name="films", classes=("lying", "upright"), images=images, targets=targets, ids=tuple(map(str, targets))
    )


def issues(source: Source, bit_depth: int = 16) -> dict[str, DataIssue]:
    spec = ImageSpec(height=24, width=24, channels=1, low=29_000, high=31_000, bit_depth=bit_depth)
    return {each.code: each for each in check_dataset(source, everything(source), spec).issues}


def test_labels_that_hang_on_what_8_bits_drop_are_named():
    source = films(40)
    found = issues(source)
    values = len(np.unique(source.images))
    assert found["deeper-than-8-bits"].text == (
        f"60 pictures deeper than 8 bits: of the {values} different values of 60, 8 bits for 0 to 65535 would keep 1."
    )
    labels = found["labels-below-8-bits"]
    assert labels.severity == "hint" and "tell the class of 100% of 60 pictures" in labels.text
    assert labels.advice.startswith("16 bits are kept.")
    plain = issues(source, bit_depth=8)["labels-below-8-bits"]
    assert plain.severity == "warning" and plain.advice.startswith("Keep 16 bits: --image.bit_depth 16.")


def test_labels_that_8_bits_show_too_are_not():
    found = issues(films(300))
    assert "deeper-than-8-bits" in found and "labels-below-8-bits" not in found


def test_nothing_is_said_of_8_bits_and_of_deeper_types_that_hold_no_more():
    grey = films(40)
    images = np.random.default_rng(0).integers(0, 256, grey.images.shape)
    for kind, factor in ((np.uint8, 1), (np.uint16, 257)):
        found = issues(Source(**{**vars(grey), "images": (images * factor).astype(kind)}))
        assert not {"deeper-than-8-bits", "labels-below-8-bits"} & set(found), kind


def test_faint_pictures_of_16_bits_are_not_called_flat():
    spec = ImageSpec(height=24, width=24, channels=1, high=65535, bit_depth=16)
    source = films(40)
    codes = {each.code for each in check_dataset(source, everything(source), spec).issues}
    assert "narrow-range" in codes and not codes & {"constant-pictures", "constant-class"}
