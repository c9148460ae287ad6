"""Models put on the Hub: one commit, nothing beside them, and a sentence for whatever stands in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hub_server import COMMIT, Hub, serving
from vitrail.errors import UsageError
from vitrail.files.hub import list_files, parse_push_target, seal_card

SEND = """
import json, sys
from pathlib import Path
from vitrail.errors import VitrailError
from vitrail.files.hub import push_folder
try:
    sent = push_folder(Path(sys.argv[1]), "owner/name", sys.argv[2] == "private", "a message")
    print(json.dumps(sent._asdict()))
except VitrailError as error:
    print(json.dumps({"kind": type(error).__name__, "words": str(error)}))
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """A model of three files."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "model.safetensors").write_bytes(bytes(range(256)) * 4096)
    (made / "config.json").write_text("{}")
    (made / "README.md").write_text("---\nlibrary_name: vitrail\n---\n# A model\n")
    return made


def send(folder: Path, address: str, private: str = "public", token: str = "good") -> dict:
    """`send` in a process of its own, because huggingface_hub reads its environment once."""
    settings = {"HF_HOME": f"{folder.parent}/home", "HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_TOKEN": token}
    settings |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", SEND, str(folder), private],
        env={**os.environ, **settings}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("private", ["public", "private"])
def test_a_new_repository_holds_all_files_and_no_others(folder, private):
    hub = Hub({}, exists=False)
    with serving(hub) as address:
        sent = send(folder, address, private)
        assert sent["page"] == f"{address}/owner/name" and sent["commit"] == COMMIT
    assert hub.files == {name: (folder / name).read_bytes() for name in list_files(folder)}
    assert hub.private == (private == "private")
    assert sum(line.endswith("/commit/main") for line in hub.asked) == 1
    assert "empty or missing metadata" in sent["notes"][0]  # what the Hub says of the card


def test_a_repository_with_the_same_files_gets_their_new_content(folder):
    hub = Hub({"model.safetensors": b"old", "config.json": b"{}", ".gitattributes": b"*.bin"})
    with serving(hub) as address:
        assert send(folder, address)["commit"] == COMMIT
    assert hub.files["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert ".gitattributes" in hub.files and not any(line.endswith("/create") for line in hub.asked)


def test_a_repository_with_other_files_is_left_as_it_is(folder):
    hub = Hub({"pytorch_model.bin": b"theirs", "config.json": b"{}"})
    with serving(hub) as address:
        said = send(folder, address)
    assert said["kind"] == "UsageError"
    assert said["words"].startswith("owner/name on the Hub holds other files already (pytorch_model.bin), which a ")
    assert not [line for line in hub.asked if line.startswith(("POST", "PUT"))]


@pytest.mark.parametrize(
    ("theirs", "kept"),
    [
        (seal_card("# Last month\n"), False),
        (seal_card("# Last month\n").replace("month", "year"), True),
        ("# Mine\n", True),
    ],
)
def test_a_card_that_was_edited_there_is_left_as_it_is_and_said_so(folder, theirs, kept):
    hub = Hub({"model.safetensors": b"old", "README.md": theirs.encode()})
    with serving(hub) as address:
        sent = send(folder, address)
    ours = (folder / "README.md").read_text()
    assert hub.files["README.md"].decode() == sent["card"] == (theirs if kept else ours)
    assert hub.files["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    said = [note for note in sent["notes"] if note.startswith("README.md there has been edited and was left as it is")]
    assert len(said) == kept


def test_the_licence_that_a_new_page_was_given_on_the_hub_is_taken_over(folder):
    hub = Hub({"README.md": b"---\nlicense: mit\n---\n"})
    with serving(hub) as address:
        sent = send(folder, address)
    assert sent["card"].startswith("---\nlibrary_name: vitrail\nlicense: mit\n---\n# A model\n")
    assert hub.files["README.md"].decode() == sent["card"]


def test_what_everybody_can_see_is_not_called_private(folder):
    hub = Hub({"config.json": b"{}"})
    with serving(hub) as address:
        said = send(folder, address, "private")
    assert said["kind"] == "UsageError" and "everybody can see it, so --private cannot be kept" in said["words"]


def test_without_a_token_a_person_is_told_how_to_get_one(folder):
    with serving(Hub({}, exists=False)) as address:
        said = send(folder, address, token="")
    assert said["kind"] == "UsageError"
    assert "one needs a token that may write, and none is here" in said["words"] and "`hf auth login`" in said["words"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_token_that_may_not_write_is_named_as_the_reason(folder, exists):
    with serving(Hub({}, exists=exists)) as address:
        said = send(folder, address, token="other")
    assert said["kind"] == "UsageError"
    assert "The Hub does not let this token write to owner/name (status 40" in said["words"]


def test_without_a_network_nothing_is_sent_and_the_other_way_is_named(folder):
    said = send(folder, "http://127.0.0.1:9")
    assert said["kind"] == "ResourceError" and "\n" not in said["words"]
    assert "so nothing was sent" in said["words"] and "hf upload owner/name FOLDER" in said["words"]


def test_a_hub_in_trouble_is_quoted(folder):
    with serving(Hub({}, status=503)) as address:
        said = send(folder, address)
    assert said["kind"] == "ResourceError" and "503" in said["words"]


@pytest.mark.parametrize("name", ["hub:flowers", "hub:a/b/c", "hub:a/..", "me/flowers", f"hub:a/{'b' * 200}"])
def test_a_place_is_called_by_owner_and_name(name):
    assert parse_push_target("hub:me/flow-ers.2") == "me/flow-ers.2"
    with pytest.raises(UsageError, match=r"is called hub:OWNER/NAME\. Got "):
        parse_push_target(name)
