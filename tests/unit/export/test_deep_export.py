"""A model that reads 16 bits is exported with them: uint16 in, the same answers, resized by itself or not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from exportable import member
from vitrail.data.preprocess import fit_images, to_batch_tensor
from vitrail.export.build import export_file, make_metadata, reopen_file
from vitrail.export.module import ExportModule, GraphResize
from vitrail.predict.onnx_predictor import OnnxPredictor
from vitrail.predict.predictor import Predictor, PredictorMember
from vitrail.services.exporting import draw_synthetic_images
from vitrail.spec import ImageSpec


def deep_member(kind: str = "class token, learned") -> PredictorMember:
    """A small model that sees a thousandth of the range from 0 to 65535: a quarter of an 8-bit grey level."""
    found = member(kind)
    spec = dataclasses.replace(found.spec, high=65535, bit_depth=16, mean=(0.4577,), std=(0.0003,))
    return dataclasses.replace(found, spec=spec)


def films(spec: ImageSpec, count: int, size: tuple[int, int]) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.integers(29_950, 30_050, (*size, spec.channels), np.uint16) for _ in range(count)]


@pytest.mark.parametrize("fit", ["squash", "crop", "pad"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_the_graph_resizes_16_bits_as_the_run_does(fit, antialias, interpolation):
    spec = ImageSpec(
        height=24, width=20, bit_depth=16, high=65535, fit=fit, antialias=antialias, interpolation=interpolation
    )
    for height, width in ((12, 20), (40, 33), (100, 21)):
        images = np.random.default_rng(0).integers(0, 65536, (2, height, width, 3), np.uint16)
        expected = fit_images(to_batch_tensor(images), spec).permute(0, 2, 3, 1).numpy().astype(int)
        found = GraphResize(spec)(torch.from_numpy(images)).numpy()
        assert np.abs(found - expected).max() <= 1


def test_a_graph_takes_uint16_and_says_so(tmp_path):
    found = deep_member()
    module = ExportModule(found)
    assert make_metadata(module, found).image.bit_depth == 16
    decoded = films(found.spec, 4, found.spec.size)
    result, _ = export_file(found, "pt2", tmp_path / "model.pt2", decoded)
    assert result.difference < 1e-5 and result.num_changed == 0
    assert reopen_file(tmp_path / "model.pt2", "pt2").metadata.image == found.spec


@pytest.mark.wide
@pytest.mark.parametrize("resize", [False, True])
def test_onnx_answers_films_as_the_run_does(resize, tmp_path):
    found = deep_member()
    decoded = films(found.spec, 6, (found.spec.height + 7, found.spec.width + 9))
    result, resized = export_file(found, "onnx", tmp_path / "model.onnx", decoded, resize)
    assert result.difference < 1e-5 and (not resize or resized.difference < 1e-3)
    file = OnnxPredictor(tmp_path / "model.onnx")
    expected = Predictor([found]).predict(decoded)
    np.testing.assert_allclose(file.predict(decoded).probabilities, expected.probabilities, atol=1e-4)
    assert np.ptp(expected.probabilities, axis=0).max() > 0.01  # the films differ by less than an 8-bit grey level


def test_drawn_pictures_have_the_depth_of_the_model():
    plain, deep = draw_synthetic_images(8, 9, 1, 3), draw_synthetic_images(8, 9, 1, 3, white=65535)
    assert plain.dtype == np.uint8 and deep.dtype == np.uint16
    assert np.abs(deep / 257 - plain).max() < 0.51
