"""Mask queries: the formula, patches that do not see them, places of parts to the pixel, tiles and graphs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitrail.errors import UsageError
from vitrail.model import flops
from vitrail.model.class_maps import spread_logits, to_class_maps
from vitrail.model.config import ViTConfig
from vitrail.model.mask_queries import MIN_SCORE
from vitrail.model.tiling import Tiling
from vitrail.model.vit import ViT

PLAIN = ViTConfig(
    image_size=(32, 24), patch=(8, 8), width=24, depth=3, heads=2, mlp_width=48, outputs=3, pool="patches",
    pool_blocks=2, registers=1,
)  # fmt: skip
ASKED = dataclasses.replace(PLAIN, upsample=4, queries=5, query_blocks=2)


def filled(config: ViTConfig) -> ViT:
    """A model whose weights are all drawn, those that begin at zero too."""
    model, generator = ViT(config, seed=1).eval(), torch.Generator().manual_seed(2)
    for weights in model.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.3, generator=generator)
    return model


def images(size: tuple[int, int] = (32, 24), n: int = 2) -> torch.Tensor:
    return torch.randn(n, 3, *size, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def test_parts_have_the_logarithm_of_what_all_queries_say():
    model = filled(ASKED)
    head = model.head.queries
    assert head is not None
    outputs = model(images())
    assert outputs.shape == (2, 12, 3 * 17)
    x, places = model.embed(images())
    x = model.encoder.blocks[0](x, places)
    queries = head.queries.expand(2, -1, -1)
    for block in model.encoder.blocks[1:]:
        both = torch.cat([x, queries], dim=1)  # all of them together, of which the block gives the queries' rows
        queries, x = block(both, places)[:, x.shape[1] :], block(x, places)
    queries, patches = model.encoder.norm(queries).double(), model.encoder.norm(x)[:, 2:].double()
    head = head.double()
    for patch in (0, 7):
        for part in (0, 6, 15):
            for k in range(3):
                score = torch.zeros(2, dtype=torch.float64)
                for q in range(5):
                    chance = head.classes(queries[:, q]).softmax(-1)[:, k]
                    numbers = head.parts(patches[:, patch])[:, 64 * part : 64 * (part + 1)]
                    mask = head.mask(torch.nn.functional.gelu(head.hidden(queries[:, q])))
                    score += chance * (numbers * mask).sum(-1).sigmoid()
                found = outputs[:, patch, 3 + 16 * k + part].double()
                torch.testing.assert_close(found, (score + MIN_SCORE).log(), atol=1e-4, rtol=0)


@torch.no_grad()
def test_patches_do_not_see_the_queries():
    model, plain = filled(ASKED), ViT(PLAIN).eval()
    kept = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("head.queries.")}
    plain.load_state_dict(kept)
    assert torch.equal(model(images())[..., :3], plain(images()))
    assert torch.equal(model.pooled(images()), plain.pooled(images()))
    assert torch.equal(model.features(images(), keep=("outputs",))["outputs"], model(images()))


@torch.no_grad()
def test_equal_classes_change_no_answer():
    model = filled(ASKED)
    assert model.head.queries is not None
    for weights in model.head.queries.classes.parameters():
        weights.zero_()
    logits = model(images())
    assert torch.equal(to_class_maps(logits, ASKED), to_class_maps(logits[..., :3], PLAIN))
    assert logits[..., 3:].unflatten(-1, (3, 16)).std(2).max() < 1e-6


@pytest.mark.parametrize("axis", ["rows", "columns"])
@torch.no_grad()
def test_the_mask_of_a_query_lies_on_its_pixels(axis: str):
    """One query takes the second half of every patch for class 1, another the first half for class 0."""
    config = dataclasses.replace(ASKED, queries=2)
    model = filled(config)
    head = model.head.queries
    assert head is not None and model.head.linear is not None
    for weights in (*model.head.linear.parameters(), *head.parameters()):
        weights.zero_()
    head.queries[0, 0, 0] = 1e4  # so that the norm of the two is known, whatever the blocks add
    head.queries[0, 1, 1] = 1e4
    own = model.encoder.forward_with_queries(*model.embed(images()), model.pool_span, head.queries)[1]  # [2, 2, 24]
    numbers = torch.arange(16)
    second = (numbers // 4 if axis == "rows" else numbers % 4) >= 2
    head.parts.bias.view(16, 64)[:, 0] = torch.where(second, 1.0, -1.0)
    head.hidden.weight[0, 0], head.hidden.weight[1, 1] = 1.0, 1.0
    head.mask.weight[0, 0], head.mask.weight[0, 1] = 20.0, -20.0  # inside the second half; inside the first
    head.classes.weight[1, 0], head.classes.weight[0, 1] = 20.0, 20.0
    assert own[:, 0, 0].min() > 3 and own[:, 1, 1].min() > 3
    found = to_class_maps(model(images()), config)
    place = torch.arange(32)[:, None].expand(32, 24) if axis == "rows" else torch.arange(24).expand(32, 24)
    assert torch.equal(found[0], (place % 8 >= 4).to(torch.uint8)) and torch.equal(found[0], found[1])
    assert spread_logits(model(images()), config).shape == (2, 3, 32, 24)


def test_tiles_have_queries_of_their_own():
    tiled = dataclasses.replace(ASKED, image_size=(24, 24), tiles=(2, 2), tile_overlap=1)
    model, whole = filled(tiled), filled(dataclasses.replace(tiled, tiles=(1, 1), tile_overlap=0))
    whole.load_state_dict(model.state_dict())
    large = images(tiled.input_size)
    with torch.no_grad():
        found = model(large).unflatten(1, tiled.input_grid)  # [2, 5, 5, 51]
        tiles = [whole(tile).unflatten(1, (3, 3)) for tile in Tiling(tiled).cut(large)]
        kept = model.features(large, keep=("outputs",))["outputs"]
    torch.testing.assert_close(found[:, :2, :2], tiles[0][:, :2, :2], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[:, 3:, 3:], tiles[3][:, 1:, 1:], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(kept, found.flatten(1, 2))


def test_an_exported_graph_and_recomputed_blocks_give_the_same():
    model, recomputed = filled(ASKED), filled(dataclasses.replace(ASKED, grad_checkpointing=True))
    program = torch.export.export(model, (images(n=3),), dynamic_shapes={"images": {0: torch.export.Dim.DYNAMIC}})
    with torch.no_grad():
        torch.testing.assert_close(program.module()(images()), model(images()), atol=1e-4, rtol=1e-4)
    for each in (model, recomputed):
        each(images()).square().sum().backward()
    pairs = zip(model.named_parameters(), recomputed.parameters(), strict=True)
    for (name, ours), theirs in pairs:
        assert ours.grad is not None and theirs.grad is not None and ours.grad.any(), name
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4 * float(ours.grad.abs().max()), rtol=1e-3)


def test_its_operations_are_those_that_torch_counts():
    model = filled(ASKED)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(images())
    assert flops.forward_flops(ASKED) == counter.get_total_flops() // 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"upsample": 1}, "queries need upsample of 2 or more"),
        ({"query_blocks": 4}, r"query_blocks of 1 to 3 \(depth\)"),
        ({"rotary": "axial", "positions": "none"}, "queries have no place in the image"),
        ({"relative": 2}, "queries have no place in the image"),
        ({"queries": -1}, "queries must be 0 or more"),
    ],
)
def test_what_queries_cannot_do_is_said(changes: dict[str, object], message: str):
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(ASKED, **changes)
