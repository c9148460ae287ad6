"""The products that a model is measured against are its own."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from kinds import KINDS, TINY
from vitrail.bench import measure
from vitrail.model import flops


def counted(limit: measure.HardwareLimit) -> int:
    with FlopCounterMode(display=False) as counter:
        limit.job()
    return counter.get_total_flops()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", ["class token, learned", "relative, normed patches", "soft splits"])
def test_a_limit_counts_the_operations_that_it_does(kind, training):
    limit = measure.make_block_limit(KINDS[kind], 3, torch.float32, "cpu", training)
    assert counted(limit) == limit.amount


def test_the_products_of_a_plain_block_are_those_of_the_model():
    limit = measure.make_block_limit(TINY, 5, torch.float32, "cpu", training=False)
    blocks = sum(
        amount for part, amount in flops.flops_by_part(TINY, all_tokens=True).items() if part in measure.BLOCK_PARTS
    )
    assert limit.amount == 5 * blocks / TINY.depth


def test_a_model_without_blocks_is_measured_by_all_its_products():
    bare = dataclasses.replace(TINY, depth=0)
    assert measure.make_block_limit(bare, 2, torch.float32, "cpu", training=False).amount == 2 * flops.forward_flops(
        bare
    )


def test_a_large_product_and_a_copy_say_how_much_they_are():
    assert counted(measure.make_matmul_limit(torch.float32, "cpu")) == 2 * 2048**3
    assert measure.make_copy_limit("cpu").amount == 2 * 64 * 2**20
