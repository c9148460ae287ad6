"""The formula of a training's memory, against what autograd keeps."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from vitrail.model.config import ViTConfig
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model, parameter_count
from vitrail.train.plan import ComputeSettings, Plan, Recipe
from vitrail.train.planning import cost_estimate


def saved(config: ViTConfig, batch: int, number_format: str) -> int:
    """Bytes that the forward pass keeps beside the weights, each piece of memory counted once."""
    model = create_model(config).train()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    pieces: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            pieces[storage.data_ptr()] = storage.nbytes()
        return tensor

    images = torch.rand(batch, config.channels, *config.image_size)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=number_format == "bfloat16"),
    ):
        answer = model(images)
    del answer
    return sum(pieces.values())


@pytest.mark.parametrize("path", ["fused", "open"])
@pytest.mark.parametrize("number_format", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["vit_pico_patch4_28", "vit_mu_patch4_32", "deit3_small_patch16_224"])
def test_the_formula_is_within_a_quarter_of_what_is_kept(name, number_format, path):
    """On a CPU; in the open path a GPU's bfloat16 keeps the weights of attention twice."""
    config = dataclasses.replace(config_from_name(name), attention=path)
    if config.depth > 4:
        config = dataclasses.replace(config, depth=3)
    recipe, compute = Recipe(batch_size=4), ComputeSettings(precision=number_format)
    told = cost_estimate.estimate_activation_memory(Plan(model=config, recipe=recipe, compute=compute))
    cast = 0 if number_format == "float32" else 2 * parameter_count(config)
    assert told + cast == pytest.approx(saved(config, 4, number_format), rel=0.25)


def test_processes_share_the_batch_and_under_fsdp_the_weights():
    plan = dataclasses.replace(Plan(), recipe=Recipe(batch_size=64), compute=ComputeSettings(device="cuda"))
    alone, two, shared = (cost_estimate.estimate_training_memory(plan, *parts) for parts in ((1, 1), (1, 2), (2, 2)))
    whole = cost_estimate.GPU_OVERHEAD * cost_estimate.estimate_weight_memory(plan)
    assert two - whole == pytest.approx((alone - whole) / 2, rel=1e-6)
    assert shared == pytest.approx(two - whole * (1 / 2 - 2 / plan.model.depth), rel=1e-6)


def test_a_second_computation_keeps_less():
    plan = Plan()
    again = dataclasses.replace(plan, model=dataclasses.replace(plan.model, grad_checkpointing=True))
    assert cost_estimate.estimate_activation_memory(again) < cost_estimate.estimate_activation_memory(plan) / 4


def test_weights_gradients_and_moments_are_counted_by_their_optimiser():
    model = dataclasses.replace(config_from_name("vit_pico_patch4_28"), grad_checkpointing=True)
    plans = [Plan(model=model, recipe=Recipe(batch_size=1, optimizer=name)) for name in ("adamw", "muon")]
    adamw, muon = (cost_estimate.estimate_training_memory(plan) for plan in plans)
    count = parameter_count(model)
    assert adamw > 16 * count > muon > 12 * count
    mean = dataclasses.replace(plans[0], recipe=dataclasses.replace(plans[0].recipe, ema_decay=0.9))
    assert cost_estimate.estimate_training_memory(mean) - adamw == pytest.approx(4 * count, abs=2)
    on_gpu = [dataclasses.replace(each, compute=ComputeSettings(device="cuda")) for each in (plans[0], mean)]
    without, with_mean = (cost_estimate.estimate_training_memory(plan) for plan in on_gpu)
    assert without > 1.15 * 16 * count and with_mean - without == pytest.approx(1.15 * 4 * count, abs=2)


def test_wide_models_keep_no_weights_of_attention_where_these_are_made_again():
    recipe, compute = Recipe(batch_size=4), ComputeSettings(precision="bfloat16")
    config = dataclasses.replace(config_from_name("vit_base_patch16_224"), attention="open", depth=2, outputs=10)
    told = cost_estimate.estimate_activation_memory(Plan(model=config, recipe=recipe, compute=compute))
    assert told + 2 * parameter_count(config) == pytest.approx(saved(config, 4, "bfloat16"), rel=0.25)
    dropping = dataclasses.replace(config, attention_dropout=0.1)
    more = cost_estimate.estimate_activation_memory(Plan(model=dropping, recipe=recipe, compute=compute)) - told
    assert more == 2 * 4 * (197 + 1) * (768 + 12 * 197)  # the last block for the class token alone


def test_a_batch_in_parts_keeps_one_part_at_a_time():
    whole, parts = (
        cost_estimate.estimate_activation_memory(Plan(recipe=Recipe(batch_size=64, grad_accum_steps=count)))
        for count in (1, 4)
    )
    assert parts == whole / 4


def test_memory_grows_with_batch_and_size():
    plans = [Plan(recipe=Recipe(batch_size=batch)) for batch in (1, 8, 64)]
    found = [cost_estimate.estimate_training_memory(plan) for plan in plans]
    assert found == sorted(found) and found[2] > 2 * found[1]


def test_the_peak_of_this_process_is_that_of_a_python_with_torch():
    assert 50 * 2**20 < cost_estimate.measure_peak_memory("cpu") < 64 * 2**30
