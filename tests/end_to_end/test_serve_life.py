"""How a server begins and ends, and what it leaves behind (part E: 11 to 14, 17)."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from corpus.writing import encoded, photo
from served import Server, asked, nursery, saved, serving, talked, tree
from vitrail.cli.main import main

pytestmark = [pytest.mark.wide, pytest.mark.serial]

PICTURE = encoded(photo(), "PNG")
HEAD = b"POST /predict HTTP/1.1\r\nHost: here\r\n"


@contextmanager
def started(model: Path, *flags: object, wait: bool = True) -> Iterator[Server]:
    """A server that is killed if the test has not ended it."""
    server = Server(model, *flags, wait=wait)
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "tiny")


def test_e11_it_lives_before_it_is_ready(model):
    """E11."""
    with started(model, wait=False) as server:
        states = []
        while True:
            live, ready = server.ask("/v2/health/live"), server.ask("/v2/health/ready")
            assert live.status == 200
            states.append(ready.status)
            if ready.status == 200:
                break
            assert ready.json["error"] == "The model is being read."
            early = server.ask("/predict", PICTURE)
            assert early.status in (200, 503) and (early.status == 200 or early.headers["retry-after"])
            time.sleep(0.02)
        assert states[0] == 503, "it was ready too soon to see"
        assert server.ask("/predict", PICTURE).status == 200
        assert server.stop().code == 0


def test_e12_when_told_to_stop_it_answers_whom_it_has_and_refuses_the_rest(model):
    """E12: an upload under way is finished, one that is stuck is cut, readiness is gone at once."""
    with started(model, "--slow", 2) as server:
        half = len(PICTURE) // 2
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=10) as honest,
            socket.create_connection(("127.0.0.1", server.port), timeout=10) as stuck,
        ):
            for line in (honest, stuck):
                line.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(PICTURE) + PICTURE[:half])
            while server.counted("vitrail_requests_inside") < 2:
                time.sleep(0.01)
            began = time.monotonic()
            os.kill(server.child.pid, signal.SIGTERM)
            while (said := server.ask("/v2/health/ready")).status == 200:
                assert time.monotonic() - began < 0.5
            assert said.status == 503 and said.json["error"] == "The server is stopping."
            refused = server.ask("/predict", PICTURE)
            assert refused.status == 503 and refused.headers["retry-after"] == "1"
            honest.sendall(PICTURE[half:])
            assert honest.recv(4096).startswith(b"HTTP/1.1 200")
            assert stuck.recv(4096).startswith(b"HTTP/1.1 408")
        assert server.stop(0).code == 0 and time.monotonic() - began < 15


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_e12_a_signal_under_load_loses_nothing_that_was_accepted(model, number):
    """E12, E13: 16 clients ask one after another; whoever asked before the signal is answered."""
    with started(model) as server:
        said: list[tuple[float, float, int]] = []
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                began = time.monotonic()
                try:
                    status = asked(server.port, "/predict", PICTURE).status
                except OSError:
                    status = 0
                said.append((began, time.monotonic(), status))

        clients = [threading.Thread(target=ask) for _ in range(16)]
        for client in clients:
            client.start()
        began_all = time.monotonic()
        while len(said) < 60 or time.monotonic() - began_all < 1.5:
            time.sleep(0.05)
        signalled = time.monotonic()
        ended = server.stop(number)
        over.set()
        for client in clients:
            client.join()
        assert ended.code == 0 and time.monotonic() - signalled < 10, ended.said
        assert ended.said.endswith('{"stopped": "tiny"}\n')
        before = [status for began, _, status in said if began < signalled - 1]
        across = [status for began, end, status in said if began < signalled <= end]
        assert len(before) > 10 and set(before) == {200}
        assert across and set(across) <= {200, 503}
        assert {status for began, _, status in said if began > signalled} <= {0, 200, 503}


def test_e13_told_to_stop_while_the_model_is_read_it_ends_well(model):
    """E13."""
    with started(model, wait=False) as server:
        assert server.stop().code == 0 and "Traceback" not in server.said()


def test_e12_a_second_signal_ends_it_at_once(model):
    """E12."""
    with started(model) as server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as stuck:
        stuck.sendall(HEAD + b"Content-Length: 100\r\n\r\nabc")
        while server.counted("vitrail_requests_inside") < 1:
            time.sleep(0.01)
        began = time.monotonic()
        os.kill(server.child.pid, signal.SIGTERM)
        time.sleep(0.2)
        assert server.stop().code == 0 and time.monotonic() - began < 4


def test_e13_a_port_in_use_is_named_and_nothing_is_read(model, capsys):
    """E13."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", str(model), "--port", str(port)]) == 2
    assert f"Port {port} is used by another program; try --port {port + 1}." in capsys.readouterr().err


