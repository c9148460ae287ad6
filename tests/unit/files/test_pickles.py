"""Only tensors come out of a pickle, and nothing in it runs."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from vitrail.errors import DamagedFileError
from vitrail.files.pickles import load_state_dict


@pytest.mark.parametrize("zipped", [True, False])
def test_a_state_dict_comes_back(tmp_path, zipped):
    layer = torch.nn.Linear(2, 3)
    torch.save(layer.state_dict(), tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    found = load_state_dict(tmp_path / "w.pt")
    assert list(found) == ["weight", "bias"]
    assert torch.equal(found["weight"], layer.weight)


class Touches:
    """Creates a file when it is unpickled."""

    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self):
        return os.mkdir, (str(self.canary),)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("by_torch", [True, False])
def test_a_hostile_file_runs_nothing_and_is_named_with_what_it_asked_for(tmp_path, protocol, by_torch):
    path, canary = tmp_path / "w.pt", tmp_path / "canary"
    content = {"weight": torch.ones(1), "x": Touches(canary)} if by_torch else Touches(canary)
    if by_torch:
        torch.save(content, path, pickle_protocol=protocol)
    else:
        path.write_bytes(pickle.dumps(content, protocol=protocol))
    with pytest.raises(DamagedFileError) as caught:
        load_state_dict(path)
    assert not canary.exists()
    if by_torch and protocol == 2:
        assert "w.pt asks to run posix.mkdir when it is read, so it was not read." in str(caught.value)


def test_a_whole_model_is_refused_with_the_advice_to_save_its_weights(tmp_path):
    torch.save(torch.nn.Linear(1, 1), tmp_path / "w.pt")
    with pytest.raises(DamagedFileError, match=r"asks to run torch\.nn\.modules\.linear\.Linear.*state_dict\(\)"):
        load_state_dict(tmp_path / "w.pt")


def test_every_truncation_is_noticed(tmp_path):
    torch.save({"a": torch.arange(3.0)}, tmp_path / "w.pt")
    data = (tmp_path / "w.pt").read_bytes()
    for length in range(0, len(data), 37):
        (tmp_path / "w.pt").write_bytes(data[:length])
        with pytest.raises(DamagedFileError, match=r"w\.pt is not a whole PyTorch weights file"):
            load_state_dict(tmp_path / "w.pt")


def test_anything_but_a_dictionary_is_refused(tmp_path):
    torch.save([torch.ones(1)], tmp_path / "w.pt")
    with pytest.raises(DamagedFileError, match=r"holds a list, expected a dictionary of tensors.*torch\.save\(model"):
        load_state_dict(tmp_path / "w.pt")


def test_a_dictionary_around_the_tensors_comes_out_as_it_is(tmp_path):
    torch.save({"state_dict": {"w": torch.ones(1)}, "epoch": 3}, tmp_path / "w.pt")
    assert load_state_dict(tmp_path / "w.pt") == {"state_dict": {"w": torch.ones(1)}, "epoch": 3}


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DamagedFileError, match=r"There is no weights file .*none\.pt"):
        load_state_dict(tmp_path / "none.pt")
