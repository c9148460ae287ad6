"""What a file says of itself is read strictly."""

from __future__ import annotations

import pytest

from vitrail.errors import DamagedFileError
from vitrail.predict import exported
from vitrail.predict.exported import METADATA_VERSION, ExportMetadata, list_output_names, parse_metadata
from vitrail.spec import ImageSpec

FACTS = ExportMetadata(
    task="multilabel", classes=("a", "b"), image=ImageSpec(height=8, width=12, channels=1, mean=(0.1,), std=(0.2,)),
    outputs=list_output_names("multilabel", False), version="0.1.0", sha256="0" * 64,
)  # fmt: skip


def test_facts_come_back_and_other_notes_do_not_matter():
    notes = {**FACTS.to_metadata(), "author": "somebody"}
    assert parse_metadata(notes, "file") == FACTS
    assert all(name.startswith(exported.METADATA_PREFIX) for name in FACTS.to_metadata())


def test_a_file_of_somebody_else_is_refused():
    with pytest.raises(DamagedFileError, match=r"model\.onnx says nothing of its classes and pictures.*vitrail export"):
        parse_metadata({"author": "somebody"}, "model.onnx")


def test_a_newer_format_is_refused_with_the_remedy():
    notes = {**FACTS.to_metadata(), "vitrail.format": str(METADATA_VERSION + 1), "vitrail.colour": '"red"'}
    with pytest.raises(DamagedFileError, match=r"of format 2, expected at most 1\. Install a newer vitrail"):
        parse_metadata(notes, "file")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("task", '"guessing"', "task"),
        ("classes", "7", "classes"),
        ("image", '{"height": 0}', "at least 1"),
        ("version", "not JSON", "Expecting value"),
    ],
)
def test_notes_that_cannot_be_are_refused(name, text, said):
    with pytest.raises(DamagedFileError, match=f"What file notes cannot be: .*{said}"):
        parse_metadata({**FACTS.to_metadata(), f"vitrail.{name}": text}, "file")


def test_the_names_of_outputs():
    assert list_output_names("classification", True) == (
        "probabilities",
        "logits",
        "decisions",
        "abstained",
        "distances",
    )
    assert list_output_names("regression", False) == ("values", "logits", "abstained")
