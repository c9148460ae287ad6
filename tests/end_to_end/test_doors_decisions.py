"""One model, three decisions in turn, and all doors: each follows the decision in use and says which has answered.

Meanwhile clients ask the server without a pause. The page in a browser has tests of its own (`test_page_decisions.py`).

A further door is one line in `DOORS`: a function from the `Place` to the rows that it gives.
"""

from __future__ import annotations

import csv
import http.client
import importlib.util
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

import partners
import vitrail
from end_to_end.test_doors import PROGRAM
from quick_fits import LEARNING, digits
from served import Server, serving
from vitrail import ViTClassifier
from vitrail.cli.main import main
from vitrail.data.preprocess import preprocess_image
from vitrail.evaluate.decision_figures import apply_decisions
from vitrail.export.build import Pt2File
from vitrail.predict import onnx_predictor
from vitrail.predict.kept_decisions import read_kept_decisions
from vitrail.predict.predictor import Predictor
from vitrail.run import Run
from vitrail.services.explanation import ExplainRequest, explain_with_predictor

pytestmark = [pytest.mark.wide, pytest.mark.serial]
Rows = list[dict[str, Any]]
VERSIONS = {
    "careful": {"at": {"even": 0.1}},
    "rare": {"prevalence": {"even": 0.05}, "rule": "cost 3"},
    "training": None,
}
"""What each decision is asked for by, in the order in which they are put to use."""


@dataclass(frozen=True)
class Place:
    """A run with exported files, a server that is never started anew, an estimator and a run that stay open."""

    run: Path
    pictures: tuple[str, ...]
    folder: Path
    server: Server
    estimator: ViTClassifier
    opened: Run

    def file(self, ending: str) -> Path:
        """A file that a door may write."""
        return self.folder / f"{len(list(self.folder.iterdir()))}{ending}"


def command_line(place: Place, *words: str, ending: str = ".csv") -> Rows:
    out = place.file(ending)
    assert main(["predict", str(place.run), *place.pictures, "--to", str(out), *words]) == 0
    lines = out.read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines] if ending == ".jsonl" else list(csv.DictReader(lines))


def in_parts(place: Place) -> Rows:
    return command_line(place, "--part-size", "64")


def ray(place: Place) -> Rows:
    out = place.file(".csv")
    line = [PROGRAM, "-", "predict", str(place.run), *place.pictures, "--engine", "ray", "--part-size", "64"]
    ((code, _, err),) = partners.ended(partners.start([*line, "--to", str(out)], world=1), 280)
    assert code == 0, err[-3000:]
    return list(csv.DictReader(out.read_text("utf-8").splitlines()))


def estimator(place: Place) -> Rows:
    chances, named = place.estimator.predict_proba([*place.pictures]), place.estimator.decision_
    classes = place.estimator.classes_.tolist()
    decided = place.estimator.predict([*place.pictures])
    assert place.estimator.positive_ == (None if place.estimator.threshold_ is None else "even")
    return [
        {"label": label, **{f"prob_{name}": chance for name, chance in zip(classes, row, strict=True)},
         **({} if named == "training" else {"decision": named})}
        for label, row in zip(decided, chances, strict=True)
    ]  # fmt: skip


def package(place: Place) -> Rows:
    file = Pt2File(place.run / "exports" / "model.pt2")
    images = [preprocess_image(Path(each), file.metadata.image).permute(1, 2, 0).numpy() for each in place.pictures]
    return onnx_predictor.predictions_from_outputs(
        file.metadata, file.run(np.stack(images)), place.pictures, place.pictures
    ).records()


def explained(place: Place) -> Rows:
    """The answers in explanations, of a few pictures."""
    predictor = place.opened.predictor
    found = explain_with_predictor(predictor, "run", [Path(each) for each in place.pictures[:5]], ExplainRequest())
    notes = [" ".join(one.notes) for one in found]
    name = predictor.decisions.version
    assert all(("Answers by the kept decision" in note) == bool(name) and name in note for note in notes)
    return [{"label": one.predicted_class, **({"decision": name} if name else {})} for one in found]


def server(place: Place, query: str = "") -> Rows:
    said = [place.server.ask(f"/predict{query}", Path(each).read_bytes()) for each in place.pictures]
    assert {one.status for one in said} == {200}
    assert {one.headers["x-decision"] for one in said} == {one.json.get("decision", "training") for one in said}
    return [one.json for one in said]


