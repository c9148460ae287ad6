"""The parts of the model, one by one, on numbers that can be checked by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from vitrail.errors import UsageError
from vitrail.model import attention
from vitrail.model.attention import choose_path
from vitrail.model.config import ViTConfig
from vitrail.model.layers import ACTIVATIONS, NORMS
from vitrail.model.positions import axial_angles, from_one_angles, resample_table, sincos2d_table, sinusoid_table
from vitrail.model.tokens import pad_to_patches, patch_grid
from vitrail.model.vit import DropPath, create_model
from vitrail.spec import Grid

SMALL = ViTConfig(image_size=(8, 8), patch=(4, 4), channels=1, width=16, depth=2, heads=2, mlp_width=32, outputs=3)


def test_the_sinusoid_table_is_the_formula():
    table = sinusoid_table(5, 6)
    for position in range(5):
        for column in range(6):
            angle = position / 10000 ** (2 * (column // 2) / 6)
            expected = math.sin(angle) if column % 2 == 0 else math.cos(angle)
            assert table[position, column] == pytest.approx(expected, abs=1e-6)


def test_the_2d_waves_run_over_columns_then_rows():
    table = sincos2d_table(Grid(2, 3), 8)
    row, column = 1, 2
    waves = [1.0, 10000 ** (-1 / 2)]
    expected = [math.sin(column * w) for w in waves] + [math.cos(column * w) for w in waves]
    expected += [math.sin(row * w) for w in waves] + [math.cos(row * w) for w in waves]
    assert table[row * 3 + column].tolist() == pytest.approx(expected, abs=1e-6)


def test_axial_angles_follow_rows_then_columns_from_zero():
    angles = axial_angles(Grid(2, 3), 8, torch.device("cpu"))
    assert angles[1 * 3 + 2].tolist() == pytest.approx([1.0, 0.1, 2.0, 0.2])


def test_from_one_angles_follow_columns_then_rows_from_one():
    angles = from_one_angles(Grid(2, 3), 8, torch.device("cpu"))
    frequency = [10000 ** (-2 / 4), 10000 ** (-4 / 4)]
    expected = [3 * f for f in frequency] + [2 * f for f in frequency]
    assert angles[1 * 3 + 2].tolist() == pytest.approx(expected)


def test_resampling_names_the_forgotten_class_row():
    with pytest.raises(UsageError, match=r"196 rows\. Got 197.*table\[1:\]"):
        resample_table(torch.zeros(197, 8), Grid(14, 14), Grid(16, 16))


def test_a_picture_that_is_not_whole_patches_is_refused_with_its_numbers():
    with pytest.raises(UsageError, match="image height 225 is not a multiple of the patch height 16"):
        patch_grid((225, 224), (16, 16))
    with pytest.raises(UsageError, match="image width 6 is not a multiple of the patch width 4"):
        create_model(SMALL)(torch.zeros(1, 1, 8, 6))


def test_padding_adds_zeros_below_and_to_the_right():
    padded = pad_to_patches(torch.ones(1, 1, 5, 8), (4, 4))
    assert padded.shape == (1, 1, 8, 8)
    assert padded[0, 0, :5].min() == 1 and padded[0, 0, 5:].max() == 0


def test_a_padding_model_reads_odd_sizes():
    model = create_model(dataclasses.replace(SMALL, image_size=(7, 9), pad=True)).eval()
    assert model(torch.randn(2, 1, 7, 9)).shape == (2, 3)


def test_drop_path_drops_whole_pictures_and_keeps_the_mean():
    torch.manual_seed(0)
    y = DropPath(0.25).train()(torch.ones(4000, 2, 3))
    per_picture = y.flatten(1)
    assert sorted(per_picture.unique().tolist()) == pytest.approx([0.0, 4 / 3])
    assert (per_picture == per_picture[:, :1]).all()
    assert y.mean() == pytest.approx(1.0, abs=0.05)


def test_stochastic_depth_rises_linearly_and_only_trains():
    model = create_model(dataclasses.replace(SMALL, depth=3, drop_path=0.2))
    assert [block.drop_path.rate for block in model.encoder.blocks] == pytest.approx([0.0, 0.1, 0.2])
    images = torch.randn(2, 1, 8, 8)
    model.eval()
    assert torch.equal(model(images), model(images))


@pytest.mark.parametrize("path", ["fused", "open"])
@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "mlp_dropout"])
def test_every_dropout_acts_in_training_only_on_both_paths(kind, path):
    config = dataclasses.replace(SMALL, attention=path, init="torch", **{kind: 0.5})
    model, images = create_model(config), torch.randn(4, 1, 8, 8)
    model.train()
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_of_the_dictionary_builds(name):
    assert create_model(dataclasses.replace(SMALL, activation=name))(torch.randn(1, 1, 8, 8)).isfinite().all()


@pytest.mark.parametrize("name", NORMS)
def test_every_norm_of_the_dictionary_builds(name):
    model = create_model(dataclasses.replace(SMALL, norm=name))
    assert type(model.encoder.norm).__name__ == name


def test_no_outputs_means_pooled_features():
    assert create_model(dataclasses.replace(SMALL, outputs=0))(torch.randn(2, 1, 8, 8)).shape == (2, 16)


def test_the_forced_path_wins_and_auto_asks_the_table(monkeypatch):
    monkeypatch.setattr(attention, "OPEN_PATH_MAX_TOKENS", {("AVX2", "float32", True): 49})
    assert choose_path("fused", "AVX2", "float32", 16, True) == "fused"
    assert choose_path("open", "AVX2", "float32", 1000, True) == "open"
    assert choose_path("auto", "AVX2", "float32", 49, True) == "open"
    assert choose_path("auto", "AVX2", "float32", 50, True) == "fused"
    assert choose_path("auto", "AVX2", "float32", 49, False) == "fused"
    assert choose_path("auto", "cuda", "float32", 49, True) == "fused"


def wide(number_format: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of five pictures, views of one tensor as a model makes them, and a gradient."""
    draw = torch.Generator().manual_seed(0)
    qkv = torch.randn(5, 33, 3, 8, 64, generator=draw).to(number_format).requires_grad_()
    return (qkv, *qkv.permute(2, 0, 3, 1, 4), torch.randn(5, 8, 33, 64, generator=draw).to(number_format))


