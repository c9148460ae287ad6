"""The decision in use changes while a server answers: every answer is of one and names it, and none is lost."""

from __future__ import annotations

import http.client
import io
import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

import vitrail
from served import Server, form, serving
from stored_runs import store_run
from vitrail.services.deciding import DecisionRequest, decide

pytestmark = pytest.mark.serial
CLIENTS = 6


class Answer(NamedTuple):
    """What a client was given."""

    asked: str
    status: int
    decision: str | None
    row: dict[str, object]


def picture(seed: int = 0) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (12, 8), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def prepared(folder: Path) -> tuple[Path, float]:
    """A run with the decisions low, under which the picture is defect, and high, under which it is sound."""
    run = store_run(folder / "run")
    chance = vitrail.open(run).predict([picture()]).records()[0]["prob_defect"]
    for name, threshold in {"low": chance - 0.01, "high": chance + 0.01}.items():
        decide(run, DecisionRequest(at={"defect": threshold}), keep=name, use="low" if name == "low" else "")
    return run, chance


def ask_on(port: int, asked: str, stop: threading.Event, found: list[Answer]) -> None:
    """One request after the other over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body, path = picture(), "/predict" + (f"?decision={asked}" if asked else "")
    while not stop.is_set():
        connection.request("POST", path, body)
        response = connection.getresponse()
        found.append(Answer(asked, response.status, response.getheader("X-Decision"), json.loads(response.read())))
    connection.close()


def until_in_use(server: Server, name: str) -> None:
    until = time.monotonic() + 20
    while server.ask("/about").json["decision"] != name:
        assert time.monotonic() < until, f"{name} is never in use"
        time.sleep(0.05)


def test_no_answer_is_lost_or_mixed_while_the_decision_changes(tmp_path):
    run, _ = prepared(tmp_path)
    found, stop = [], threading.Event()
    with serving(run, "--workers", 1, "--threads", 1, "--device", "cpu") as server:
        words = ["", "", "", "low", "high", "training"][:CLIENTS]
        clients = [threading.Thread(target=ask_on, args=(server.port, word, stop, found)) for word in words]
        for client in clients:
            client.start()
        for name in ("high", "low", "training", "high", "low"):
            decide(run, DecisionRequest(), use=name)
            until_in_use(server, name)
        time.sleep(0.3)
        stop.set()
        for client in clients:
            client.join(30)
        assert not any(client.is_alive() for client in clients)
    assert {answer.status for answer in found} == {200}
    label = {"low": "defect", "high": "sound"}
    for answer in found:
        assert answer.row.get("decision", "training") == answer.decision
        assert answer.decision not in label or answer.row["label"] == label[answer.decision]
        assert answer.asked in ("", answer.decision)
    seen = Counter(answer.decision for answer in found if not answer.asked)
    assert set(seen) == {"low", "high", "training"} and len(found) > 50, seen


def test_every_path_takes_a_decision_and_refuses_one_that_is_not_there(tmp_path):
    run, chance = prepared(tmp_path)
    with serving(run, "--workers", 1, "--threads", 1, "--device", "cpu") as server:
        told = server.ask("/about").json
        assert (told["decision"], told["decisions"]) == ("low", ["training", "high", "low"])
        assert told["thresholds"] == {"defect": pytest.approx(chance - 0.01)}
        for name in ("", "high", "training"):
            query = f"?decision={name}" if name else ""
            rows = server.ask(f"/predict{query}", *form(("a.png", picture()), ("b.png", picture(1))))
            assert rows.headers["x-decision"] == (name or "low")
            assert {row.get("decision", "training") for row in rows.json["rows"]} == {name or "low"}
            drawn = server.ask(f"/explain{query}", picture())
            assert drawn.status == 200 and drawn.headers["x-decision"] == (name or "low")
            if name != "training":
                assert drawn.json["target"] == rows.json["rows"][0]["label"] == {"high": "sound"}.get(name, "defect")
            pixels = np.asarray(Image.open(io.BytesIO(picture()))).reshape(1, 12, 8, 1)
            tensor = {"name": "images", "shape": [1, 12, 8, 1], "datatype": "UINT8", "data": pixels.ravel().tolist()}
            inferred = server.ask(f"/v2/models/tiny/infer{query}", json.dumps({"inputs": [tensor]}).encode())
            outputs = {each["name"]: each["data"] for each in inferred.json["outputs"]}
            assert inferred.headers["x-decision"] == (name or "low")
            if name != "training":
                assert outputs["decisions"] == [0 if name == "high" else 1]
        for path, body in (("/predict", picture()), ("/explain", picture()), ("/v2/models/tiny/infer", b"{}")):
            refused = server.ask(f"{path}?decision=gone", body)
            assert refused.status == (422 if body != b"{}" else refused.status), path
            if refused.status == 422:
                assert refused.json["error"] == "No decision 'gone' is kept. There are: training, high, low."
        file = run / "model" / "decisions" / "0-new.json"
        file.write_text("{}")  # lies there and is not listed: it is no decision
        assert server.ask("/predict?decision=0-new", picture()).status == 422


def test_validation_scores_are_sent_once_and_need_the_token(tmp_path):
    run, _ = prepared(tmp_path)
    token = "a-token-that-is-long-enough"
    with serving(run, "--workers", 1, "--device", "cpu", VITRAIL_TOKEN=token) as server:
        assert server.ask("/decisions").status == 401
        told = server.ask("/decisions", None, {"Authorization": f"Bearer {token}"}).json
    assert [one["name"] for one in told["versions"]] == ["training", "high", "low"] and told["in_use"] == "low"
    assert [one["name"] for one in told["validation"]["scores"]] == ["sound", "defect"]
    assert "paths" not in json.dumps(told) and ".png" not in json.dumps(told)
