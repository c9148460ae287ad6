"""A batch in parts: the same answers, from whichever thread asks, and only where it is worth it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn

from vitrail.evaluate import inference
from vitrail.evaluate.inference import (
    FeatureExtractor,
    InferenceSettings,
    cast_weights,
    forward_batch,
    inference_mode,
    num_parallel_parts,
)
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT, create_model
from vitrail.runtime import set_thread_count
from vitrail.spec import ImageSpec

pytestmark = pytest.mark.serial

CPU = torch.device("cpu")
SPEC = ImageSpec(height=32, width=32, channels=3)


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> ViT:
    """256 tokens of 64 numbers: four pictures are worth a team."""
    size = {"image_size": (32, 32), "patch": (2, 2), "width": 64, "depth": 2, "heads": 2}
    return create_model(ViTConfig(**size, class_token=False, pool="mean", outputs=5), seed=0).eval()


def pictures(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("count", "threads", "parts"),
    [(8, 1, 1), (8, 2, 2), (64, 2, 4), (63, 2, 4), (64, 4, 4), (64, 16, 4), (7, 2, 1), (1, 2, 1), (8, 4, 1), (0, 2, 1)],
)
def test_so_many_parts_as_are_worth_it(model, count, threads, parts):
    torch.set_num_threads(threads)
    assert num_parallel_parts(model, pictures(count), CPU, "float32") == parts


def test_in_fewer_bits_each_team_has_one_part(model):
    torch.set_num_threads(2)
    assert num_parallel_parts(model, pictures(64), CPU, "bfloat16") == 2


def test_only_a_plain_vit_on_a_cpu_is_split(model):
    class Wrapped(ViT):
        pass

    wrapped = Wrapped(model.config)
    torch.set_num_threads(2)
    assert num_parallel_parts(model, pictures(64), CPU, "float32") == 4
    assert num_parallel_parts(FeatureExtractor(model), pictures(64), CPU, "float32") == 4
    assert num_parallel_parts(wrapped, pictures(64), CPU, "float32") == 1
    assert num_parallel_parts(nn.Flatten(), pictures(64), CPU, "float32") == 1
    assert num_parallel_parts(model, pictures(64), torch.device("cuda"), "float32") == 1


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("number_format", ["float32", "bfloat16"])
def test_what_a_probe_reads_is_that_of_the_whole(model, number_format, mirrored, monkeypatch):
    torch.set_num_threads(2)
    pooled = cast_weights(FeatureExtractor(model, mirrored), number_format)
    images = pictures(37)
    with inference_mode(pooled):
        found, _ = forward_batch(pooled, images, SPEC, InferenceSettings(precision=number_format))
        monkeypatch.setattr("vitrail.evaluate.inference.num_parallel_parts", lambda *_: 1)
        whole, _ = forward_batch(
            FeatureExtractor(model, mirrored), images, SPEC, InferenceSettings(precision=number_format)
        )
    assert found.shape == (37, model.config.pooled_width)
    np.testing.assert_allclose(found, whole, atol={"float32": 1e-5, "bfloat16": 2e-2}[number_format])


@pytest.mark.parametrize("number_format", ["float32", "bfloat16"])
@pytest.mark.parametrize("seen", [False, True])
def test_the_answers_are_those_of_the_whole(model, number_format, seen, monkeypatch):
    torch.set_num_threads(2)
    images = pictures(37)
    with inference_mode(model):
        found = forward_batch(model, images, SPEC, InferenceSettings(precision=number_format), with_features=seen)
        monkeypatch.setattr("vitrail.evaluate.inference.num_parallel_parts", lambda *_: 1)
        whole = forward_batch(model, images, SPEC, InferenceSettings(precision=number_format), with_features=seen)
    limit = {"float32": 1e-5, "bfloat16": 2e-2}[number_format]
    np.testing.assert_allclose(found[0], whole[0], atol=limit)
    assert (found[1] is None) is (whole[1] is None) is not seen
    if seen:
        np.testing.assert_allclose(found[1], whole[1], atol=limit * float(whole[1].abs().max()))


def test_each_part_has_a_thread_and_the_caller_keeps_its_own(model):
    torch.set_num_threads(2)
    used: list[tuple[str, int, bool]] = []

    def answer(part: torch.Tensor) -> int:
        used.append((threading.current_thread().name, torch.get_num_threads(), torch.is_inference_mode_enabled()))
        return len(part)

    assert inference.run_in_parallel(answer, pictures(9), 4) == [3, 2, 2, 2]
    assert {name.rpartition("_")[0] for name, *_ in used} == {"vitrail-team"}
    assert [rest for _, *rest in used] == [[1, True]] * 4
    assert torch.get_num_threads() == 2
    set_thread_count(3)
    used.clear()
    assert inference.run_in_parallel(answer, pictures(6), 3) == [2, 2, 2]
    assert torch.get_num_threads() == 3 and {threads for _, threads, _ in used} == {1}


def test_threads_that_begin_later_have_as_many_as_before(model):
    torch.set_num_threads(2)
    inference.run_in_parallel(len, pictures(4), 2)
    found: list[int] = []
    later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert found == [2]


FORKED = """
import os, warnings
import torch
from vitrail.evaluate.inference import run_in_parallel
torch.set_num_threads(2)
warnings.simplefilter("ignore")  # of Python, that threads do not come along
pictures = torch.zeros((4, 1, 2, 2), dtype=torch.uint8)
assert run_in_parallel(len, pictures, 2) == [2, 2]
child = os.fork()
if child == 0:
    os._exit(run_in_parallel(len, pictures, 2) != [2, 2])
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.wide
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_process_has_teams_of_its_own():
    assert subprocess.run([sys.executable, "-c", FORKED], timeout=120).returncode == 0


def test_what_goes_wrong_in_a_part_reaches_whoever_asked():
    torch.set_num_threads(2)

    def answer(part: torch.Tensor) -> int:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        inference.run_in_parallel(answer, pictures(4), 2)
