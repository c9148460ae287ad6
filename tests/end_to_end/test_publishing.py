"""`vitrail export --to hub:OWNER/NAME`: shown, sent, and read again by its name on the Hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import vitrail as package
from end_to_end.test_wrong_inputs import sentence
from hub_server import COMMIT, Hub, serving
from vitrail.predict.predictor import Predictor

USES = {
    "native": 'vitrail.load("hf:me/flowers")',
    "timm": 'timm.create_model("hf_hub:me/flowers", pretrained=True)',
    "transformers": 'pipeline("image-classification", model="me/flowers")',
}


def command(home, address: str, *words: object) -> str:
    """A command in a process of its own, because huggingface_hub reads its environment once."""
    settings = {"HF_HOME": str(home), "HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_TOKEN": "good"}
    settings |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-m", "vitrail", *map(str, words)],
        env={**os.environ, **settings}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_what_was_pushed_is_pulled_and_answers_alike(vitrail, run_folder, flowers, tmp_path):
    hub = Hub({}, repository="me/flowers", exists=False)
    asked = ("--device", "cpu", "--json")
    with serving(hub) as address:
        told = json.loads(command(tmp_path, address, "export", run_folder, "--to", "hub:me/flowers", "--json"))
        assert told["page"] == f"{address}/me/flowers" and told["commit"] == COMMIT
        pulled = json.loads(command(tmp_path, address, "predict", "hf:me/flowers", flowers, *asked))
    own = json.loads(vitrail("predict", run_folder, flowers, *asked).out)
    assert [row["label"] for row in pulled] == [row["label"] for row in own]
    np.testing.assert_allclose([row["probability"] for row in pulled], [row["probability"] for row in own], atol=1e-6)
    bundle = run_folder / "model"
    same = {path.name for path in bundle.iterdir()} - {"README.md", "manifest.json"}
    assert hub.files.keys() == same | {"README.md", "manifest.json"}
    assert all(hub.files[name] == (bundle / name).read_bytes() for name in same)


@pytest.mark.slow
def test_a_page_that_was_edited_on_the_hub_outlives_the_next_push_and_the_model_answers(run_folder, flowers, tmp_path):
    hub = Hub({}, repository="me/flowers", exists=False)
    words = ("export", run_folder, "--to", "hub:me/flowers", "--json")
    with serving(hub) as address:
        assert any("states no licence" in note for note in json.loads(command(tmp_path, address, *words))["notes"])
        page = hub.files["README.md"].decode()
        edited = page.replace("---\n", "---\nlicense: mit\n", 1) + "\nMy own words.\n"
        hub.files["README.md"] = edited.encode()
        told = json.loads(command(tmp_path, address, *words))
        pulled = json.loads(
            command(tmp_path, address, "predict", "hf:me/flowers", flowers, "--device", "cpu", "--json")
        )
    assert told["card"] == hub.files["README.md"].decode() == edited
    assert told["notes"][0].startswith("README.md there has been edited and was left as it is; to have the new one, ")
    assert len(pulled) == 10


@pytest.mark.parametrize("layout", USES)
def test_a_dry_run_shows_the_files_and_the_card_and_sends_nothing(vitrail, run_folder, layout, tmp_path):
    kept = tmp_path / "kept"
    words = ("--layout", layout, "--dry-run", "--out", kept)
    answer = vitrail("export", run_folder, "--to", "hub:me/flowers", *words)  # no network in this process
    assert answer.code == 0, answer.err
    assert answer.out.startswith("would be put on the Hub as me/flowers\n")
    for path in kept.iterdir():
        assert f"  {path.name}" in answer.out and f"{path.stat().st_size:,} bytes" in answer.out
    card = (kept / "README.md").read_text()
    assert answer.out.endswith(card)
    library = "vitrail" if layout == "native" else layout
    assert card.startswith(f"---\nlibrary_name: {library}\npipeline_tag: image-classification\n")
    assert USES[layout] in card and "PATH-OF-THIS-FOLDER" not in card and "`disc`, `stripes`" in card
    assert "## What it is worth" in card  # the run's own figures
    assert (kept / "manifest.json").exists() == (layout == "native")
    assert "the card states no licence" in answer.out


def test_what_is_kept_of_a_native_dry_run_is_a_bundle_that_answers(run_folder, flowers, tmp_path):
    run = package.open(run_folder)
    shown = run.publish("me/flowers", dry_run=True, out=tmp_path / "kept")
    assert (shown.page, shown.commit) == ("", "") and sum(shown.files.values()) > 50_000
    picture = flowers / "disc" / "0.png"
    again = package.open(run_folder).predict([picture]).probabilities

    np.testing.assert_allclose(Predictor.open(tmp_path / "kept").predict([picture]).probabilities, again, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "hub:flowers"), "A place for a model on the Hub is called hub:OWNER/NAME. Got 'hub:flowers'."),
        (("--to", "hub:me/flowers", "--layout", "onnx"), "--layout is native, timm or transformers. Got 'onnx'."),
        (("--to", "hub:me/flowers", "--resize"), "--resize is for files that hold a graph."),
        (("--to", "timm", "--private"), "--private can be said with --to hub:OWNER/NAME alone. Got --to timm."),
        (("--to", "pt2", "--dry-run"), "--dry-run can be said with --to hub:OWNER/NAME alone. Got --to pt2."),
    ],
)
def test_what_cannot_be_put_there_is_said_in_a_sentence(vitrail, run_folder, words, said):
    assert said in sentence(vitrail("export", run_folder, *words), 2)


def test_without_a_network_nothing_is_sent_and_the_exit_code_says_why(vitrail, run_folder, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "good")  # this process may not ask the network
    said = sentence(vitrail("export", run_folder, "--to", "hub:me/flowers"), 5)
    assert said.startswith("The Hub cannot be reached (") and "so nothing was sent" in said