def test_e14_a_model_whose_hash_is_wrong_is_not_served(model, tmp_path):
    """E14. (A server reads its model once and never again: to serve another, start another.)"""
    damaged = shutil.copytree(model, tmp_path / "damaged")
    weights = bytearray((damaged / "model.safetensors").read_bytes())
    weights[-3] ^= 1
    (damaged / "model.safetensors").write_bytes(weights)
    ended = nursery().run("serve", damaged, "--port", 0)
    assert ended.code == 4 and "Checksum mismatch" in ended.said and "ready" not in ended.said


def test_a_model_that_is_not_there_ends_the_server_with_its_sentence(tmp_path):
    ended = nursery().run("serve", tmp_path / "nothing", "--port", 0)
    assert ended.code == 2 and "There is no model at " in ended.said and "nothing. Answers need" in ended.said


def test_e17_no_uploaded_byte_reaches_a_disk(model, tmp_path):
    """E17."""
    marked = PICTURE + b"SECRET" * 400_000  # more than forms are usually kept in memory
    with serving(model, "--workers", 1, TMPDIR=str(tmp_path)) as server:
        edge = b"--e\r\nContent-Disposition: form-data; name=p; filename=a.png\r\n\r\n"
        body = edge + marked + b"\r\n--e--\r\n"
        head = b"Content-Type: multipart/form-data; boundary=e\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as line:
            line.sendall(HEAD + head + body[:-50])
            time.sleep(0.3)
            written = [file for file in tmp_path.rglob("*") if file.is_file()]
            assert all(b"SECRET" not in file.read_bytes() for file in written)
            line.sendall(body[-50:])
            answer = http.client.HTTPResponse(line)  # head and body may come in two pieces
            answer.begin()
            assert json.loads(answer.read())["rows"][0]["label"]
        for folder in (each for each in tmp_path.iterdir() if each.is_dir()):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_nothing_is_left_running(model):
    with started(model, "--workers", 2) as server:
        family = tree(server.child.pid)
        assert len(family) >= 4
        assert server.stop().code == 0
        until = time.monotonic() + 5
        while left := [pid for pid in family if alive(pid)]:
            assert time.monotonic() < until, left
            time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_server_that_is_killed_takes_its_processes_with_it(model):
    with started(model, "--workers", 2) as server:
        family = tree(server.child.pid)
        server.stop(signal.SIGKILL)
        until = time.monotonic() + 5
        while left := [pid for pid in family if alive(pid)]:
            assert time.monotonic() < until, left
            time.sleep(0.05)


def test_a_keep_alive_connection_is_told_to_close(model):
    with started(model) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as held:
            held.sendall(HEAD + b"Content-Length: 100\r\n\r\nabc")
            while server.counted("vitrail_requests_inside") < 1:
                time.sleep(0.01)
            os.kill(server.child.pid, signal.SIGTERM)
            time.sleep(0.2)
            answer = talked(server.port, HEAD + b"Content-Length: 0\r\n\r\n", 3)
            assert answer.startswith(b"HTTP/1.1 503") and b"connection: close" in answer.lower()
            held.sendall(b"x" * 97)
            assert held.recv(4096).startswith(b"HTTP/1.1 415")
        assert server.stop(0).code == 0
