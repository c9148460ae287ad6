"""ONNX files are walked through before any runtime opens them; what is honest passes."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hostile_onnx
from vitrail.errors import DamagedFileError, UsageError
from vitrail.files.onnx_guard import ExternalTensor, check_onnx_file


def test_an_honest_model_passes_with_the_list_of_its_external_tensors(tmp_path):
    import numpy as np

    weights = numpy_helper.from_array(np.arange(4096, dtype=np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4096])],
        [weights],
    )
    made = helper.make_model(graph)
    onnx.save(made, tmp_path / "whole.onnx")
    assert check_onnx_file(tmp_path / "whole.onnx") == []
    onnx.save_model(made, tmp_path / "parts.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert check_onnx_file(tmp_path / "parts.onnx") == [ExternalTensor("w", "w.bin", 0, 16384)]


def test_a_tensor_that_says_one_thing_twice_is_refused(tmp_path):
    twice = hostile_onnx.tensor("a.bin") + hostile_onnx.field(
        13, hostile_onnx.field(1, b"location") + hostile_onnx.field(2, b"b.bin")
    )
    (tmp_path / "twice.onnx").write_bytes(hostile_onnx.model(hostile_onnx.field(5, twice)))
    with pytest.raises(DamagedFileError, match=r"tensor 'w' says one thing of its external data twice"):
        check_onnx_file(tmp_path / "twice.onnx")


def test_an_empty_file_is_called_so(tmp_path):
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(DamagedFileError, match=r"empty\.onnx is empty"):
        check_onnx_file(tmp_path / "empty.onnx")


def test_an_honest_onnx_model_is_no_weights_file_and_told_so(tmp_path):
    from vitrail.checkpoints.load import load_checkpoint

    (tmp_path / "honest.onnx").write_bytes(hostile_onnx.model(hostile_onnx.field(5, hostile_onnx.tensor())))
    with pytest.raises(UsageError, match=r"honest\.onnx is an ONNX model.*Give the checkpoint that it was made from"):
        load_checkpoint(tmp_path / "honest.onnx")
