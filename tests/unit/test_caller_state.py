"""Python functions answer alike whatever the caller has set in torch, and give back what they found."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import vitrail
from quick_fits import QUICK, digits
from vitrail import api, caller_state
from vitrail.caller_state import isolate, isolated_state, replace_missing_streams
from vitrail.errors import MachineWarning
from vitrail.predict.embedder import Embedder
from vitrail.predict.predictor import Predictor


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def coarse_products() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


STATES = {
    "float64": lambda: default_dtype(torch.float64),
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "device": lambda: torch.device("meta"),
    "autocast off": lambda: torch.autocast("cpu", enabled=False),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "no_grad": torch.no_grad,
    "coarse products": coarse_products,
}


def read_state() -> tuple[object, ...]:
    switches = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    products = torch.get_float32_matmul_precision(), torch.is_autocast_cache_enabled()
    with torch.device("cpu"):
        random = torch.get_rng_state().tolist()
    return torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads(), *switches, *products, random


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    images, labels = digits(40, classes=2)
    return vitrail.fit((images, labels), out=tmp_path_factory.mktemp("caller") / "run", quiet=True, **QUICK)


def answers(run: vitrail.Run) -> list[np.ndarray]:
    images = list(digits(2)[0])
    explained = vitrail.open(run.path).explain(images[0])[0].heatmap.values
    batches = list(run.predictor.predict_batches(images))
    return [batches[0].probabilities, run.embed(images).vectors, np.asarray(explained)]


@pytest.mark.first(2)
@pytest.mark.parametrize("state", STATES)
def test_training_and_answers_are_the_same_in_every_state_of_the_caller_which_is_given_back(state, run, tmp_path):
    images, labels = digits(40, classes=2)
    expected = answers(run)
    with STATES[state]():
        before = read_state()
        again = vitrail.fit((images, labels), out=tmp_path / "run", quiet=True, **QUICK)
        found = answers(again)
        assert read_state() == before
        loaded = vitrail.load(again.path)
        created = vitrail.create("vit_pico_patch2_16", outputs=2)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    for parameter in (*loaded.parameters(), *created.parameters()):
        assert (parameter.dtype, parameter.device.type) == (torch.float32, "cpu")
        assert parameter.requires_grad and not parameter.is_inference()


def test_every_public_function_is_isolated():
    public = [api._isolate_events, vitrail.load, vitrail.create, Embedder.embed, Embedder.embed_batches]
    public += [Predictor.open, Predictor.predict, Predictor.predict_batches, Predictor.logits]
    public += [value for name, value in vars(vitrail.Run).items() if not name.startswith("_") and callable(value)]
    public.append(vars(vitrail.Run)["predictor"].fget)
    assert all("@isolate\n" in inspect.getsource(function) for function in public)


def test_a_generator_has_the_callers_state_between_its_steps():
    @isolate
    def steps() -> Iterator[torch.dtype]:
        yield torch.get_default_dtype()
        yield torch.ones(1).dtype

    with default_dtype(torch.float64):
        for seen in steps():
            assert seen == torch.float32
            assert torch.get_default_dtype() == torch.float64


def test_the_threads_of_the_caller_are_given_back_and_ours_kept(monkeypatch):
    monkeypatch.setattr(caller_state._OwnThreads, "count", 0)
    monkeypatch.setattr(caller_state._OwnThreads, "process", 0)
    before = torch.get_num_threads()
    with isolated_state():
        caller_state.set_own_threads(3)
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before
    with isolated_state():
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before


def test_in_a_forked_process_one_thread_computes_and_a_warning_says_so_once(monkeypatch):
    monkeypatch.setattr(caller_state._OwnThreads, "count", 4)
    monkeypatch.setattr(caller_state._OwnThreads, "process", os.getpid() + 1)
    monkeypatch.setattr(caller_state._OwnThreads, "warned", False)
    words = "forked from one that has computed, so .* 1 thread instead of 4"
    with pytest.warns(MachineWarning, match=words), isolated_state():
        assert torch.get_num_threads() == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with isolated_state():
            caller_state.set_own_threads(8)
            assert torch.get_num_threads() == 1


FORK = """
import os, signal, sys, warnings
import numpy as np, torch, vitrail
warnings.simplefilter("ignore")
os.environ["OMP_NUM_THREADS"] = "2"
images = list(np.zeros((64, 32, 32, 3), np.uint8))
run = vitrail.open(sys.argv[1])
torch.randn(600, 600) @ torch.randn(600, 600)
first = run.predict(images).probabilities
child = os.fork()
if child == 0:
    signal.alarm(30)
    same = np.allclose(run.predict(images).probabilities, first, atol=1e-6)
    same &= np.allclose(vitrail.open(sys.argv[1]).predict(images).probabilities, first, atol=1e-6)
    os._exit(0 if same else 3)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_that_was_forked_after_predictions_predicts(run):
    words = [sys.executable, "-c", FORK, str(run.path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["0"], f"ended by signal {signal.SIGALRM:d} if it waited"


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
@pytest.mark.parametrize("gone", ["none", "closed"])
def test_a_missing_stream_is_the_null_device(stream, gone, monkeypatch):
    missing = None if gone == "none" else io.StringIO()
    if missing is not None:
        missing.close()
    monkeypatch.setattr(sys, stream, missing)
    with replace_missing_streams():
        inside = vars(sys)[stream]
        assert not inside.isatty()
        assert inside.read() == "" if stream == "stdin" else inside.write("lost") == 4
    assert vars(sys)[stream] is missing


@pytest.mark.wide
def test_a_training_without_streams_is_silent(run, tmp_path, monkeypatch):
    images, labels = digits(40, classes=2)
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "stdout", None)
    assert vitrail.fit((images, labels), out=tmp_path / "run", **QUICK).report.is_file()


def test_a_training_writes_to_an_object_of_a_logger_that_has_no_more_than_write_and_flush(tmp_path, monkeypatch):
    class LoggerStream:
        written = ""

        def write(self, text: str) -> None:
            self.written += text

        def flush(self) -> None:
            pass

    stream = LoggerStream()
    monkeypatch.setattr(sys, "stderr", stream)
    vitrail.fit(digits(40, classes=2), out=tmp_path / "run", **QUICK)
    assert stream.written.startswith("Task classification")


@pytest.mark.parametrize("closed", ["<&-", "2>&-", ">&-", "<&- >&- 2>&-"])
@pytest.mark.wide
def test_the_command_runs_with_closed_streams(closed, run):
    words = f'"{sys.executable}" -m vitrail predict "{run.path}" - {closed}'
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 3
    if "2>&-" not in closed:
        assert "The list on standard input must name at least one picture." in done.stderr


def test_the_older_flags_of_torch_can_be_read_as_exporters_do():
    with isolated_state():
        assert torch.backends.cudnn.allow_tf32 in (True, False)
        assert not torch.backends.cuda.matmul.allow_tf32
