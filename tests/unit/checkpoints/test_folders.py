"""Folders of other libraries: one file or several, and whose they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vitrail.checkpoints import foreign_folder, weight_files
from vitrail.checkpoints.load import load_checkpoint
from vitrail.errors import DamagedFileError
from vitrail.files import safetensors_file as files

A, B = torch.ones(2), torch.zeros(3)


def described(path: Path, content: object, name: str = "config.json") -> Path:
    path.mkdir(exist_ok=True)
    (path / name).write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ({"model_type": "vit"}, "config.json"),
        ({"architecture": "vit_tiny_patch16_224"}, "config.json"),
        ({"model_cfg": {}}, "open_clip_config.json"),
    ],
)
def test_folders_of_other_libraries_are_known_by_their_config(content: Any, name: str, tmp_path: Path) -> None:
    assert foreign_folder.is_foreign_folder(described(tmp_path, content, name))
    assert (
        foreign_folder.read_foreign_folder(tmp_path).config == content
        and foreign_folder.read_foreign_folder(tmp_path).preprocessor == {}
    )


def test_a_bundle_or_a_folder_without_a_config_is_not_one(tmp_path: Path) -> None:
    assert not foreign_folder.is_foreign_folder(tmp_path)
    assert not foreign_folder.is_foreign_folder(described(tmp_path, {"format": 1, "architecture": {"width": 8}}))
    with pytest.raises(DamagedFileError, match=r"has no config\.json"):
        foreign_folder.read_foreign_folder(tmp_path / "nowhere")


def test_the_safer_format_is_taken_first_and_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"holds no weights\. It must hold one of model\.safetensors"):
        weight_files.open_folder_weights(tmp_path)
    torch.save({"a": B}, tmp_path / "pytorch_model.bin")
    assert torch.equal(weight_files.open_folder_weights(tmp_path).tensors["a"], B)
    files.save_tensors(tmp_path / "model.safetensors", {"a": A}, {})
    assert torch.equal(weight_files.open_folder_weights(tmp_path).tensors["a"], A)


def sharded(folder: Path, weight_map: object) -> Path:
    files.save_tensors(folder / "one.safetensors", {"a": A}, {})
    files.save_tensors(folder / "two.safetensors", {"b": B}, {})
    return described(folder, {"weight_map": weight_map}, "model.safetensors.index.json")


def test_several_files_are_put_together_as_their_index_says(tmp_path: Path) -> None:
    found = weight_files.open_folder_weights(
        sharded(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    ).tensors
    assert torch.equal(found["a"], A) and torch.equal(found["b"], B)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "one.safetensors", "c": "two.safetensors"}, r"two\.safetensors does not hold what .* lists: b, c"),
        ({"a": "../one.safetensors"}, r"names the file '\.\./one\.safetensors', which does not lie beside it"),
        ({"a": "three.safetensors"}, r"no weights file .*three\.safetensors"),
        (["one.safetensors"], r"must hold weight_map, the file of every tensor"),
    ],
)
def test_an_index_that_does_not_fit_its_files_is_an_error(weight_map: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match=message):
        weight_files.open_folder_weights(sharded(tmp_path, weight_map))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("zero_to_fp32.py", "part of a DeepSpeed checkpoint: python zero_to_fp32"),
        ("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "part of a DeepSpeed checkpoint"),
        ("__0_0.distcp", "sharded checkpoint of torch.distributed: .*dcp_to_torch"),
        ("adapter_config.json", "LoRA adapters alone"),
        ("model.safetensors", r"Without a config\.json give the weights file itself: .*model\.safetensors"),
    ],
)
def test_a_folder_of_a_training_is_named_with_what_to_do(file: str, words: str, tmp_path: Path) -> None:
    (tmp_path / file).touch()
    with pytest.raises(DamagedFileError, match=f"holds no model: .*{words}"):
        load_checkpoint(tmp_path)
