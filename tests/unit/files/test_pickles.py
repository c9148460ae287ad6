"""Only tensors and plain values come out of a pickle, and nothing in it runs. Hostile ones: hostile_pickles.py."""

from __future__ import annotations

import argparse
import datetime
import io
import os
import pickle
import re
import zipfile
from collections import OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.errors import DamagedFileError
from vitrail.files.pickles import open_state_dict


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_a_state_dict_comes_back_from_both_containers_in_every_protocol(tmp_path, zipped, protocol):
    layer = torch.nn.Linear(2, 3)
    torch.save(layer.state_dict(), tmp_path / "w.pt", _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
    found = open_state_dict(tmp_path / "w.pt")[0]
    assert list(found) == ["weight", "bias"]
    assert torch.equal(found["weight"], layer.weight)


TENSORS = {
    "parameter": torch.nn.Parameter(torch.ones(2, 3)),
    "turned": torch.arange(6.0).view(2, 3).t(),
    "part": torch.arange(10.0)[3:7],
    "scalar": torch.tensor(3),
    "empty": torch.zeros(0, 3),
    "half": torch.ones(3).half(),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "float8": torch.ones(3).to(torch.float8_e4m3fn),
    "uint16": torch.ones(3, dtype=torch.uint16),
    "double": torch.ones(3, dtype=torch.float64),
    "bool": torch.tensor([True, False]),
    "complex": torch.ones(2, dtype=torch.complex64),
}


@pytest.mark.parametrize("zipped", [True, False])
def test_every_number_format_and_every_view_comes_back(tmp_path, zipped):
    TENSORS["parameter"].note = "an attribute"
    torch.save(TENSORS, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    found = open_state_dict(tmp_path / "w.pt")[0]
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert found[name].tolist() == tensor.tolist()
        assert not found[name].requires_grad


def test_writing_to_a_tensor_does_not_change_the_file(tmp_path):
    torch.save({"w": torch.ones(1000)}, tmp_path / "w.pt")
    before = (tmp_path / "w.pt").read_bytes()
    open_state_dict(tmp_path / "w.pt")[0]["w"].zero_()
    assert (tmp_path / "w.pt").read_bytes() == before
    assert open_state_dict(tmp_path / "w.pt")[0]["w"].sum() == 1000


@pytest.mark.parametrize("zipped", [True, False])
def test_what_trainings_keep_beside_their_weights_is_read_past(tmp_path, zipped):
    layer = torch.nn.Linear(2, 3)
    content = {
        "model": layer.state_dict(),
        "optimizer": torch.optim.AdamW(layer.parameters()).state_dict(),
        "args": argparse.Namespace(
            lr=0.1, out=Path("runs"), device=torch.device("cuda:0"), when=datetime.datetime.now()
        ),
        "best": np.float64(0.9),
        "scores": np.arange(3),
        "seen": defaultdict(list, a=[1]),
        "names": {"a", "b"},
        "size": torch.Size([2, 3]),
        "epoch": 3,
        "inside": OrderedDict(deeper={"args": argparse.Namespace()}, kept=1),
    }
    torch.save(content, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    found = open_state_dict(tmp_path / "w.pt")[0]
    assert found.keys() == content.keys() - {"args", "best", "scores", "names"}
    assert torch.equal(found["model"]["weight"], layer.weight)
    assert found["inside"] == {"deeper": {}, "kept": 1}
    assert found["size"] == (2, 3) and found["epoch"] == 3 and found["seen"] == {"a": [1]}


def test_tied_weights_share_their_numbers(tmp_path):
    one = torch.ones(3)
    torch.save({"a": one, "b": one}, tmp_path / "w.pt")
    found = open_state_dict(tmp_path / "w.pt")[0]
    assert found["a"].data_ptr() == found["b"].data_ptr()


class Scripted(torch.nn.Module):
    """A module in the manner of OpenAI's CLIP archives."""

    def __init__(self):
        super().__init__()
        self.visual = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3)).half()
        self.register_buffer("input_resolution", torch.tensor(224))
        self.scale = torch.nn.Parameter(torch.ones([]))
        self.sizes = [1, 2]
        self.name = "x"

    def forward(self, x):
        return self.visual(x) * self.scale + torch.ones(3)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_the_tensors_of_a_torchscript_archive_come_out_by_name(tmp_path):
    module = Scripted()
    torch.jit.script(module).save(tmp_path / "clip.pt")
    found = open_state_dict(tmp_path / "clip.pt")[0]
    expected = module.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


class Touches:
    """Creates a file when it is unpickled."""

    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self):
        return os.mkdir, (str(self.canary),)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("by_torch", [True, False])