@pytest.mark.parametrize("number_format", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("pictures", [2, 5])
def test_weights_that_are_made_again_give_the_same_numbers(number_format, pictures, monkeypatch):
    qkv, q, k, v, of_y = wide(number_format)
    weights = attention.attention_weights(q, k, 0.125)
    expected = weights @ v
    (gradient,) = torch.autograd.grad(expected, qkv, of_y)
    monkeypatch.setattr(attention, "RECOMPUTE_CHUNK_BYTES", pictures * weights[0].nbytes)
    qkv, q, k, v, of_y = wide(number_format)
    found = attention.attend(q, k, v, 0.125, 0.0, "open")
    assert found.grad_fn.name().startswith("_RecomputedAttention"), "512 wide, so its weights are not kept"
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, qkv, of_y)[0], gradient)


@pytest.mark.parametrize("number_format", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("heads", [3, 8, 16, 99], ids=["some heads", "a picture", "two pictures", "all"])
@pytest.mark.parametrize("rows", [33, 1])
def test_answers_made_in_parts_are_the_same(number_format, heads, rows, monkeypatch):
    _, q, k, v, _ = wide(number_format)
    q = q[:, :, :rows]
    expected = attention.attention_weights(q, k, 0.125) @ v
    monkeypatch.setattr(attention, "INFERENCE_CHUNK_BYTES", heads * expected[0, 0, :, 0].nbytes * k.shape[2])
    with torch.no_grad():
        found = attention.attend(q, k, v, 0.125, 0.0, "open")
    torch.testing.assert_close(found, expected)
    assert found.transpose(1, 2).is_contiguous(), "so that the next product need not copy it"


def test_of_long_sequences_the_weights_are_made_again_at_any_width(monkeypatch):
    monkeypatch.setattr(attention, "RECOMPUTE_MIN_WIDTH", 10_000)
    kinds = []
    for tokens in (attention.RECOMPUTE_MIN_TOKENS - 1, attention.RECOMPUTE_MIN_TOKENS):
        q = torch.randn(1, 1, tokens, 4, requires_grad=True)
        kinds.append(attention.attend(q, q, q, 0.5, 0.0, "open").grad_fn.name())
    assert not kinds[0].startswith("_RecomputedAttention") and kinds[1].startswith("_RecomputedAttention")


def test_a_gradient_through_weights_that_are_made_again_has_a_gradient(monkeypatch):
    monkeypatch.setattr(attention, "RECOMPUTE_MIN_WIDTH", 1)
    leaves = [torch.randn(2, 2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradgradcheck(lambda q, k, v: attention.attend(q, k, v, 0.5, 0.0, "open"), leaves)


def test_a_wide_training_keeps_queries_keys_and_values_and_nothing_else_of_its_attention(monkeypatch):
    def kept(least: int) -> int:
        """Bytes that wait for the way back."""
        monkeypatch.setattr(attention, "RECOMPUTE_MIN_WIDTH", least)
        _, q, k, v, _ = wide(torch.bfloat16)
        found: dict[int, int] = {}
        keep = lambda x: found.update({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()}) or x  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            attention.attend(q, k, v, 0.125, 0.0, "open")
        return sum(found.values())

    joint, weights = 5 * 33 * 3 * 8 * 64 * 2, 5 * 8 * 33 * 33 * 2
    assert kept(512) == joint
    assert kept(513) >= joint + weights


def test_our_own_initial_values_make_a_model_that_answers_evenly():
    model = create_model(dataclasses.replace(SMALL, init="vitrail")).eval()
    assert not model(torch.randn(2, 1, 8, 8)).any()


def test_truncated_initial_values_have_the_asked_deviation():
    model = create_model(dataclasses.replace(SMALL, width=256, mlp_width=512, init="truncated"))
    assert model.encoder.blocks[0].mlp.fc1.weight.std().item() == pytest.approx(0.02, rel=0.03)
    assert model.positions.table.std().item() == pytest.approx(0.02, rel=0.1)
    assert not model.head.linear.bias.any()
    assert model.encoder.norm.weight.min() == 1


def test_torch_initial_values_are_those_of_its_layers():
    model = create_model(dataclasses.replace(SMALL, width=256, heads=4, mlp_width=512, init="torch"))
    block = model.encoder.blocks[0]
    assert block.mlp.fc2.weight.abs().max().item() == pytest.approx(512**-0.5, rel=0.01)
    assert block.mlp.fc2.bias.abs().max().item() == pytest.approx(512**-0.5, rel=0.05)
    assert block.attention.qkv.weight.abs().max().item() == pytest.approx((6 / (256 + 768)) ** 0.5, rel=0.01)
    assert not block.attention.qkv.bias.any() and not block.attention.out.bias.any()
    assert model.tokens.cls.std().item() == pytest.approx(1.0, rel=0.15)


def test_gradients_with_dropped_patches_have_the_same_bits_on_two_threads():
    config = dataclasses.replace(SMALL, image_size=(28, 28), width=96, heads=3, rotary="axial", init="torch")
    images, rows = torch.randn(128, 1, 28, 28), torch.rand(128, 49).argsort(1)[:, :24]
    found = []
    for _ in range(6):
        model = create_model(config)
        model(images, rows).square().sum().backward()
        found.append(model.positions.table.grad)
    assert all(torch.equal(found[0], other) for other in found[1:])
