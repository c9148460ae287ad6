"""`vitrail serve` gives the answers of every other door, says what it is, and what it refuses (part E)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from corpus.all_cases import CASES
from corpus.writing import encoded, photo
from served import Server, asked, form, reading, saved, serving
from serving_here import serving_here
from vitrail.cli.main import main
from vitrail.evaluate.tta import TtaViews
from vitrail.explain.methods import METHODS
from vitrail.predict.predictor import Predictor
from vitrail.services.explanation import ExplainRequest, explain_with_predictor

pytestmark = pytest.mark.serial

READ = [case for case in CASES if not case.heavy]
TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    temporary = tmp_path_factory.mktemp("temporary")
    with serving(model, "--workers", 2, TMPDIR=str(temporary)) as found:
        yield found


@pytest.fixture(scope="module")
def picture() -> bytes:
    return encoded(photo(), "PNG")


@pytest.fixture
def same_threads() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def predicted(model: Path, folder: Path, cases, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    """What the command says of those that it reads, by the names of their files."""
    for number, case in enumerate(cases):
        (folder / f"{number}-{case.name}").write_bytes(case.make())
    names = [str(folder / f"{number}-{case.name}") for number, case in enumerate(cases)]
    capsys.readouterr()
    assert main(["predict", str(model), *names, "--json", "--skip-bad", "--device", "cpu"]) == 0
    return {str(row["id"]): row for row in json.loads(capsys.readouterr().out)}


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2", "/about", "/metrics", "/", "/docs"])
def test_probes_that_ask_with_head_get_what_get_does_without_its_body(server, path):
    got, head = (
        server.raw(f"{verb} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        for verb in ("GET", "HEAD")
    )
    status, body = got.partition(b"\r\n")[0], got.partition(b"\r\n\r\n")[2]
    assert status == b"HTTP/1.1 200 OK" == head.partition(b"\r\n")[0]
    assert body and not head.partition(b"\r\n\r\n")[2]


def test_head_of_what_only_post_answers_is_another_method(server):
    assert server.raw(b"HEAD /predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 405")


def test_e23_and_e5_every_kind_of_file_gets_the_row_of_the_command_or_a_refusal(
    server, model, tmp_path, capsys, same_threads
):
    """E23, E5: of all kinds of the corpus that are quick to make, with EXIF, 16 bits, opacity, CMYK and damage."""
    expected = predicted(model, tmp_path, READ, capsys)
    accepted = 0
    for number, case in enumerate(READ):
        name = f"{number}-{case.name}"
        said = server.ask("/predict", case.make(), {"X-Filename": name})
        if name not in expected:
            assert said.status in (400, 413, 415, 422) and said.json["error"], (case, said)
            continue
        accepted += 1
        assert said.status == 200, (case, said.body)
        row = said.json
        notes = row.pop("notes")
        assert isinstance(notes, list) and list(row) == list(expected[name])
        for column, value in expected[name].items():
            if column.startswith("prob"):
                assert row[column] == pytest.approx(value, abs=1e-4), (case, column)
            elif column != "path":
                assert row[column] == value, (case, column)
    assert accepted > 40


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("task", "decided"), [("multilabel", "labels"), ("regression", "nothing"), ("classification", "unlike")]
)
def test_every_task_has_the_columns_of_the_command(task, decided, tmp_path, capsys, picture, same_threads):
    found = reading(task=task, decided=decided)
    model = saved(tmp_path / "tiny", found)
    (tmp_path / "a.png").write_bytes(picture)
    capsys.readouterr()
    assert main(["predict", str(model), str(tmp_path / "a.png"), "--json", "--device", "cpu"]) == 0
    (expected,) = json.loads(capsys.readouterr().out)
    with serving_here(found) as here:
        row = asked(here.port, "/predict", picture, {"X-Filename": "a.png"}).json
        notes = row.pop("notes")
        assert list(row) == list(expected) and row["abstain"] == expected["abstain"]
        assert row.get("label") == expected.get("label")
        numbers = [name for name in row if name.startswith(("prob", "value"))]
        np.testing.assert_allclose([row[n] for n in numbers], [expected[n] for n in numbers], rtol=1e-4, atol=1e-4)
        assert bool(notes) == (row["abstain"] != "no")
        about = asked(here.port, "/about").json
        assert (about["task"], about["unlike"]) == (task, decided == "unlike")


def test_a_form_gives_a_row_for_each_file_in_order(server, picture):
    body, headers = form(("one.png", picture), ("note.txt", b"hello"), ("films/two.png", picture))
    rows = server.ask("/predict", body, headers).json["rows"]
    assert [row["path"] for row in rows] == ["one.png", "note.txt", "films/two.png"]
    assert rows[1]["status"] == 415 and "it looks like text" in rows[1]["error"] and "label" not in rows[1]
    assert rows[2]["id"] == "two.png" and rows[0]["label"] == rows[2]["label"]
    assert server.ask("/predict", *form()).status == 400
    assert server.ask("/predict", *form(*[("x", b"")] * 65)).status == 413


def test_tensors_are_answered_by_the_open_inference_protocol(server, model, same_threads):
    facts = server.ask("/v2/models/tiny").json
    assert server.ask("/v2").json["name"] == "vitrail" and server.ask("/v2/models/tiny/ready").json["ready"]
    assert facts["inputs"] == [{"name": "images", "datatype": "UINT8", "shape": [-1, 32, 32, 3]}]
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    one = {"name": "images", "shape": [5, 32, 32, 3], "datatype": "UINT8", "data": images.tolist()}
    said = server.ask("/v2/models/tiny/infer", json.dumps({"id": "x", "inputs": [one]}).encode()).json
    assert (said["model_name"], said["id"]) == ("tiny", "x")
    found = {out["name"]: np.array(out["data"]).reshape(out["shape"]) for out in said["outputs"]}
    assert [out["name"] for out in said["outputs"]] == [out["name"] for out in facts["outputs"]]
    expected = Predictor.open(model).predict(list(images))
    np.testing.assert_allclose(found["probabilities"], expected.probabilities, atol=1e-4)
    np.testing.assert_array_equal(found["decisions"], expected.indices)
    only = {"inputs": [one], "outputs": [{"name": "decisions"}]}
    assert [out["name"] for out in server.ask("/v2/models/tiny/infer", json.dumps(only).encode()).json["outputs"]] == [
        "decisions"
    ]
    wrong = {"inputs": [one], "outputs": [{"name": "guesses"}]}
    assert server.ask("/v2/models/tiny/infer", json.dumps(wrong).encode()).status == 422


def test_X17_explanations_are_the_arrays_of_every_other_door_and_features_are_given(
    server, model, picture, tmp_path, same_threads
):
    about = server.ask("/about").json
    assert about["methods"][0]["name"] == "relevance"
    (tmp_path / "a.png").write_bytes(picture)
    ours = Predictor.open(model)
    for method in (one["name"] for one in about["methods"]):
        said = server.ask(f"/explain?method={method}&target={'dog' if METHODS[method].class_specific else ''}", picture)
        assert said.status == 200, said.body
        found = said.json
        assert (found["rows"], found["columns"], found["height"], found["width"]) == (4, 4, 32, 32)
        asked_for = ExplainRequest(method=method, target="dog" if METHODS[method].class_specific else None)
        (expected,) = explain_with_predictor(ours, str(model), tmp_path / "a.png", asked_for)
        np.testing.assert_allclose(found["values"], expected.heatmap.values[0], atol=1e-4)
        assert np.array(found["values"]).shape == (4, 4) and found["title"] and found["caption"]
        assert found["target"] == ("dog" if METHODS[method].class_specific else None)
    assert server.ask("/explain", picture).json["method"] == "relevance"
    for wrong, why in (("method=magic", "no method 'magic'"), ("target=bird", "no output 'bird'")):
        said = server.ask(f"/explain?{wrong}", picture)
        assert said.status == 422 and why in said.json["error"]
    features = server.ask("/embed", picture).json
    assert len(features["features"]) == 16 and features["kind"] == "class"


def test_e18_pages_carry_a_policy_and_load_nothing_from_elsewhere(server):
    """E18."""
    for path in ("/docs", "/docs/described.css", "/docs/described.js", "/openapi.json"):
        said = server.ask(path)
        assert said.status == 200 and "default-src 'self'" in said.headers["content-security-policy"]
        assert (
            not re.search(rb"(src|href)=.https?://", said.body) and said.headers["x-content-type-options"] == "nosniff"
        )
        assert server.ask(path, headers={"If-None-Match": said.headers["etag"]}).status == 304
    page = server.ask("/docs").body.decode()
    assert re.findall(r"<script[^>]*>(.*?)</script>", page) == [""], "one script, and nothing inline"
    assert "`" not in page and "<code>vitrail predict</code>" in page
    assert "style=" not in page and "/v2/models/tiny/infer" in page
    assert server.ask("/openapi.json").json["paths"]["/predict"]["post"]["requestBody"]["content"]["image/*"]
    assert server.ask("/").status == 200
    assert not [name for name in server.ask("/predict", b"").headers if name.startswith("access-control")]


def test_e16_names_of_clients_touch_no_file_and_no_log(server, picture, tmp_path):
    """E16."""
    for name in ("../../etc/passwd", "%0d%0aSet-Cookie: a=b", "%1b[31mred", "C:\\films\\a.png", "ü%C3%BC"):
        said = server.ask("/predict", picture, {"X-Filename": name})
        assert said.status == 200 and "set-cookie" not in said.headers
        assert "/" not in said.json["id"] and "\\" not in said.json["id"]
    assert "passwd" not in server.said() and "\x1b" not in server.said()
    assert len(server.ask("/predict", picture, {"X-Filename": "x" * 5000}).json["path"]) == 1000


@pytest.mark.wide
def test_who_asks_for_a_log_gets_a_line_for_each_request_without_names(model, picture):
    with serving(model, "--log") as server:
        assert server.ask("/predict", picture, {"X-Filename": "my-secret.png"}).status == 200
        assert server.ask("/predict", b"no picture").status == 415
        assert server.ask("/my-secret").status == 404
        assert server.ask("/docs").status == 200, "a page of its own is not told of"
        assert server.ask("/v2/health/live").status == 200
        said = server.said()
        end = time.monotonic() + 10
        while "/v2/health/live" not in said and time.monotonic() < end:  # a line follows its answer
            time.sleep(0.05)
            said = server.said()
    told = [json.loads(line) for line in said.splitlines() if '"path"' in line]
    assert [(one["path"], one["status"]) for one in told] == [
        ("/predict", 200), ("/predict", 415), ("other", 404), ("/v2/health/live", 200),
    ]  # fmt: skip
    assert all(0 <= one["seconds"] < 60 and datetime.fromisoformat(one["ended"]).tzinfo for one in told)
    assert "my-secret" not in said


def test_e24_no_address_is_ever_fetched(server):
    """E24."""
    for body in (b"http://127.0.0.1/a.png", b"file:///etc/passwd", b'{"url": "http://127.0.0.1/a.png"}'):
        assert server.ask("/predict", body).status == 415


def test_unknown_paths_and_methods_are_refused_in_a_sentence(server):
    assert server.ask("/nothing").json == {"error": "There is nothing at this path. See /docs."}
    assert server.ask("/predict").status == 405 and server.ask("/about", b"x").status == 405
    assert server.ask("/page/..%2fapp.py").status == 404 and server.ask("/nothing", b"x").status == 404


@pytest.mark.wide
def test_e19_without_its_token_nothing_is_computed_and_nothing_is_logged(model, picture, tmp_path):
    """E19."""
    file = tmp_path / "tokens"
    file.write_text(TOKEN + "\n")
    with serving(model, "--token-file", file) as server:
        assert server.ask("/about").json["token"] is True
        said = server.ask("/predict", picture)
        assert said.status == 401 and said.headers["www-authenticate"].startswith("Bearer")
        assert server.ask("/predict", picture, {"Authorization": f"Bearer {TOKEN}x"}).status == 401
        assert server.ask("/predict", picture, {"Authorization": f"Bearer {TOKEN}"}).status == 200
        assert server.ask("/v2/health/ready").status == 200
        assert TOKEN not in server.said() + server.ask("/metrics").body.decode()


@pytest.mark.wide
def test_a_server_for_everybody_without_a_token_says_so_once(model):
    with serving(model, "--host", "0.0.0.0") as server:
        assert server.said().count("warning: whoever reaches this machine may use the model") == 1


@pytest.mark.wide
def test_one_file_may_be_read_in_another_way_and_unlike_settings_are_refused(model, capsys):
    with serving(model, "--image.max_pixels", 1000) as server:
        assert server.ask("/about").json["limits"]["pixels"] == 1000
        assert server.ask("/predict", encoded(photo(), "PNG")).status == 413
    assert main(["serve", str(model), "--port", "0", "--image.height", "64"]) == 2
    assert "was settled when the model was trained" in capsys.readouterr().err


def test_without_the_extra_one_sentence_says_how_to_get_it(monkeypatch, capsys, model):
    import importlib.util

    true = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else true(name))
    assert main(["serve", str(model)]) == 2
    assert (
        capsys.readouterr().err.count(
            'vitrail serve needs uvicorn, which the extra brings: pip install "vitrail[serve]"'
        )
        == 1
    )


@pytest.mark.wide
def test_views_are_averaged_as_everywhere(tmp_path, capsys, picture, same_threads):
    import dataclasses

    found = reading()
    settings = dataclasses.replace(found.settings, views=TtaViews(flip=True, shift=1))
    found = dataclasses.replace(found, settings=settings)
    model = saved(tmp_path / "tiny", found)
    (tmp_path / "a.png").write_bytes(picture)
    assert main(["predict", str(model), str(tmp_path / "a.png"), "--json", "--device", "cpu"]) == 0
    (expected,) = json.loads(capsys.readouterr().out)
    with serving_here(found) as here:
        row = asked(here.port, "/predict", picture).json
        assert row["label"] == expected["label"] and row["probability"] == pytest.approx(
            expected["probability"], abs=1e-4
        )
