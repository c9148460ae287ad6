"""What following a teacher costs: each term against a formula written by hand, and what a teacher is shown."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitrail.data.preprocess import normalize
from vitrail.evaluate.calibration import TargetScaling
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.spec import Grid, ImageSpec
from vitrail.train.distill import cnn_teacher
from vitrail.train.distill.feature_teacher import cosine_loss, resize_features
from vitrail.train.distributed.data_parallel import ParallelModel
from vitrail.train.loop import StepInput, accumulate_gradients, make_forward_loss
from vitrail.train.losses import build_loss
from vitrail.train.plan import Plan
from vitrail.train.teacher_targets import DistillationTeacher, adapt_images, distillation_loss

OURS = torch.tensor([[0.3, -1.2, 2.0], [0.0, 0.4, -0.5]], requires_grad=True)
THEIRS = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.1, 0.3]])


def softmax(row: list[float], temperature: float) -> list[float]:
    powers = [math.exp(number / temperature) for number in row]
    return [power / sum(powers) for power in powers]


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_classes_diverge_by_the_softened_probabilities_times_the_square_of_the_temperature(temperature):
    total, weight = distillation_loss(OURS, THEIRS, "classification", temperature)
    expected = 0.0
    for ours, theirs in zip(OURS.tolist(), THEIRS.tolist(), strict=True):
        for p, q in zip(softmax(theirs, temperature), softmax(ours, temperature), strict=True):
            expected += p * math.log(p / q) * temperature**2
    assert total.item() == pytest.approx(expected, rel=1e-5) and weight == 2
    assert torch.autograd.grad(total, OURS)[0].abs().sum() > 0


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_labels_diverge_each_by_itself(temperature):
    total, weight = distillation_loss(OURS, THEIRS, "multilabel", temperature)
    expected = 0.0
    for ours, theirs in zip(OURS.flatten().tolist(), THEIRS.flatten().tolist(), strict=True):
        p, q = (1 / (1 + math.exp(-number / temperature)) for number in (theirs, ours))
        expected += temperature**2 * (p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))) / 3
    assert total.item() == pytest.approx(expected, rel=1e-5) and weight == 2


def test_numbers_differ_by_their_squares():
    total, weight = distillation_loss(OURS, THEIRS, "regression", 7.0)
    assert total.item() == pytest.approx(((OURS - THEIRS) ** 2).mean(1).sum().item()) and weight == 2


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_agreement_costs_nothing_and_has_no_gradient(task):
    ours = THEIRS.clone().requires_grad_()
    total, _ = distillation_loss(ours, THEIRS, task, 2.0)
    assert total.item() == pytest.approx(0, abs=1e-6)
    assert torch.autograd.grad(total, ours)[0].abs().max() < 1e-6


def test_the_loss_is_shared_between_labels_and_teacher():
    lesson = DistillationTeacher(
        Sums(), ImageSpec(height=4, width=4, channels=1), "classification", weight=0.25, temperature=1.0
    )
    images = torch.randint(0, 256, (2, 1, 4, 4), dtype=torch.uint8)
    said = lesson.predict(images)
    total, weight = distillation_loss(OURS, said, "classification", 1.0)
    assert lesson.compute_loss(OURS, said) == (total, weight)
    assert lesson.blend_losses(torch.tensor(2.0), torch.tensor(6.0)) == 0.75 * 2 + 0.25 * 6


class Sums(nn.Module):
    """Answers with the sum of a picture's values, once, twice and three times."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum((1, 2, 3))[:, None] * torch.tensor([1.0, 2.0, 3.0])


def test_a_teacher_reads_its_own_size_normalisation_and_channels_and_is_read_in_the_models_order():
    spec = ImageSpec(height=2, width=2, channels=3, mean=(0.0,), std=(1.0,))
    images = torch.full((1, 1, 4, 4), 255, dtype=torch.uint8)
    said = DistillationTeacher(Sums(), spec, "classification", 0.5, 1.0, output_order=(2, 0, 1)).predict(images)
    assert said.tolist() == [[36.0, 12.0, 24.0]]
    grey = adapt_images(
        torch.tensor([[[[200]], [[100]], [[50]]]], dtype=torch.uint8), ImageSpec(height=1, width=1, channels=1)
    )
    assert grey.tolist() == [[[[124]]]]


