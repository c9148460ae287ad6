"""Collecting logits: order, batches, mirror images, number formats, and the model left as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from vitrail.errors import UsageError
from vitrail.evaluate.inference import InferenceSettings, run_inference
from vitrail.evaluate.probabilities import softmax
from vitrail.evaluate.tta import TtaViews
from vitrail.spec import ImageSpec

SPEC = ImageSpec(height=4, width=4, channels=1)


class Shelf:
    """Ten seeded pictures, and a note of what was asked for."""

    def __init__(self):
        self.images = torch.randint(
            0, 256, (10, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
        )
        self.asked: list[list[int]] = []

    @property
    def indices(self):
        return np.arange(10)

    def take(self, indices):
        self.asked.append(list(indices))
        return self.images[torch.as_tensor(indices)]

    def begin(self, indices):
        images = self.take(indices)
        return lambda: images


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Dropout(0.5), nn.Linear(8, 3))


def test_the_order_and_the_batches_are_those_asked_for():
    shelf, net = Shelf(), model()
    indices = np.array([7, 1, 3, 9, 0])
    found = run_inference(net, shelf, indices, SPEC, InferenceSettings(batch_size=2))
    assert shelf.asked == [[7, 1], [3, 9], [0]]
    alone = np.concatenate([run_inference(net, shelf, indices[i : i + 1], SPEC) for i in range(5)])
    np.testing.assert_allclose(found, alone, atol=1e-6)
    assert found.dtype == np.float32


def test_no_pictures_give_no_rows():
    assert len(run_inference(model(), Shelf(), np.zeros(0, np.int64), SPEC)) == 0


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_off_and_the_mode_is_given_back(training):
    net = model().train(training)
    once, again = (run_inference(net, Shelf(), np.arange(10), SPEC) for _ in range(2))
    np.testing.assert_array_equal(once, again)
    assert net.training is training
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_frozen_part_of_a_model_in_training_stays_frozen():
    net = model().train()
    net[2].eval()
    run_inference(net, Shelf(), np.arange(10), SPEC)
    assert [module.training for module in net] == [True, True, False, True]


def test_mirrored_answers_are_the_mean_of_both_probabilities():
    shelf, net, indices = Shelf(), model(), np.arange(10)
    plain = softmax(run_inference(net, shelf, indices, SPEC))
    flipped = Shelf()
    flipped.images = shelf.images.flip(-1)
    other = softmax(run_inference(net, flipped, indices, SPEC))
    both = softmax(run_inference(net, shelf, indices, SPEC, InferenceSettings(views=TtaViews(flip=True))))
    np.testing.assert_allclose(both, (plain + other) / 2, atol=1e-6)
    assert np.abs(plain - other).max() > 1e-3


def test_bfloat16_answers_nearly_the_same_in_float32_numbers():
    exact, rough = (
        run_inference(model(), Shelf(), np.arange(10), SPEC, InferenceSettings(precision=f))
        for f in ("float32", "bfloat16")
    )
    assert rough.dtype == np.float32
    assert 0 < np.abs(exact - rough).max() < 0.05


def test_the_calling_programs_faster_products_are_set_aside_and_given_back():
    """torch.set_float32_matmul_precision("medium") computes in bfloat16 where the processor has it."""
    wide = nn.Sequential(nn.Flatten(), nn.Linear(16, 256), nn.Linear(256, 256))
    exact = run_inference(wide, Shelf(), np.arange(10), SPEC)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        found = run_inference(wide, Shelf(), np.arange(10), SPEC)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    np.testing.assert_array_equal(found, exact)


def test_wrong_settings_are_named():
    with pytest.raises(UsageError, match=r"one of float32, bfloat16, float16\. Got 'half'\."):
        InferenceSettings(precision="half")
    with pytest.raises(UsageError, match=r"Got 0\."):
        InferenceSettings(batch_size=0)


def test_softmax_is_stable_and_sums_to_one():
    found = softmax(np.array([[1000.0, 999.0], [-1000.0, 0.0]], np.float32))
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-7)
    assert found[0, 0] == pytest.approx(0.731059, abs=1e-6)
