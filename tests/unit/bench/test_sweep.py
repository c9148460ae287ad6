"""A sweep over a tiny model: what it measures, what it leaves out, and what its figures mean."""

from __future__ import annotations

import dataclasses

import pytest

from vitrail.bench import measure
from vitrail.bench.measure import SweepRow, SweepRunner, SweepSettings, Timing
from vitrail.errors import UsageError
from vitrail.model import flops
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model
from vitrail.services.open_model import default_image_spec

CONFIG = config_from_name("vit_mu_patch8_16")
QUICK = SweepSettings(batch_sizes=(1, 2), rounds=2, min_seconds=0.0, num_files=3, image_size=(32, 48), num_workers=0)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    found = SweepRunner(create_model(CONFIG, 0), default_image_spec(CONFIG), QUICK, tmp_path_factory.mktemp("files"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "MATMUL_SIZE", 256)  # what it is does not matter here, and it takes a second
        told = list(found.run())
    return found, told


def test_everything_is_measured_at_every_batch_beside_its_own_limit(measured):
    found, told = measured
    assert [(row.kind, row.batch_size, row.num_images) for row in found.rows] == [
        ("inference", 1, 1), ("inference", 2, 2), ("training", 1, 1), ("training", 2, 2), ("loading", 2, 2),
        ("predicting", 2, 3),
    ]  # fmt: skip
    with_limits = [row.kind for row in found.rows if row.limit is not None]
    assert with_limits == ["inference", "inference", "training", "training"]
    assert found.matmul_flops_per_second > 1e8 and found.copy_bytes_per_second > 1e7 and found.skip_reasons == []
    assert "round 2 of 2, products of training, batch 2" in told
    assert all(row.memory is None or row.memory > 50 * 2**20 for row in found.rows)


def test_operations_are_those_of_the_pictures_of_a_call(measured):
    found, _ = measured
    by = {(row.kind, row.batch_size): row.flops for row in found.rows}
    forward = flops.forward_flops(CONFIG)
    assert by["inference", 2] == 2 * forward and by["training", 2] == 6 * forward
    assert by["loading", 2] == 0 and by["predicting", 2] == 3 * forward


def test_rates_and_utilisation_follow_from_the_median():
    row = SweepRow("inference", 4, Timing(0.5, 0.4, 0.6, 3, 1), 4, flops=1e9, limit=8e9, memory=None)
    assert row.rate == 8.0 and row.utilisation == 0.25
    assert dataclasses.replace(row, limit=None).utilisation is None


def test_a_model_of_features_alone_has_no_training_and_no_predictions(tmp_path):
    bare = dataclasses.replace(CONFIG, outputs=0)
    found = SweepRunner(
        create_model(bare, 0), default_image_spec(bare), dataclasses.replace(QUICK, batch_sizes=(1,)), tmp_path
    )
    list(found.run())
    assert [row.kind for row in found.rows] == ["inference", "loading"]
    assert found.skip_reasons == [
        "training: the model has no outputs, only features", "predicting: the model has no outputs, only features",
    ]  # fmt: skip


def test_a_batch_that_does_not_fit_is_left_out_and_said(tmp_path, monkeypatch):
    def answers(model, spec, batch, device, number_format):
        def job():
            if batch > 1:
                raise MemoryError

        return job

    monkeypatch.setattr(measure, "make_inference_job", answers)
    only = dataclasses.replace(QUICK, kinds=("inference",), batch_sizes=(1, 2, 4))
    found = SweepRunner(create_model(CONFIG, 0), default_image_spec(CONFIG), only, tmp_path)
    list(found.run())
    assert [row.batch_size for row in found.rows] == [1]
    assert found.skip_reasons == ["inference, batch 2 and above: the memory is full"]


def test_only_known_things_can_be_chosen():
    assert measure.select_benchmarks(()) == ("inference", "training", "loading", "predicting")
    assert measure.select_benchmarks(("openvino", "onnx")) == ("onnx", "openvino")
    assert measure.select_benchmarks(("training", "inference")) == ("inference", "training")
    with pytest.raises(UsageError, match=r"inference, training, loading, predicting, onnx, openvino\. Got 'speed'\."):
        measure.select_benchmarks(("speed",))
