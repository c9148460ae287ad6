"""Levers on trial (benchmarks/making/levers.py), each beside its formula written out slowly."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from scripts import script
from vitrail.data.loader import InMemoryImageStore
from vitrail.errors import UsageError
from vitrail.model.attention import attention_weights
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.spec import Grid, ImageSpec
from vitrail.train import checkpoint, loop, optim
from vitrail.train.optim import Muon, orthogonalise
from vitrail.train.plan import Plan, Recipe

levers = script("making.levers")
pull = levers.pull_levers

MODEL = ViTConfig(
    image_size=(8, 8), patch=(2, 2), channels=1, width=16, depth=3, heads=2, mlp_width=16, outputs=3, class_token=False,
    pool="mean", positions="none", rotary="axial", init="torch",
)  # fmt: skip
IMAGES = torch.randint(0, 256, (30, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
TARGETS = np.arange(30) % 3
RECIPE = Recipe(
    steps=9, batch_size=8, ema_decay=0.5, patch_keep_rate=0.5, patch_keep_until=0.6, crop_padding=1, flip=True,
    progressive_size=0.5, progressive_until=0.3,
)  # fmt: skip
PLAN = Plan(model=MODEL, image=ImageSpec(height=8, width=8, channels=1), recipe=RECIPE)


def learner(plan: Plan) -> loop.TrainState:
    return loop.build_train_state(create_model(plan.model, seed=1), plan)


def test_only_known_levers_with_numbers_in_their_limits_are_pulled_and_all_are_let_go():
    before = optim.build_optimizers, Muon._apply_updates, Muon.init_state
    for text, message in {
        "": "no lever ''. Known: muon-decay, ",
        "swan=1": "no lever 'swan'",
        "muon-decay": "needs a number above 0 and at most 1, .* Got ''",
        "row-moments=0.9,muon-decay=2": "muon-decay needs .* Got '2'",
        "first-skip=nan": "first-skip needs",
        "momentum-ends=0": "momentum-ends needs",
    }.items():
        with pytest.raises(UsageError, match=message):
            pull(text)
    with pull("row-moments=0.9,cautious-decay=1,muon-decay=0.1"):
        assert optim.build_optimizers is not before[0]
    assert (optim.build_optimizers, Muon._apply_updates, Muon.init_state) == before


def test_the_command_is_that_of_vitrail_and_a_wrong_lever_ends_it_in_a_sentence(capsys):
    assert levers.main(["swan=1", "train"]) == 2
    assert capsys.readouterr().err.startswith("error: There is no lever 'swan'.")
    assert levers.main(["first-skip=1", "train", "--no-such"]) == 2
    assert "--no-such" in capsys.readouterr().err


def built(text: str, recipe: Recipe) -> list[torch.optim.Optimizer]:
    with pull(text):
        return optim.build_optimizers(create_model(MODEL), recipe, "cpu")


def test_muon_has_a_decay_of_its_own():
    muon, adamw = built("muon-decay=0.1", Recipe(weight_decay=0.03))
    assert {group["weight_decay"] for group in muon.param_groups} == {0.1}
    assert {group["weight_decay"] for group in adamw.param_groups} == {0.0, 0.03}


def test_momentum_rises_and_falls():
    assert levers.momentum_at(0.0, 0.85, 0.95) == levers.momentum_at(1.0, 0.85, 0.95) == 0.85
    assert levers.momentum_at(levers.MOMENTUM_RISE / 2, 0.85, 0.95) == pytest.approx(0.9)
    assert levers.momentum_at(1 - levers.MOMENTUM_FALL / 2, 0.85, 0.95) == pytest.approx(0.9)
    recipe, seen = Recipe(steps=100), []
    with pull("momentum-ends=0.85"):
        optimizers = optim.build_optimizers(create_model(MODEL), recipe, "cpu")
        for step in (0, 50, 99):
            optim.set_learning_rates(optimizers, recipe, step)
            seen += {group["momentum"] for group in optimizers[0].param_groups}
    assert seen == pytest.approx([0.85, 0.95, 0.85 + 0.1 / 3])  # one for all groups
    assert optimizers[0].param_groups[0]["lr"] == pytest.approx(0.02 * recipe.lr_factor(99))


LR, MOMENTUM, DECAY = 0.1, 0.9, 0.5


def move_slowly(start: Tensor, gradients: Tensor, parts: int, beta: float, cautious: bool) -> Tensor:
    """Muon with even rows and cautious decay, number by number."""
    moved = []
    for matrix, all_gradients in zip(start.chunk(parts), gradients.chunk(parts, dim=1), strict=True):
        matrix, momentum, moments = matrix.clone(), torch.zeros_like(matrix), [0.0] * len(matrix)
        for gradient in all_gradients:
            momentum = MOMENTUM * momentum + (1 - MOMENTUM) * gradient
            ahead = MOMENTUM * momentum + (1 - MOMENTUM) * gradient
            rows, columns = ahead.shape
            direction = (orthogonalise(ahead.T[None])[0].T if rows > columns else orthogonalise(ahead[None])[0]).clone()
            if beta:
                norm = direction.norm()
                for row in range(rows):
                    square = sum(float(number) ** 2 for number in direction[row]) / columns
                    moments[row] = beta * moments[row] + (1 - beta) * square
                    direction[row] /= moments[row] ** 0.5
                direction *= norm / direction.norm()
            for row, column in itertools.product(range(rows), range(columns)):
                number, change = float(matrix[row, column]), float(direction[row, column])
                if not cautious or number * change >= 0:
                    number -= LR * DECAY * number
                matrix[row, column] = number - LR * max(1, rows / columns) ** 0.5 * change
        moved.append(matrix)
    return torch.cat(moved)


@pytest.mark.parametrize(
    ("text", "beta", "cautious"),
    [
        ("row-moments=0.8", 0.8, False),
        ("cautious-decay=1", 0.0, True),
        ("row-moments=0.8,cautious-decay=1", 0.8, True),
    ],
)
def test_even_rows_and_cautious_decay_are_their_formulas_row_by_row_and_number_by_number(text, beta, cautious):
    model = create_model(dataclasses.replace(MODEL, depth=1, width=8, heads=2, mlp_width=12))
    block = model.encoder.blocks[0]
    matrices = {"joint": block.attention.qkv.weight, "tall": block.mlp.fc1.weight, "wide": block.mlp.fc2.weight}
    gradients = {kind: torch.randn(4, *matrix.shape) for kind, matrix in matrices.items()}
    expected = {
        kind: move_slowly(matrix.detach(), gradients[kind], 3 if kind == "joint" else 1, beta, cautious)
        for kind, matrix in matrices.items()
    }
    recipe = Recipe(muon_lr=LR, muon_momentum=MOMENTUM, weight_decay=DECAY)
    with pull(text):
        muon, _ = optim.build_optimizers(model, recipe, "cpu")
        muon.compute = torch.float32
        for step in range(4):
            for kind, matrix in matrices.items():
                matrix.grad = gradients[kind][step].clone()
            muon.step()
    for kind, matrix in matrices.items():
        assert set(muon.state[matrix]) == {"momentum"} | ({"row_moments"} if beta else set())
        torch.testing.assert_close(matrix.detach(), expected[kind], atol=1e-5, rtol=1e-4)


def test_the_weights_are_moved_from_ahead_along_the_mean_of_their_changes():
    recipe = Recipe(steps=10, warmup=0.2)
    weight = nn.Parameter(torch.randn(5))
    place, change, moves = weight.detach().clone(), torch.zeros(5), torch.randn(10, 5)
    with pull("lookahead=3"):
        lookahead = levers.Lookahead([weight])
        for step in range(10):
            optim.set_learning_rates([lookahead], recipe, step)
            with torch.no_grad():
                weight.add_(moves[step])  # what the other optimisers do from where the model is
            lookahead.step()
            strength = 3 * (1 - (step + 1) / 10) if step + 1 >= 2 else 0
            ahead_before = place + (3 * (1 - step / 10) if step >= 2 else 0) * change
            new = ahead_before + moves[step]
            change = levers.LOOKAHEAD_DECAY * change + (1 - levers.LOOKAHEAD_DECAY) * (new - place)
            place = new
            torch.testing.assert_close(weight.detach(), place + strength * change)
    assert torch.equal(weight, lookahead.state[weight]["place"])  # not ahead at the end
    lookahead.state.clear()  # as a checkpoint from before the first step leaves it
    with pytest.raises(UsageError, match="begin again"):
        lookahead.step()


def test_the_mean_of_the_last_steps_is_plain():
    state, seen = learner(PLAN), []
    with pull("mean-of-last=0.34"):  # of nine: three
        for result in loop.train_steps(state, InMemoryImageStore(IMAGES), TARGETS, PLAN):
            seen.append(state.model.head.linear.weight.detach().clone())
            expected = torch.stack(seen[6:] if result.step > 6 else seen[-1:]).mean(dim=0)
            torch.testing.assert_close(state.ema.weights["head.linear.weight"], expected)
        bare = dataclasses.replace(PLAN, recipe=dataclasses.replace(PLAN.recipe, ema_decay=0.0))
        with pytest.raises(UsageError, match=r"Give --recipe\.ema_decay"):
            next(loop.train_steps(learner(bare), InMemoryImageStore(IMAGES), TARGETS, bare))


def test_another_order_changes_the_batches_and_nothing_else():
    def first_losses() -> list[float]:
        steps = loop.train_steps(learner(PLAN), InMemoryImageStore(IMAGES), TARGETS, PLAN)
        return [step.loss for step in itertools.islice(steps, 3)]

    def rows(seed: int) -> list[list[int]]:
        batches = loop.iter_batches(InMemoryImageStore(IMAGES), TARGETS, 8, seed, 0)
        return [batch.indices.tolist() for _, _, batch in itertools.islice(batches, 3)]

    usual, own, expected = first_losses(), rows(0), rows(2_000_000)
    with pull("other-order=2"):
        assert rows(0) == expected != own
        assert first_losses() == first_losses() != usual


def test_sizes_rise_in_three_stages():
    recipe = Recipe(steps=100, progressive_size=0.6, progressive_until=0.5, patch_keep_rate=0.5, patch_keep_until=0.7)
    with pull("three-sizes=0.75"):
        grids = [recipe.grid_at(step, Grid(7, 7)) for step in (0, 49, 50, 74, 75, 99)]
        stages, tokens = recipe.progressive_stages(), recipe.stage_tokens(Grid(7, 7))
        assert [grid.rows for grid in grids] == [4, 4, 6, 6, 7, 7]
        assert [begin for begin, _ in stages] == pytest.approx([0, 0.5, 0.7, 0.75])
        assert sum(fraction for _, fraction in stages) == pytest.approx(1) and tokens == [8, 18, 36, 49]
        with pytest.raises(UsageError, match=r"needs a recipe\.progressive_until .* Got 0\.0"):
            Recipe(steps=100).progressive_stages()
    assert len(recipe.progressive_stages()) == 3


def pass_slowly(model: nn.Module, images: Tensor, value_weight: float, skip: float) -> Tensor:
    """The outputs of a plain model with values mixed and the first block's tokens added to the last one's input."""
    x, places = model.embed(images)
    first_values = first_tokens = None
    blocks = model.encoder.blocks
    for i, block in enumerate(blocks):
        if i == len(blocks) - 1:
            x = x + skip * first_tokens
        attention = block.attention
        q, k, v = type(attention)._project_heads(attention, block.norm1(x), places)
        first_values = v if i == 0 else first_values
        v = (1 - value_weight) * v + value_weight * first_values if i else v
        y = attention_weights(q, k, attention.scale) @ v
        x = x + attention.out(y.transpose(1, 2).flatten(2))
        x = x + block.mlp(block.norm2(x))
        first_tokens = x if i == 0 else first_tokens
    return model.head(model.encoder.norm(x).mean(dim=1))


@pytest.mark.parametrize(
    ("text", "value_weight", "skip"),
    [("value-residual=0.3", 0.3, 0.0), ("first-skip=2", 0.0, 2.0), ("value-residual=0.5,first-skip=1", 0.5, 1.0)],
)
def test_values_and_tokens_of_the_first_block_come_to_later_ones(text, value_weight, skip):
    images = torch.randn(4, 1, 8, 8)
    plain = create_model(MODEL, seed=3)
    expected = pass_slowly(plain, images, value_weight, skip)
    with pull(text):
        model = create_model(MODEL, seed=3)
        assert model.state_dict().keys() == plain.state_dict().keys()
        outputs = model(images)
        torch.testing.assert_close(outputs, expected, atol=1e-5, rtol=1e-4)
        outputs.sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        visible = torch.stack([torch.arange(9), torch.arange(7, 16)])
        assert model(images[:2], visible).isfinite().all()
        torch.testing.assert_close(model.features(images, ["outputs"])["outputs"], outputs)
        torch.testing.assert_close(copy.deepcopy(model)(images), outputs)  # a copy keeps its own first values
        with pytest.raises(UsageError, match="grad_checkpointing"):
            create_model(dataclasses.replace(MODEL, grad_checkpointing=True))
    assert not torch.allclose(outputs, plain(images), atol=1e-3)


def test_relu_is_squared():
    with pull("relu-squared=1"):
        mlp = create_model(dataclasses.replace(MODEL, activation="ReLU")).encoder.blocks[0].mlp
    x = torch.tensor([-2.0, 0.0, 3.0])
    assert mlp.activation(x).tolist() == [0.0, 0.0, 9.0]


def test_heads_begin_by_looking_at_one_neighbour():
    assert levers.impulse(Grid(2, 3), 1, -1).argmax(dim=1).tolist() == [3, 3, 4, 3, 3, 4]
    config = dataclasses.replace(
        MODEL, image_size=(14, 14), width=96, heads=3, positions="learned", rotary="none", init="vitrail"
    )
    plain = create_model(config, seed=2)
    with pull("impulse=8"):
        model = create_model(config, seed=2)
        with pytest.raises(UsageError, match=r'impulse needs model\.positions="learned"'):
            create_model(MODEL)
    model.requires_grad_(False)
    weights = model.features(torch.zeros(1, 1, 14, 14), [f"blocks.{i}.attention" for i in range(3)])
    offsets, x = set(), model.encoder.blocks[0].norm1(model.positions.table[None])
    for i, block in enumerate(model.encoder.blocks):
        scores = block.attention.qkv(x)[0].unflatten(-1, (3, 3, 32))  # [N, 3, A, d]
        for head in range(3):
            looks_at = weights[f"blocks.{i}.attention"][0, head].argmax(dim=1)
            row, column = divmod(int(looks_at[24]) - 16, 7)  # of the patch in the middle, row 3 and column 3
            wanted = levers.impulse(Grid(7, 7), row - 1, column - 1)
            assert 0 <= row <= 2 and 0 <= column <= 2 and torch.equal(looks_at, wanted.argmax(dim=1))
            product = scores[:, 0, head] @ scores[:, 1, head].T * block.attention.scale
            above = product[wanted == 1].mean() - product[wanted == 0].mean()
            assert float(above) == pytest.approx(8, rel=1e-3)
            offsets.add((row, column))
    assert len(offsets) > 2
    others = [name for name in plain.state_dict() if "qkv" not in name and name != "positions.table"]
    assert others and all(torch.equal(model.state_dict()[name], plain.state_dict()[name]) for name in others)


@pytest.mark.parametrize(
    "text",
    [
        "row-moments=0.9,cautious-decay=1,muon-decay=0.1,momentum-ends=0.85,mean-of-last=0.5",
        "lookahead=3,value-residual=0.5,first-skip=1,relu-squared=1,three-sizes=0.75",
    ],
)
def test_a_run_with_levers_goes_on_with_the_same_bits(text, tmp_path: Path):
    plan = dataclasses.replace(PLAN, model=dataclasses.replace(MODEL, activation="ReLU"))

    def states(found: loop.TrainState) -> dict[str, Tensor]:
        return checkpoint.collect_tensors(found.model, found.optimizers, found.ema)

    def train(found: loop.TrainState, start: int, stop: int) -> None:
        steps = loop.train_steps(found, InMemoryImageStore(IMAGES), TARGETS, plan, start)
        assert sum(1 for _ in itertools.islice(steps, stop - start)) == stop - start

    without = learner(plan)
    train(without, 0, 9)
    with pull(text):
        whole = learner(plan)
        train(whole, 0, 9)
        first, second = learner(plan), learner(plan)
        train(first, 0, 7)
        path = checkpoint.save_checkpoint(tmp_path, 7, first.model, first.optimizers, first.ema)
        assert checkpoint.load_checkpoint(path, second.model, second.optimizers, second.ema) == 7
        train(second, 7, 9)
        assert states(second).keys() == states(whole).keys()
        assert all(torch.equal(states(second)[name], tensor) for name, tensor in states(whole).items())
        head = "model/head.linear.weight"
        assert not torch.equal(states(whole)[head], states(without)[head])


def test_sharded_weights_are_refused():
    with pull("muon-decay=0.1"), pytest.raises(UsageError, match=r"--compute\.strategy ddp"):
        optim.build_optimizers(create_model(MODEL), Recipe(), "cpu", sharded=True)
