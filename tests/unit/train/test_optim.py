"""Muon against torch's own, groups, and the running mean."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.train import optim
from vitrail.train.optim import ModelEma, Muon, build_optimizers, orthogonalise, set_learning_rates, use_ema_weights
from vitrail.train.plan import Recipe

TINY = ViTConfig(image_size=(8, 8), patch=(4, 4), channels=1, width=16, depth=2, heads=2, mlp_width=32, outputs=3)


def test_orthogonalised_matrices_have_singular_values_near_one():
    values = torch.linalg.svdvals(orthogonalise(torch.randn(3, 12, 20)))
    assert values.min() > 0.3 and values.max() < 1.3


def test_orthogonalising_keeps_singular_directions():
    matrix = torch.randn(1, 8, 16)
    u, _, v = torch.linalg.svd(matrix[0], full_matrices=False)
    inside = u.T @ orthogonalise(matrix)[0] @ v.T
    torch.testing.assert_close(inside, torch.diag(inside.diagonal()), atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", [(16, 16), (8, 24), (24, 8)])
def test_a_step_is_that_of_torch_s_muon_to_the_precision_of_bfloat16(shape):
    start, gradients = torch.randn(shape), torch.randn(3, *shape)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    optimizers = (
        Muon([{"params": [ours]}], lr=0.1, momentum=0.9, weight_decay=0.1),
        torch.optim.Muon([theirs], lr=0.1, momentum=0.9, weight_decay=0.1),
    )
    for gradient in gradients:
        for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
    moved = (theirs - start).norm()
    assert (ours - theirs).norm() < 0.02 * moved


def test_a_joint_matrix_moves_as_its_three_parts_would():
    start, gradient = torch.randn(24, 8), torch.randn(24, 8)
    joint = torch.nn.Parameter(start.clone())
    parts = [torch.nn.Parameter(part.clone()) for part in start.chunk(3)]
    joint.grad = gradient
    for part, piece in zip(parts, gradient.chunk(3), strict=True):
        part.grad = piece
    Muon([{"params": [joint], "parts": 3}], lr=0.1).step()
    Muon([{"params": parts}], lr=0.1).step()
    torch.testing.assert_close(joint.detach(), torch.cat([part.detach() for part in parts]))


def test_many_matrices_move_as_they_would_in_smaller_stacks(monkeypatch):
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(6, 8)) for _ in range(5)]
    theirs = [torch.nn.Parameter(matrix.detach().clone()) for matrix in ours]
    for one, other in zip(ours, theirs, strict=True):
        one.grad = torch.randn_like(one)
        other.grad = one.grad.clone()
    Muon([{"params": ours}], lr=0.1).step()
    stacks = []
    monkeypatch.setattr(optim, "MAX_NUMBERS_AT_ONCE", 100)  # two matrices of 48 numbers
    optimizer = Muon([{"params": theirs}], lr=0.1)
    optimizer.orthogonalise = lambda stack: stacks.append(len(stack)) or orthogonalise(stack)
    optimizer.step()
    assert stacks == [2, 2, 1]
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_every_parameter_has_exactly_one_optimiser_and_small_things_are_not_decayed():
    model = create_model(TINY)
    names = {parameter: name for name, parameter in model.named_parameters()}
    seen = []
    for optimizer in build_optimizers(model, Recipe(weight_decay=0.1), "cpu"):
        for group in optimizer.param_groups:
            seen += group["params"]
            for parameter in group["params"]:
                plain = parameter.ndim == 2 and names[parameter] != "positions.table"
                plain = plain or names[parameter] == "tokens.patches.weight"
                assert group["weight_decay"] == (0.1 if plain else 0.0), names[parameter]
                assert isinstance(optimizer, Muon) == (plain and ".blocks." in names[parameter])
    assert sorted(names[p] for p in seen) == sorted(names.values())


def test_tokens_queries_and_tables_of_every_kind_are_not_decayed():
    odd = dataclasses.replace(TINY, registers=2, distillation_token=True, pool="attention", relative=2)
    model = create_model(odd)
    names = {parameter: name for name, parameter in model.named_parameters()}
    decayed = {
        names[parameter]
        for optimizer in build_optimizers(model, Recipe(weight_decay=0.1), "cpu")
        for group in optimizer.param_groups
        for parameter in group["params"]
        if group["weight_decay"]
    }
    assert {"tokens.registers", "tokens.distillation"} < set(names.values())
    assert {name.rpartition(".")[2] for name in names.values()} > {"probe", "key_rows", "value_columns"}
    assert {name.rpartition(".")[2] for name in decayed} == {"weight"}


def test_adamw_alone_takes_everything():
    model = create_model(TINY)
    (optimizer,) = build_optimizers(model, Recipe(optimizer="adamw"), "cpu")
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


def test_rates_follow_the_schedule_each_from_its_own_peak():
    recipe = Recipe(steps=10, warmup=0.0, muon_lr=0.02, lr=0.002)
    optimizers = build_optimizers(create_model(TINY), recipe, "cpu")
    set_learning_rates(optimizers, recipe, 5)
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == pytest.approx([0.01, 0.001])


def test_the_running_mean_follows_its_formula_and_gives_the_weights_back():
    model = create_model(dataclasses.replace(TINY, depth=0))
    name, weight = next(iter(model.named_parameters()))
    average = ModelEma(model, decay=0.5)
    before = weight.detach().clone()
    with torch.no_grad():
        weight.add_(1.0)
    average.update(model, step=0)  # decay is held at 1/10 in the first step
    torch.testing.assert_close(average.weights[name], before + 0.9)
    now = weight.detach().clone()
    with use_ema_weights(model, average):
        torch.testing.assert_close(weight.detach(), before + 0.9)
    assert torch.equal(weight.detach(), now)
