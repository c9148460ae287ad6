"""Every word of the rules on a made-up family: parts, prefixes, drops, zeros, and what is left aside."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from parity.negative import refuses_every_damage
from vitrail.checkpoints.adapt import build_model, build_on_meta
from vitrail.checkpoints.layouts import LayoutHints, NameRule
from vitrail.checkpoints.rules import load_with_layout, read_with_layout, write_with_layout
from vitrail.errors import DamagedFileError, UsageError

from .toy import CONFIG, TOY, describe, model


def written() -> dict[str, Tensor]:
    return write_with_layout(model().state_dict(), CONFIG, TOY)


def loaded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    bare = {name.removeprefix("toy."): tensor for name, tensor in tensors.items()}
    config = describe(bare, LayoutHints())
    return read_with_layout(tensors, build_on_meta(config).state_dict(), config, TOY, "toy.pt")[0]


def test_a_written_file_reads_back_as_the_same_parameters() -> None:
    state = model().state_dict()
    values = loaded(written())
    assert values.keys() == state.keys()
    assert all(torch.equal(values[name], tensor) for name, tensor in state.items())


def test_parts_are_cut_and_put_together_in_their_order() -> None:
    state, tensors = model().state_dict(), written()
    q, k, v = (tensors[f"toy.layer.1.{part}.weight"] for part in ("query", "key", "value"))
    assert torch.equal(torch.cat([q, k, v]), state["encoder.blocks.1.attention.qkv.weight"])
    both = torch.cat([state["pool.attention.q.bias"], state["pool.attention.kv.bias"]])
    assert torch.equal(tensors["toy.map.in_bias"], both)


def test_the_prefix_stands_before_all_names_but_those_outside_and_is_left_out_of_a_bare_model() -> None:
    assert {name for name in written() if not name.startswith("toy.")} == {"classifier.weight", "classifier.bias"}
    bare = replace(CONFIG, outputs=0)
    tensors = write_with_layout(model(bare).state_dict(), bare, TOY)
    assert not any(name.startswith("toy.") for name in tensors)
    assert loaded(tensors).keys() == loaded({f"toy.{name}": tensor for name, tensor in tensors.items()}).keys()


def test_a_prefix_that_only_some_names_have_is_an_error() -> None:
    tensors = written()
    tensors["cls"] = tensors.pop("toy.cls")
    with pytest.raises(DamagedFileError, match=r"1 missing: toy\.cls .*; 1 without a rule: cls"):
        loaded(tensors)


def test_what_nobody_uses_is_written_with_initial_values_and_may_be_left_out_together() -> None:
    tensors = written()
    assert torch.equal(tensors["toy.mask"], torch.zeros(1, 8))
    assert torch.equal(tensors["toy.layer.0.spare.weight"], torch.ones(8))
    assert loaded({name: tensor for name, tensor in tensors.items() if ".spare." not in name and name != "toy.mask"})
    del tensors["toy.layer.0.spare.bias"]
    with pytest.raises(DamagedFileError, match=r"1 missing: toy\.layer\.0\.spare\.bias"):
        loaded(tensors)


def test_what_is_left_aside_may_hold_anything_and_is_listed_with_its_reason() -> None:
    aside = {"decoder.0.weight": torch.full((2, 2), torch.nan), "toy.x.position_ids": torch.arange(3)}
    tensors = {**written(), **aside}
    _, audit = read_with_layout(tensors, build_on_meta(CONFIG).state_dict(), CONFIG, TOY, "toy.pt")
    rows = {row.theirs: (row.action, row.ours) for row in audit.rows}
    assert rows["decoder.0.weight"] == ("dropped", "the decoder is of no use after pre-training")
    assert rows["toy.x.position_ids"] == ("dropped", "only counts positions")
    assert rows["toy.layer.0.key.weight"] == ("loaded", "encoder.blocks.0.attention.qkv.weight")
    assert rows["toy.map.in_weight"] == ("loaded", "pool.attention.q.weight, pool.attention.kv.weight")
    assert len(rows) == len(tensors)


def test_every_damage_is_refused_by_name() -> None:
    state = build_on_meta(CONFIG).state_dict()
    count = refuses_every_damage(
        written(),
        lambda tensors: build_model(CONFIG, read_with_layout(tensors, state, CONFIG, TOY, "toy.pt")[0]),
        optional=("toy.mask",),
    )
    assert count == 5 * len(written()) - 1


def test_taking_empties_the_dictionary_and_shares_no_memory() -> None:
    tensors = written()
    alive = list(tensors.values())
    values, audit = load_with_layout(tensors, build_on_meta(CONFIG).state_dict(), CONFIG, TOY, "toy.pt")
    assert not tensors and audit.rows
    own = [tensor.untyped_storage().data_ptr() for tensor in values.values()]
    assert len(set(own)) == len(own)
    assert {tensor.untyped_storage().data_ptr() for tensor in alive}.isdisjoint(own)


def test_a_model_with_another_part_is_refused_when_written_unless_the_settings_say_it() -> None:
    changed = replace(CONFIG, norm_eps=1e-5)
    words = re.escape("The layout toy cannot hold this model: it means norm_eps=1e-06")
    with pytest.raises(UsageError, match=words):
        write_with_layout(model(changed).state_dict(), changed, TOY)
    assert write_with_layout(model(changed).state_dict(), changed, TOY, settings={"norm_eps": 1e-5})


def test_fixed_positions_are_written_as_the_table_they_are() -> None:
    fixed = replace(CONFIG, positions="sincos2d")
    assert torch.equal(
        write_with_layout(model(fixed).state_dict(), fixed, TOY)["toy.table"],
        model(fixed).state_dict()["positions.table"],
    )


def test_a_layout_may_express_the_same_function_in_other_values() -> None:
    def express(config, state):
        if config.registers:
            raise UsageError("toy has no place for registers.")
        return replace(config, patches="conv"), {**state, "tokens.cls": state["tokens.cls"] + 1}

    other = replace(TOY, prepare_export=express)
    assert torch.equal(
        write_with_layout(model().state_dict(), CONFIG, other)["toy.cls"], model().state_dict()["tokens.cls"] + 1
    )
    registers = replace(CONFIG, registers=2)
    with pytest.raises(UsageError, match="toy has no place for registers"):
        write_with_layout(model(registers).state_dict(), registers, other)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (NameRule("cls", "tokens.cls"), r"toy has two rules for \('cls',\)"),
        (NameRule("class", "tokens.cls"), r"toy fills \('tokens\.cls',\) twice"),
    ],
)
def test_a_table_with_two_rules_for_one_tensor_is_our_mistake(extra: NameRule, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        write_with_layout(model().state_dict(), CONFIG, replace(TOY, prefix="", rules=(*TOY.rules, extra)))