def told_by_figures(place: Place, capsys: pytest.CaptureFixture[str]) -> Rows:
    """Which decision the report and the figures of `vitrail evaluate` are of."""
    assert main(["report", str(place.run)]) == 0
    text = (place.run / "report.html").read_text("utf-8")
    of_report = re.findall(r"Every figure here is of the decision ([\w.-]+)", text)
    capsys.readouterr()
    assert main(["evaluate", str(place.run), str(place.folder.parent / "pictures"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out).get("decision", "training")
    return [{"decision": said}, {"decision": of_report[0] if of_report else "training"}]


DOORS: dict[str, Callable[[Place], Rows]] = {
    "command line": command_line,
    "command line, JSON lines": lambda place: command_line(place, ending=".jsonl"),
    "command line, in parts": in_parts,
    "command line, ONNX": lambda place: command_line(place, "--engine", "onnx"),
    "Python, opened anew": lambda place: vitrail.open(place.run).predict([*place.pictures]).records(),
    "Python, opened before": lambda place: place.opened.predict([*place.pictures]).records(),
    "estimator": estimator,
    "torch.export": package,
    "explanations": explained,
    "server": server,
    **({"Ray": ray} if importlib.util.find_spec("ray") else {}),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A model that tells even digits from odd ones, with the decisions kept and every exported file."""
    import torch

    threads = torch.get_num_threads()
    folder = tmp_path_factory.mktemp("decisions")
    grey, targets = digits(900)
    names = np.where(targets % 2, "odd", "even")
    settings = {**LEARNING["settings"], "decisions.positive": "even", "data.val_fraction": 0.4}
    fitted = ViTClassifier(out=folder / "run", **{**LEARNING, "settings": settings}).fit(grey[:800], names[:800])
    torch.set_num_threads(threads)
    for to in ("onnx", "pt2"):
        fitted.run_.export(to)
    for name, words in VERSIONS.items():
        if words is not None:
            fitted.run_.decide(**words, keep=name)
    (folder / "written").mkdir()
    pictures = [folder / "pictures" / name / f"{number:03d}.png" for number, name in enumerate(names[800:])]
    for path, picture in zip(pictures, grey[800:], strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
    run = fitted.run_.path
    with serving(run, "--threads", 1, "--workers", 1, "--device", "cpu") as running:
        opened = vitrail.open(run)
        _ = opened.predictor
        yield Place(run, tuple(map(str, pictures)), folder / "written", running, fitted, opened)


class Heard(NamedTuple):
    """What a client was given, who asked without a pause."""

    number: int
    """Of the picture."""
    asked: str
    status: int
    decision: str | None
    row: dict[str, Any]


def ask_without_pause(place: Place, asked: str, stop: threading.Event) -> list[Heard]:
    """One request after the other over one connection; a lost answer is an error."""
    connection, heard = http.client.HTTPConnection("127.0.0.1", place.server.port, timeout=60), []
    bodies, path = [Path(each).read_bytes() for each in place.pictures], f"/predict?decision={asked}"
    while not stop.is_set():
        number = len(heard) % len(bodies)
        connection.request("POST", path, bodies[number])
        said = connection.getresponse()
        heard.append(Heard(number, asked, said.status, said.getheader("X-Decision"), json.loads(said.read())))
    connection.close()
    return heard


def put_to_use(place: Place, name: str) -> Rows:
    """Put a decision to use, in exported files too; what every door must say then."""
    for to in ("onnx", "pt2"):
        into = place.run / "exports" / f"model.{to}"
        assert main(["decide", str(place.run), "--use", name, "--into", str(into), "--by", "A. Meier"]) == 0
    until = time.monotonic() + 30
    while place.server.ask("/about").json["decision"] != name:
        assert time.monotonic() < until, f"{name} is never in use"
        time.sleep(0.05)
    decisions = read_kept_decisions(place.run / "model").by_name
    trained = Predictor.open(place.run).with_decisions(decisions["training"])
    return apply_decisions(trained.predict([Path(each) for each in place.pictures]), decisions[name]).records()


@pytest.mark.timeout(900)
def test_every_door_follows_three_decisions_in_turn_and_names_them_while_a_server_is_asked(place, capsys):
    answers: dict[str, list[str]] = {}
    stop = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(ask_without_pause, place, asked, stop) for asked in ("", "", "careful")]
        try:
            for name in VERSIONS:
                expected = put_to_use(place, name)
                answers[name] = [row["label"] for row in expected]
                for door, ask in DOORS.items():
                    rows = ask(place)
                    assert [row["label"] for row in rows] == answers[name][: len(rows)], (name, door)
                    assert {row.get("decision", "training") for row in rows} == {name}, (name, door)
                    for row, other in zip(rows, expected, strict=False):
                        for key in ("prob_even", "prob_odd"):
                            assert key not in row or abs(float(row[key]) - other[key]) < 1e-4, (name, door)
                assert {row["decision"] for row in told_by_figures(place, capsys)} == {name}
        finally:
            stop.set()
    assert len({tuple(each) for each in answers.values()}) == 3, "decisions that answer alike prove nothing"
    heard = [one for client in clients for one in client.result()]
    assert {one.status for one in heard} == {200}
    for one in heard:
        assert one.row.get("decision", "training") == one.decision and one.asked in ("", one.decision)
        assert one.row["label"] == answers[one.decision][one.number]
    seen = Counter(one.decision for one in heard if not one.asked)
    assert set(seen) == set(VERSIONS) and min(seen.values()) > 20, seen