def test_a_hostile_file_runs_nothing_and_is_named_with_what_it_asked_for(tmp_path, protocol, by_torch):
    path, canary = tmp_path / "w.pt", tmp_path / "canary"
    content = {"weight": torch.ones(1), "x": Touches(canary)} if by_torch else Touches(canary)
    if by_torch:
        torch.save(content, path, pickle_protocol=protocol)
    else:
        path.write_bytes(pickle.dumps(content, protocol=protocol))
    asked = rf"w\.pt asks to run {os.mkdir.__module__}\.mkdir when it is read, so it was not read\."
    with pytest.raises(DamagedFileError, match=asked):
        open_state_dict(path)
    assert not canary.exists()


def test_a_whole_model_is_refused_with_the_advice_to_save_its_weights(tmp_path):
    torch.save(torch.nn.Linear(1, 1), tmp_path / "w.pt")
    with pytest.raises(DamagedFileError, match=r"asks to run torch\.nn\.modules\.linear\.Linear.*state_dict\(\)"):
        open_state_dict(tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("module", "advice"),
    [
        ("deepspeed.runtime.fp16.loss_scaler", r"DeepSpeed checkpoint: python zero_to_fp32\.py"),
        ("fastai.learner", r"Learner that fastai has exported: .*learn\.model\.state_dict"),
        ("torch.distributed._shard.sharded_tensor.api", r"FULL_STATE_DICT"),
        ("timm.models.vision_transformer", r"Save only the weights again"),
    ],
)
def test_what_a_known_library_pickles_is_named_with_what_to_do(tmp_path, module, advice):
    (tmp_path / "w.pt").write_bytes(b"\x80\x02c" + f"{module}\nThing\n".encode() + b")R.")
    with pytest.raises(DamagedFileError, match=rf"asks to run {re.escape(module)}\.Thing .*{advice}"):
        open_state_dict(tmp_path / "w.pt")


@pytest.mark.parametrize("zipped", [True, False])
def test_every_truncation_is_noticed(tmp_path, zipped):
    torch.save({"a": torch.arange(3.0)}, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    data = (tmp_path / "w.pt").read_bytes()
    for length in range(1, len(data), 7):
        (tmp_path / "w.pt").write_bytes(data[:length])
        with pytest.raises(DamagedFileError, match=r"w\.pt is (not a whole|a pickle, but not a weights file)"):
            open_state_dict(tmp_path / "w.pt")


@pytest.mark.parametrize("zipped", [True, False])
def test_every_flipped_bit_is_refused_in_words_or_changes_no_number_of_an_archive(tmp_path, zipped):
    path = tmp_path / "w.pt"
    torch.save({"a": torch.arange(3.0)}, path, _use_new_zipfile_serialization=zipped)
    data = path.read_bytes()
    silent = 0
    for place in range(0, len(data), 3):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            found = open_state_dict(path)[0]
        except DamagedFileError as error:
            assert str(path) in str(error)
        else:
            same = found.keys() == {"a"} and torch.equal(found["a"], torch.arange(3.0))
            silent += not same
    assert silent == 0 if zipped else silent <= 40  # the old container has no checksums


def test_a_checksum_that_the_writer_left_out_is_not_missed(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.arange(3.0)}, tmp_path / "w.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert open_state_dict(tmp_path / "w.pt")[0]["a"].tolist() == [0, 1, 2]


def test_anything_but_a_dictionary_by_names_is_refused(tmp_path):
    torch.save([torch.ones(1)], tmp_path / "w.pt")
    with pytest.raises(DamagedFileError, match=r"holds a list, expected a dictionary of tensors.*torch\.save\(model"):
        open_state_dict(tmp_path / "w.pt")
    torch.save({3: torch.ones(1)}, tmp_path / "w.pt")
    with pytest.raises(DamagedFileError, match=r"must hold tensors by name\. It holds one under 3\."):
        open_state_dict(tmp_path / "w.pt")


def test_a_dictionary_around_the_tensors_comes_out_as_it_is(tmp_path):
    torch.save({"state_dict": {"w": torch.ones(1)}, "epoch": 3}, tmp_path / "w.pt")
    assert open_state_dict(tmp_path / "w.pt")[0] == {"state_dict": {"w": torch.ones(1)}, "epoch": 3}


def test_an_archive_that_was_packed_again_by_hand_is_refused_in_words(tmp_path):
    torch.save({"a": torch.zeros(1000)}, tmp_path / "w.pt")
    with (
        zipfile.ZipFile(tmp_path / "w.pt") as old,
        zipfile.ZipFile(tmp_path / "p.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(DamagedFileError, match=r"w/data/0 is packed, which torch never does"):
        open_state_dict(tmp_path / "p.pt")


def test_an_old_file_whose_list_of_storages_differs_is_refused(tmp_path):
    file = io.BytesIO()
    torch.save({"a": torch.ones(2)}, file, _use_new_zipfile_serialization=False)
    data = file.getvalue()
    (tmp_path / "w.pt").write_bytes(data[:-16] + (3).to_bytes(8, "little") + data[-8:])
    with pytest.raises(DamagedFileError, match="has another count than its tensors say"):
        open_state_dict(tmp_path / "w.pt")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DamagedFileError, match=r"There is no weights file .*none\.pt"):
        open_state_dict(tmp_path / "none.pt")
