"""What is timed is what the verbs do: the same answers, a real step, real files."""

from __future__ import annotations

import csv
import io
import mmap

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.bench import measure
from vitrail.data.preprocess import normalize
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model
from vitrail.services.open_model import default_image_spec
from vitrail.train.loop import build_train_state
from vitrail.train.plan import ComputeSettings, Plan, Recipe

CONFIG = config_from_name("vit_mu_patch8_16")
SPEC = default_image_spec(CONFIG)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    return folder, measure.write_jpeg_files(folder, 6, (32, 48))


def test_answers_are_the_models_own():
    model = create_model(CONFIG, 0).eval()
    images = measure.make_random_images(SPEC, 3)
    with torch.inference_mode():
        expected = model(normalize(images, SPEC))
    assert torch.equal(measure.make_inference_job(model, SPEC, 3, "cpu", "float32")(), expected)


def test_a_step_moves_the_weights():
    model = create_model(CONFIG, 0)
    before = model.encoder.blocks[0].mlp.fc1.weight.detach().clone()
    plan = Plan(model=CONFIG, image=SPEC, recipe=Recipe(steps=9, batch_size=4), compute=ComputeSettings(num_workers=0))
    step = measure.make_training_job(build_train_state(model, plan), plan)
    assert [step().step, step().step] == [1, 2]
    assert not torch.equal(before, model.encoder.blocks[0].mlp.fc1.weight)


def test_files_are_read_in_whole_batches(pictures, monkeypatch):
    folder, _ = pictures
    seen = []
    monkeypatch.setattr(measure, "normalize", lambda images, spec: seen.append(images.shape))
    measure.make_loading_job(folder, SPEC, 4, workers=0)()
    assert seen == [(4, 3, 16, 16)]


def test_predicting_ends_with_a_row_for_each_file(pictures):
    _, paths = pictures
    told = measure.make_prediction_job(create_model(CONFIG, 0), SPEC, paths, 4, "cpu", "float32")()
    rows = list(csv.DictReader(io.StringIO(told.decode())))
    assert [row["path"] for row in rows] == [str(path) for path in paths]


def test_drawn_files_are_pictures_of_the_size_that_is_asked_for_and_all_differ(pictures, tmp_path):
    _, paths = pictures
    images = [np.asarray(Image.open(path)) for path in paths]
    assert {image.shape for image in images} == {(32, 48, 3)}
    assert len({image.tobytes() for image in images}) == 6
    assert 20 < np.std(images[0]) < 80
    (grey,) = measure.write_jpeg_files(tmp_path, 1, (16, 16), channels=1)
    assert np.asarray(Image.open(grey)).shape == (16, 16)


def test_the_highest_point_is_of_what_came_after_it_was_forgotten():
    with mmap.mmap(-1, 2**28) as large:  # given back whether or not freed memory is kept
        large.write(b"1" * 2**28)
        with_it = measure.read_peak_memory("cpu")
    assert measure.reset_peak_memory("cpu")
    assert measure.read_peak_memory("cpu") < with_it - 2**27
