"""Wrappers and prefixes that training scripts leave around a model's tensors."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vitrail.checkpoints import weight_files
from vitrail.checkpoints.weight_files import NETWORKS, open_weights_file, unwrap_state_dict
from vitrail.errors import DamagedFileError, ResourceError, UsageError

WEIGHT = torch.ones(2)


def unwrapped(content: dict) -> dict[str, torch.Tensor]:
    return unwrap_state_dict(content, "f.pt", NETWORKS["original"], [])


@pytest.mark.parametrize(
    "wrapper", ["model_ema", "state_dict_ema", "state_dict", "model_state_dict", "model", "module"]
)
def test_the_tensors_under_a_known_wrapper_are_taken_and_its_neighbours_left(wrapper: str) -> None:
    assert unwrapped({"epoch": 3, wrapper: {"a": WEIGHT}}) == {"a": WEIGHT}


def test_averaged_weights_are_preferred_and_wrappers_may_be_nested() -> None:
    content = {"state_dict": {"a": torch.zeros(2)}, "model_ema": {"module": {"a": WEIGHT}}}
    assert unwrapped(content) == {"a": WEIGHT}


def test_prefixes_that_every_name_has_are_taken_off() -> None:
    assert unwrapped({"_orig_mod.module.a": WEIGHT, "_orig_mod.module.b": WEIGHT}).keys() == {"a", "b"}
    assert unwrapped({"module.a": WEIGHT, "b": WEIGHT}).keys() == {"module.a", "b"}


@pytest.mark.parametrize("part", ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
def test_parts_of_names_that_wrappers_insert_are_taken_out_wherever_they_are(part: str) -> None:
    assert unwrapped({f"blocks.0.{part}.a": WEIGHT, "b": WEIGHT}).keys() == {"blocks.0.a", "b"}
    assert unwrapped({f"{part}.a": WEIGHT, "a": WEIGHT}).keys() == {f"{part}.a", "a"}


def test_the_counter_of_averaged_weights_is_left_out_beside_them_only() -> None:
    assert unwrapped({"module.a": WEIGHT, "n_averaged": torch.tensor(3)}).keys() == {"a"}
    assert unwrapped({"a": WEIGHT, "n_averaged": torch.tensor(3)}).keys() == {"a", "n_averaged"}


@pytest.mark.parametrize("key", ["net", "weights", "best", "params"])
def test_a_single_dictionary_of_tensors_may_have_any_key(key: str) -> None:
    notes: list[str] = []
    optimizer = {"state": {0: {"exp_avg": WEIGHT}}, "param_groups": [{"lr": 0.1}]}
    content = {key: {"module.a": WEIGHT}, "epoch": 3, "optimizer": optimizer, "hyper_parameters": {}}
    assert unwrap_state_dict(content, "f.pt", NETWORKS["original"], notes).keys() == {"a"}
    assert notes == [f"{key} was read"]


def test_of_several_models_under_other_keys_one_is_asked_for(tmp_path: Path) -> None:
    path = saved(tmp_path, {"generator": {"a": torch.zeros(2)}, "critic": {"a": WEIGHT}, "step": 3})
    with pytest.raises(UsageError, match=r"holds 2 models\. Name one with network=: generator, critic\."):
        open_weights_file(path)
    assert torch.equal(open_weights_file(path, network="critic").tensors["a"], WEIGHT)


def test_a_model_beside_the_one_that_is_read_is_noted_and_can_be_named(tmp_path: Path) -> None:
    path = saved(tmp_path, {"model": {"a": torch.zeros(2)}, "teacher": {"a": WEIGHT}})
    assert open_weights_file(path).notes == ["model was read, not teacher: network= chooses"]
    assert torch.equal(open_weights_file(path, network="teacher").tensors["a"], WEIGHT)


def test_a_network_may_be_an_attribute_of_the_module_that_was_saved(tmp_path: Path) -> None:
    path = saved(tmp_path, {"state_dict": {"net.module.a": WEIGHT, "net.module.b": WEIGHT, "loss.weight": WEIGHT}})
    content = open_weights_file(path, network="net")
    assert content.tensors.keys() == {"a", "b"}
    assert content.notes == ["net was read, the tensors whose names begin with it; left out: loss"]
    with pytest.raises(UsageError, match=r"holds one model, not several networks\. Leave network='ne' out"):
        open_weights_file(path, network="ne")


def test_one_dictionary_under_many_keys_costs_no_time() -> None:
    shared: dict[str, object] = {f"a{i}": WEIGHT for i in range(20_000)}
    nested: dict[str, object] = {"x": 1}
    for _ in range(60):
        nested = dict.fromkeys(weight_files.WRAPPERS, nested)
    start = time.process_time()
    for content in ({f"b{i}": shared for i in range(20_000)}, nested):
        with pytest.raises((DamagedFileError, UsageError)):
            unwrapped(content)
    assert time.process_time() - start < 2


def test_parts_of_a_deepspeed_checkpoint_are_named() -> None:
    for content in ({"module": {"a": torch.empty(0)}}, {"optimizer_state_dict": {"zero_stage": 3}}):
        with pytest.raises(
            DamagedFileError, match=r"f\.pt holds no whole model\. .*python zero_to_fp32\.py FOLDER OUT"
        ):
            unwrapped({**content, "ds_version": "0.16"})
    assert unwrapped({"module": {"a": WEIGHT}, "ds_version": "0.16"}).keys() == {"a"}


@pytest.mark.parametrize(("suffix", "library"), [("pdparams", "PaddlePaddle"), ("h5", "Keras"), ("msgpack", "Flax")])
def test_the_library_of_a_file_that_is_not_read_is_named(suffix: str, library: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"f\.{suffix}, a file of {library}: save its weights as safetensors there"):
        open_weights_file(tmp_path / f"f.{suffix}")


def test_something_else_than_tensors_is_named() -> None:
    with pytest.raises(DamagedFileError, match=r"f\.pt must hold tensors by name, .*something else called epoch, lr\."):
        unwrapped({"a": WEIGHT, "epoch": 3, "lr": 0.1})


def test_a_file_of_another_ending_is_no_weights_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ends in \.safetensors, \.npz, \.pt, \.pth, .* Got .*weights\.txt"):
        open_weights_file(tmp_path / "weights.txt")


def several(**networks: torch.Tensor) -> dict[str, object]:
    return {"epoch": 3, **{name: {"module.a": tensor} for name, tensor in networks.items()}}


def saved(folder: Path, content: object) -> Path:
    torch.save(content, folder / "f.pth")
    return folder / "f.pth"


def test_of_several_networks_the_authors_own_is_taken_and_the_choice_is_noted(tmp_path: Path) -> None:
    path = saved(tmp_path, several(encoder=torch.zeros(2), predictor=torch.zeros(2), target_encoder=WEIGHT))
    content = open_weights_file(path)
    assert torch.equal(content.tensors["a"], WEIGHT)
    assert content.notes == ["target_encoder was read, not encoder: network= chooses"]
    for match in ("timm", "transformers"):
        assert torch.equal(open_weights_file(path, match=match).tensors["a"], torch.zeros(2))
    assert open_weights_file(path, network="encoder").notes == [
        "encoder was read, not target_encoder: network= chooses"
    ]
    with pytest.raises(
        UsageError, match=r"no network called student\. Name one with network=: encoder, target_encoder\."
    ):
        open_weights_file(path, network="student")
    with pytest.raises(UsageError, match=r"holds one model, not several networks\. Leave network='encoder' out"):
        open_weights_file(saved(tmp_path, {"a": WEIGHT}), network="encoder")


def test_the_heads_of_a_training_are_left_out_and_named(tmp_path: Path) -> None:
    teacher = {"backbone.a": WEIGHT, "dino_head.mlp.weight": WEIGHT, "ibot_head.mlp.weight": WEIGHT}
    content = open_weights_file(saved(tmp_path, {"teacher": teacher}))
    assert content.tensors.keys() == {"a"}
    assert content.notes[1] == "2 tensors beside the backbone were left out: dino_head, ibot_head"
    student = {"module.backbone.a": WEIGHT, "module.head.mlp": WEIGHT}
    assert open_weights_file(
        saved(tmp_path, {"student": student, "teacher": teacher}), network="student"
    ).tensors.keys() == {"a"}


def test_averaged_weights_are_noted(tmp_path: Path) -> None:
    path = saved(tmp_path, {"state_dict": {"a": torch.zeros(2)}, "state_dict_ema": {"a": WEIGHT}})
    assert open_weights_file(path).notes == [
        "state_dict_ema was read, the averaged weights, not state_dict: network= chooses"
    ]


def test_arrays_of_numpy_are_tensors(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", **{"params/head/bias": np.arange(3, dtype=np.float32)})
    assert torch.equal(open_weights_file(tmp_path / "f.npz").tensors["params/head/bias"], torch.arange(3.0))


UNVERIFIED = "the file carries no checksum: that it is unchanged was not verified"


def test_a_file_in_which_a_flipped_bit_would_not_be_noticed_is_noted(tmp_path: Path) -> None:
    assert open_weights_file(saved(tmp_path, {"a": WEIGHT})).notes == []
    torch.save({"a": WEIGHT}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert open_weights_file(tmp_path / "old.pt").notes == [UNVERIFIED]
    torch.serialization.set_crc32_options(False)
    try:
        assert open_weights_file(saved(tmp_path, {"a": WEIGHT})).notes == [UNVERIFIED]
    finally:
        torch.serialization.set_crc32_options(True)


def test_a_list_of_files_that_nobody_compares_is_no_checksum(tmp_path: Path) -> None:
    save_file({"a": WEIGHT}, tmp_path / "w.safetensors")
    (tmp_path / "manifest.json").write_text("{}")
    assert open_weights_file(tmp_path / "w.safetensors").notes == [UNVERIFIED]


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_what_cannot_fit_into_memory_is_not_read(tmp_path: Path, monkeypatch, ending: str) -> None:
    path, tensors = tmp_path / f"w.{ending}", {"a": torch.ones(2000)}
    (save_file if ending == "safetensors" else torch.save)(tensors, path)
    monkeypatch.setattr(weight_files, "machine_memory", lambda: 7999)
    with pytest.raises(ResourceError, match=rf"w\.{ending} take 8,\d{{3}} bytes, and this machine has 7,999 bytes"):
        open_weights_file(path)
    monkeypatch.setattr(weight_files, "machine_memory", lambda: None)
    assert torch.equal(open_weights_file(path).tensors["a"], tensors["a"])


@pytest.mark.parametrize("name", ["", "a\x1b[2J", "a" * 513, 3, b"a"])
def test_a_name_that_cannot_be_printed_is_no_name(name: object) -> None:
    with pytest.raises(DamagedFileError, match=r"f\.pt: a tensor is called .*, which is no plain name") as refused:
        unwrapped({"model": {name: WEIGHT}})
    assert str(refused.value).isprintable() and len(str(refused.value)) < 200
