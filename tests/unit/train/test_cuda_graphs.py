"""Which steps are recorded as CUDA graphs, how often, and what happens where one cannot be.

What a recorded step computes can be seen on a GPU alone: `benchmarks/gpu.py` compares it with one that is not.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from vitrail.errors import MachineWarning
from vitrail.model.cache import cache_results, hold_results
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.spec import ImageSpec
from vitrail.train.cuda_graphs import GraphedForwardLoss, can_record
from vitrail.train.distributed.collectives import SINGLE_PROCESS, RankGroup
from vitrail.train.distributed.data_parallel import ParallelModel
from vitrail.train.plan import ComputeSettings, Plan, Recipe

MODEL = ViTConfig(image_size=(16, 16), patch=(4, 4), channels=1, width=16, depth=2, heads=2, outputs=3)
PLAN = Plan(
    model=MODEL,
    image=ImageSpec(height=16, width=16, channels=1),
    recipe=Recipe(steps=12, batch_size=8),
    compute=ComputeSettings(device="cuda"),
)


def change(section, **fields):
    return dataclasses.replace(PLAN, **{section: dataclasses.replace(getattr(PLAN, section), **fields)})


def test_one_uncompiled_pass_on_one_gpu_is_recorded_and_nothing_else():
    assert can_record(PLAN, SINGLE_PROCESS)
    assert not can_record(change("compute", device="cpu"), SINGLE_PROCESS)
    assert not can_record(change("compute", device="mps"), SINGLE_PROCESS)
    assert not can_record(change("compute", compile=True), SINGLE_PROCESS)
    assert not can_record(change("recipe", grad_accum_steps=2), SINGLE_PROCESS)
    two = RankGroup.__new__(RankGroup)
    two.world_size = 2
    assert not can_record(PLAN, two)


@pytest.fixture
def recorder(monkeypatch):
    """A GPU's recording, on the CPU: a module is marked as recorded, and its calls are its own."""
    recorded = []

    def record(step, sample, **options):
        step(*sample)
        recorded.append(tuple(tuple(each.shape) for each in sample))

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", record)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.get_rng_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: torch.set_rng_state(state))
    return recorded


def total_of(images, rows, targets, weights):
    noise = torch.rand(())  # as dropout draws
    chosen = images if rows is None else images[:, rows[0]]
    return (chosen.sum() * (1 if weights is None else weights.sum()) + noise, targets)


def test_each_signature_is_recorded_once_and_uses_up_no_random_numbers(recorder):
    forward_loss = GraphedForwardLoss(ParallelModel(create_model(MODEL, 0)), total_of)
    images, targets = torch.ones(4, 3), torch.zeros(4)
    rows, weights = torch.tensor([[0, 2]]), torch.full((4,), 0.5)
    for inputs in [(images, None, targets, None), (images, rows, targets, None), (images[:2], None, targets, weights)]:
        for _ in range(2):
            torch.manual_seed(3)
            expected = total_of(*inputs)[0]
            torch.manual_seed(3)
            assert torch.equal(forward_loss(*inputs)[0], expected)
    assert recorder == [((4, 3), (4,)), ((4, 3), (1, 2), (4,)), ((2, 3), (4,), (4,))]


def test_a_step_that_cannot_be_recorded_runs_kernel_by_kernel_and_says_so_once(recorder, monkeypatch):
    def refuse(step, sample, **options):
        raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors might be ...")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", refuse)
    forward_loss = GraphedForwardLoss(ParallelModel(create_model(MODEL, 0)), total_of)
    with pytest.warns(MachineWarning, match=r"not recorded as a CUDA graph.*: operation not permitted .* capturing$"):
        first = forward_loss(torch.ones(2, 2), None, torch.zeros(2), None)
    assert 4 <= first[0] <= 5
    forward_loss(torch.ones(2, 2), None, torch.zeros(2), None)  # a second warning would be an error of this test


def test_full_memory_is_no_reason_to_go_on(recorder, monkeypatch):
    def fill(step, sample, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", fill)
    forward_loss = GraphedForwardLoss(ParallelModel(create_model(MODEL, 0)), total_of)
    with pytest.raises(torch.OutOfMemoryError):
        forward_loss(torch.ones(2, 2), None, torch.zeros(2), None)


def test_cached_tables_that_a_recording_reads_stay_in_memory():
    table = cache_results(lambda size: torch.zeros(size))
    with hold_results() as held:
        read = table(5)
    for size in range(6, 200):
        table(size)  # evicts the first from the cache
    assert table(5) is not read and held[0] is read and len(held) == 1