def test_numbers_of_a_teacher_are_brought_to_the_models_scale():
    spec = ImageSpec(height=1, width=1, channels=1, mean=(0.0,), std=(1.0,))
    scales = TargetScaling((10.0, 0.0, 0.0), (2.0, 1.0, 1.0)), TargetScaling((5.0, 1.0, 0.0), (4.0, 2.0, 1.0))
    said = DistillationTeacher(Sums(), spec, "classification", 0.5, 1.0, output_scalings=scales).predict(
        torch.full((1, 1, 1, 1), 255, dtype=torch.uint8)
    )
    assert said.tolist() == [[(1 * 2 + 10 - 5) / 4, (2 - 1) / 2, 3.0]]


def test_features_are_compared_by_direction_without_what_all_patches_share():
    theirs = torch.randn(2, 3, 4)
    centred = theirs - theirs.mean((0, 1))
    total, weight = cosine_loss(5 * centred, theirs + 100)
    assert weight == 6 and total.item() == pytest.approx(0, abs=1e-3)
    ours = torch.randn(2, 3, 4)
    cosines = [
        (a @ b / a.norm() / b.norm()).item() for a, b in zip(ours.flatten(0, 1), centred.flatten(0, 1), strict=True)
    ]
    assert cosine_loss(ours, theirs)[0].item() == pytest.approx(sum(1 - cosine for cosine in cosines), rel=1e-5)


def test_a_teachers_patches_are_brought_to_the_models_grid():
    dense = torch.arange(16.0).view(1, 1, 4, 4)
    assert resize_features(dense, Grid(4, 4)).flatten().tolist() == list(range(16))
    assert resize_features(dense, Grid(2, 2)).shape == (1, 4, 1)
    assert resize_features(torch.full((1, 2, 3, 5), 7.0), Grid(4, 2)).flatten().tolist() == pytest.approx([7.0] * 16)


@pytest.mark.parametrize(("size", "channels"), [((8, 8), 1), ((28, 28), 3), ((60, 100), 1), ((4, 6), 2)])
def test_a_cnn_answers_for_any_picture_and_every_parameter_learns(size, channels):
    network = cnn_teacher.create_cnn(channels, size, 3, 4, seed=0).train()
    again = cnn_teacher.create_cnn(channels, size, 3, 4, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    assert not torch.equal(network.enter.weight, cnn_teacher.create_cnn(channels, size, 3, 4, seed=1).enter.weight)
    assert network(torch.randn(5, channels, *size)).tolist() == [[0.0] * 3] * 5  # the head is zeros
    nn.init.normal_(network.head.weight)
    network(torch.randn(5, channels, *size)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("parts", [1, 3])
def test_the_gradient_of_a_step_is_that_of_the_shared_loss_however_the_batch_is_cut(parts):
    config = ViTConfig(
        image_size=(4, 4), patch=(2, 2), channels=1, width=8, depth=1, heads=1, mlp_width=8, outputs=3,
        class_token=False, pool="mean", init="torch",
    )  # fmt: skip
    plan = Plan(model=config, image=ImageSpec(height=4, width=4, channels=1))
    images = torch.randint(0, 256, (6, 1, 4, 4), dtype=torch.uint8)
    targets, weights = torch.arange(6) % 3, torch.tensor([1.0, 5.0, 2.0])
    lesson = DistillationTeacher(Sums(), plan.image, "classification", weight=0.3, temperature=2.0)
    said = lesson.predict(images)
    model = create_model(config, 0)
    engine, loss = ParallelModel(model), build_loss("classification", plan.recipe, weights)
    shown = StepInput(images, None, targets, said)
    average, _ = accumulate_gradients(
        engine, make_forward_loss(engine, loss, plan), loss, shown, (3,), parts, teacher=lesson
    )
    ours = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    logits = model(normalize(images, plan.image))
    apart = F.kl_div((logits / 2).log_softmax(1), (said / 2).softmax(1), reduction="batchmean") * 4
    expected = 0.7 * F.cross_entropy(logits, targets, weights) + 0.3 * apart
    expected.backward()
    torch.testing.assert_close(average, expected.detach())
    for gradient, parameter in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, atol=1e-6, rtol=1e-5)
