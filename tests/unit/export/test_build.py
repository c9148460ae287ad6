"""Files of torch.export: captured for any batch, equal to the run, kept only if they are."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from exportable import member, pictures
from kinds import KINDS
from vitrail.errors import DamagedFileError, UsageError
from vitrail.export import build, verify
from vitrail.export.build import METADATA_FILE, Pt2File, export_file

FEW = [
    ("mean, indexed", "multilabel", "labels"),
    ("soft splits", "regression", "nothing"),
    ("dinov3", "classification", "unlike"),
]


@pytest.mark.wide
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_part_can_be_packed(kind, tmp_path):
    one = member(kind)
    proof, _ = export_file(one, "pt2", tmp_path / "model.pt2", list(pictures(one.spec)))
    assert proof.difference < 2e-5 and proof.num_changed == 0


@pytest.mark.first(1)
@pytest.mark.parametrize(("kind", "task", "decided"), FEW)
def test_a_package_answers_as_the_model_does_for_any_batch(kind, task, decided, tmp_path):
    one = member(kind, task, decided)
    proof, resized = export_file(one, "pt2", tmp_path / "model.pt2", list(pictures(one.spec)))
    assert resized is None and proof.num_images == 12 and proof.difference < 2e-5 and proof.num_changed == 0
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]


def test_a_package_needs_nothing_but_torch_and_says_what_it_is(tmp_path):
    one = member()
    export_file(one, "pt2", tmp_path / "model.pt2", list(pictures(one.spec)))
    notes = {METADATA_FILE: ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=notes)
    assert json.loads(json.loads(notes[METADATA_FILE])["vitrail.classes"]) == ["cat", "dog", "fish"]
    probabilities, *_ = program.module()(torch.zeros(7, 12, 8, 2, dtype=torch.uint8))
    assert probabilities.shape == (7, 3)
    np.testing.assert_allclose(probabilities.sum(1), np.ones(7), atol=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize("fit", ["crop", "pad"])
def test_a_package_that_resizes_takes_pictures_of_any_size(fit, tmp_path):
    one = member("sincos2d")
    one = dataclasses.replace(one, spec=dataclasses.replace(one.spec, fit=fit))
    shapes = [(12, 8), (31, 9), (10, 40), (5, 5)]
    decoded = [
        picture
        for height, width in shapes
        for picture in pictures(dataclasses.replace(one.spec, height=height, width=width), 2)
    ]
    proof, resized = export_file(one, "pt2", tmp_path / "model.pt2", decoded, resize=True)
    assert proof.difference < 2e-5
    assert resized is not None and resized.num_images == 8 and resized.difference < 0.01


@pytest.mark.wide
def test_a_file_that_answers_otherwise_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "TOLERANCE", -1.0)
    one = member()
    with pytest.raises(DamagedFileError, match=r"scores differ by up to .* on 10 pictures, and -1 is allowed"):
        export_file(one, "pt2", tmp_path / "model.pt2", list(pictures(one.spec)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", build.EXPORT_FORMATS)
def test_a_place_that_is_taken_or_named_otherwise_is_refused(kind, tmp_path):
    one = member()
    ending = build.FORMAT_EXTENSIONS[kind]
    taken = tmp_path / f"model{ending}"
    taken.write_text("mine")
    with pytest.raises(UsageError, match=rf"model\{ending} exists already and is not overwritten"):
        export_file(one, kind, taken, list(pictures(one.spec)))
    with pytest.raises(UsageError, match=rf"must end in \{ending}\. Got .*model\.bin"):
        export_file(one, kind, tmp_path / "model.bin", list(pictures(one.spec)))
    assert taken.read_text() == "mine"


def test_a_package_of_somebody_else_is_refused(tmp_path):
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    torch.export.save(program, tmp_path / "other.pt2")
    with pytest.raises(DamagedFileError, match=r"is no package of torch\.export that Vitrail has written"):
        Pt2File(tmp_path / "other.pt2")
