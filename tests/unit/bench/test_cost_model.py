"""Times, memory and links on many devices: each formula against a figure by hand."""

from __future__ import annotations

import dataclasses

import pytest

from vitrail.bench import cost_model
from vitrail.bench.cost_model import Hardware, StepSeconds, Workload, estimate_workload_cost
from vitrail.errors import UsageError
from vitrail.evaluate.inference import num_parallel_parts_on
from vitrail.model import flops
from vitrail.model.registry import config_from_name
from vitrail.model.vit import parameter_count
from vitrail.services.open_model import default_image_spec
from vitrail.train.plan import ComputeSettings, Plan, Recipe
from vitrail.train.planning import cost_estimate

SMALL, GIANT = config_from_name("vit_small_patch16_224"), config_from_name("vit_giant_patch14_224")
H100 = cost_model.get_device_spec("h100")
ROOM = Hardware(capability="cuda", memory_bytes=80e9, link_bandwidth=450e9)


def test_one_device_waits_for_nobody():
    found = estimate_workload_cost(Workload(config=SMALL, batch_size=100), StepSeconds(forward=0.1, step=0.5), ROOM)
    assert (found.engine, found.sent, found.waiting) == ("alone", 0.0, 0.0)
    assert found.training_rate == 200 and found.inference_rate == 1000
    assert found.training_flops == 3 * found.forward_flops == 3 * flops.forward_flops(SMALL)


def test_copies_on_eight_devices_sum_their_gradients_during_the_backward_pass():
    wanted = Workload(config=SMALL, batch_size=800, num_devices=8)
    found = estimate_workload_cost(
        wanted, StepSeconds(forward=0.1, step=0.5), Hardware(capability="cuda", memory_bytes=80e9, link_bandwidth=1e8)
    )
    count = parameter_count(SMALL)
    assert found.engine == "ddp" and found.sent == pytest.approx(2 * 4 * count * 7 / 8)
    assert found.waiting == pytest.approx(found.sent / 1e8 - 0.5 * 2 / 3)
    assert found.training_rate == pytest.approx(800 / (0.5 + found.waiting))
    assert estimate_workload_cost(wanted, StepSeconds(0.1, 0.5), ROOM).waiting == 0


def test_what_does_not_fit_is_shared_out():
    tight = dataclasses.replace(ROOM, memory_bytes=20e9)
    wanted = Workload(config=GIANT, batch_size=64, num_devices=64)
    found = estimate_workload_cost(wanted, StepSeconds(0.1, 0.3), tight)
    assert found.engine == "fsdp" and found.fits
    assert found.sent == pytest.approx(3 * 4 * parameter_count(GIANT) * 63 / 64)
    alone = estimate_workload_cost(
        dataclasses.replace(wanted, num_devices=1, batch_size=1), StepSeconds(0.1, 0.3), tight
    )
    assert alone.engine == "alone" and not alone.fits and alone.training_memory > found.training_memory


def test_shares_take_their_part_of_weights_and_moments():
    plan = Plan(model=GIANT, recipe=Recipe(batch_size=1), compute=ComputeSettings(device="cuda", precision="bfloat16"))
    whole, shared = cost_estimate.estimate_training_memory(plan), cost_estimate.estimate_training_memory(plan, 64)
    saved = cost_estimate.GPU_OVERHEAD * cost_estimate.estimate_weight_memory(plan) * (1 - 1 / 64 - 2 / GIANT.depth)
    assert whole - shared == pytest.approx(saved, rel=1e-6)


@pytest.mark.parametrize(("batch", "count"), [(0, 1), (8, 0), (10, 4)])
def test_batches_must_part_evenly(batch, count):
    with pytest.raises(UsageError, match=str(batch)):
        Workload(config=SMALL, batch_size=batch, num_devices=count)


def test_answers_take_weights_and_one_blocks_numbers():
    small, large = (
        cost_model.estimate_inference_memory(Workload(config=SMALL, batch_size=batch), ROOM) for batch in (1, 2)
    )
    assert 6 * parameter_count(SMALL) < small < 8 * parameter_count(SMALL)
    tokens = SMALL.tokens * (8 * 384 + 2 * 2 * 1536) + 5 * 3 * 224 * 224
    assert large - small == pytest.approx(cost_estimate.GPU_OVERHEAD * tokens, rel=0.01)


def test_a_processor_holds_a_few_parts_of_a_batch_at_once_and_what_it_has_freed():
    room = Hardware(capability="AVX512", memory_bytes=None, link_bandwidth=1e9, num_threads=2)
    wanted = Workload(config=SMALL, batch_size=16, precision="float32")
    assert num_parallel_parts_on(2, SMALL, 16, "float32") == 6  # of which two are computed at a time
    pixels, largest = 3 * 224 * 224, 4 * 384 * 1536
    numbers = 8 * 384 + 4 * 2 * 1536  # the open path is not taken in float32 with so many tokens
    used = 16 / 3 * (SMALL.tokens * numbers + 4 * pixels) + 16 * pixels
    assert cost_model.estimate_inference_memory(wanted, room) == pytest.approx(
        4 * parameter_count(SMALL)
        + cost_model.CPU_FRAGMENTATION_FLOAT32 * used
        + cost_model.EXTRA_MATRIX_COPIES * largest
    )
    alone = dataclasses.replace(room, num_threads=1)
    assert cost_model.estimate_inference_memory(wanted, alone) > 1.5 * cost_model.estimate_inference_memory(
        wanted, room
    )


def test_on_paper_a_step_is_its_operations_and_the_optimisers_bytes():
    found = cost_model.estimate_step_seconds(SMALL, 64, H100, "bfloat16", "adamw", 0.5)
    products = 64 * flops.training_flops(SMALL) / (989e12 / 2)
    assert found.step == pytest.approx(products + 32 * parameter_count(SMALL) / 3.35e12)
    assert found.forward == pytest.approx(products / 3)


def test_muon_multiplies_matrices_of_the_blocks():
    tiny = config_from_name("vit_mu_patch8_16")  # one block, width 32, MLP 128
    square, wide = 4 * 32**3 + 2 * 32**3, 4 * 32 * 32 * 128 + 2 * 32**3
    assert cost_model.count_optimizer_flops(tiny, "muon") == 5 * (4 * square + 2 * wide)
    assert cost_model.count_optimizer_flops(tiny, "adamw") == 0
    matrices = 4 * 32 * 32 + 2 * 32 * 128
    assert (
        cost_model.count_optimizer_bytes(tiny, "adamw") - cost_model.count_optimizer_bytes(tiny, "muon") == 8 * matrices
    )


def test_this_machine_is_measured_with_few_blocks():
    config = dataclasses.replace(config_from_name("vit_mu_patch8_16"), depth=6, outputs=0)
    found = cost_model.measure_step_seconds(
        config, default_image_spec(config), 4, "cpu", "float32", "adamw", num_rounds=3
    )
    assert 0 < found.forward < 5 and found.forward / 3 < found.step < 5  # others may be using the machine


def test_the_line_through_two_depths_reaches_the_model():
    assert cost_model._extrapolate_depth((1, 3), [2.0, 6.0], 12) == pytest.approx(24.0)
    assert cost_model._extrapolate_depth((4,), [5.0], 4) == 5.0


def test_the_way_between_machines_is_the_slower_one():
    assert H100.link_bandwidth(8) == 450e9 and H100.link_bandwidth(16) == 50e9
    with pytest.raises(UsageError, match=r"h100, h200, a100\. Got 'tpu'\."):
        cost_model.get_device_spec("tpu")
