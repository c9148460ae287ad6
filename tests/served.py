"""A server in a process of its own, a small model for it, and clients that speak HTTP by hand."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from exportable import DECIDED, NAMES, spec_of
from kinds import TINY
from nursery import Child, Ended, Nursery
from vitrail import config
from vitrail.checkpoints import bundle_weights
from vitrail.evaluate import calibration, decisions
from vitrail.evaluate.calibration import TargetScaling
from vitrail.evaluate.ood import fit_feature_stats
from vitrail.model.vit import create_model
from vitrail.predict.predictor import PredictorMember

BEGINNING = 60.0
PATHS = (
    "/", "/page/app.js", "/page/style.css", "/docs", "/docs/described.css", "/openapi.json", "/about", "/metrics",
    "/predict", "/embed", "/explain?method=", "/explain?target=", "/v2", "/v2/health/live", "/v2/health/ready",
    "/v2/models/tiny", "/v2/models/tiny/ready", "/v2/models/tiny/infer", "/v2/models/other/infer", "/nowhere",
)  # fmt: skip
"""Twenty to send noise to."""


class Said(NamedTuple):
    """One response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def reading(channels: int = 3, task: str = "classification", decided: str = "calibrated") -> PredictorMember:
    """A model of 32 x 32 pixels whose answers differ from picture to picture."""
    names = NAMES[:2] if decided == "positive" else NAMES
    shape = dataclasses.replace(TINY, channels=channels, image_size=(32, 32), patch=(8, 8), outputs=len(names))
    model = create_model(shape, seed=3).eval()
    generator = torch.Generator().manual_seed(4)
    for weights in model.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.35, generator=generator)
    seen = np.random.default_rng(5).normal(size=(200, shape.width)).astype(np.float32)
    chosen = DECIDED[decided]
    return PredictorMember(
        model=model, spec=spec_of(shape), classes=names, task=task, decisions=chosen,
        scaling=TargetScaling((20.0, 30.0, 40.0), (5.0, 1.0, 0.1)) if task == "regression" else None,
        feature_stats=fit_feature_stats(seen, None) if chosen.unlike is not None else None,
    )  # fmt: skip


def saved(folder: Path, found: PredictorMember | None = None) -> Path:
    """A bundle of a small member, with everything that it has decided."""
    found = found or reading()
    info = {
        **found.settings.views.to_notes(),
        decisions.DECISIONS_KEY: config.write(found.decisions),
        "number_format": found.settings.precision,
    }
    if found.scaling is not None:
        info[calibration.SCALING_KEY] = found.scaling.to_json()
    tensors = None if found.feature_stats is None else found.feature_stats.to_tensors()
    bundle_weights.save_bundle(folder, found.model, found.spec, found.task, found.classes, info, tensors)
    return folder


class Server:
    """`vitrail serve` with a free port, ready to answer."""

    def __init__(self, model: Path, *flags: object, wait: bool = True, **environment: str):
        words = ("serve", model, "--port", 0, "--json", "--name", "tiny", *flags)
        self.child: Child = nursery().start(*words, **environment)
        self.ended: Ended | None = None
        self.port = int(self._told("listening").rpartition(":")[2])
        if wait:
            self._told("ready")

    def ask(self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Said:
        """One request on a connection of its own: GET, or POST with a body."""
        return asked(self.port, path, body, headers)

    def raw(self, words: bytes, seconds: float = 5.0) -> bytes:
        """Whatever comes back to these bytes until the server closes or so long."""
        return talked(self.port, words, seconds)

    def stop(self, number: int = signal.SIGTERM) -> Ended:
        """Signal it and wait for its end."""
        if self.ended is None:
            with suppress(ProcessLookupError):
                os.kill(self.child.pid, number)
            self.ended = nursery().wait(self.child)
        return self.ended

    def said(self) -> str:
        """What it has printed."""
        return self.child.said.read_text(encoding="utf-8")

    def counted(self, name: str) -> float:
        """The value of a metric's line."""
        lines = self.ask("/metrics").body.decode().splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))

    def _told(self, key: str) -> str:
        until = time.monotonic() + BEGINNING
        while time.monotonic() < until:
            lines = self.said().splitlines() if self.child.said.exists() else []
            if any(line.startswith("vitrail: ") for line in lines):
                break
            facts = [json.loads(line) for line in lines if line.startswith("{")]
            found = next((fact[key] for fact in facts if key in fact), None)
            if found is not None:
                return str(found)
            time.sleep(0.01)
        raise AssertionError(f"no word of {key}: {self.said()}")


@functools.cache
def nursery() -> Nursery:
    """One for all servers of a session, ended with it."""
    found = Nursery().__enter__()
    atexit.register(found.__exit__)
    return found


@contextmanager
def serving(model: Path, *flags: object, **environment: str) -> Iterator[Server]:
    """A server that is stopped afterwards, and must then end well."""
    server = Server(model, *flags, **environment)
    try:
        yield server
    finally:
        ended = server.stop()
    assert ended.code == 0, ended.said


def asked(port: int, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Said:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET" if body is None else "POST", path, body, dict(headers or {}))
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Said(response.status, found, response.read())
    finally:
        connection.close()


def talked(port: int, words: bytes, seconds: float = 5.0) -> bytes:
    """What comes back to some bytes until the server closes the connection, or so long."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as line:
        line.sendall(words)
        found = b""
        until = time.monotonic() + seconds
        with suppress(TimeoutError, ConnectionError):
            while chunk := line.recv(65536):
                found += chunk
                line.settimeout(max(0.01, until - time.monotonic()))
        return found


def form(*files: tuple[str, bytes]) -> tuple[bytes, dict[str, str]]:
    """A form with these files, and its headers."""
    edge = "a-boundary-of-our-own"
    parts = [
        f'--{edge}\r\nContent-Disposition: form-data; name="picture"; filename="{name}"\r\n\r\n'.encode() + data
        for name, data in files
    ]
    body = b"\r\n".join([*parts, f"--{edge}--\r\n".encode()])
    return body, {"Content-Type": f"multipart/form-data; boundary={edge}"}


def tree(pid: int) -> list[int]:
    """A process and all that come from it."""
    found, parents = [pid], {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def memory(pid: int) -> float:
    """MiB that a process and all that come from it hold, what they share counted for each."""
    total = 0.0
    for one in tree(pid):
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{one}/status").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024
    return total
