"""Models of the Hub: one commit, no code, every hash compared, and a way on for a machine without a network."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time

import pytest

from hub_server import COMMIT, Hub, serving
from vitrail.errors import DamagedFileError, UsageError
from vitrail.files import hub as hub_module
from vitrail.files.hub import HubName, is_hub_name, parse_hub_name, read_licence

FETCH = """
import json, sys
from vitrail.errors import VitrailError
from vitrail.files.hub import download_model
try:
    found = download_model(sys.argv[1])
    files = sorted(file.name for file in found.folder.iterdir())
    print(json.dumps({"folder": str(found.folder), "files": files, "weights": found.weights, "licence": found.licence,
                      "revision": found.revision, "notes": found.notes}))
except VitrailError as error:
    print(json.dumps({"kind": type(error).__name__, "words": str(error)}))
"""
CARD = b"---\nlicense: apache-2.0\ntags:\n- vit\n---\n\n# A model\n"
FILES = {
    "model.safetensors": bytes(range(256)) * 4096 * 24,  # more than two of the pieces in which it is downloaded
    "pytorch_model.bin": b"pickled",
    "config.json": b'{"model_type": "vit"}',
    "README.md": CARD,
    "modeling_name.py": b"import os",
    "tokenizer.json": b"{}",
    "onnx/model.safetensors": b"deeper",
    ".gitattributes": b"",
}


def fetch(home, address: str, name: str = "hf:owner/name", limit: int = resource.RLIM_INFINITY, **more: str) -> dict:
    """`hub.fetch` in a process of its own, because huggingface_hub reads its environment once.

    Args:
        limit: bytes of the largest file that the process may write.
    """
    settings = {"HF_HOME": str(home), "HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    settings |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", FETCH, name],
        env={**os.environ, **settings, **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY)),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """One good download, whose first connection was cut in the middle of the weights."""
    home = tmp_path_factory.mktemp("home")
    hub = Hub(dict(FILES), cut={"model.safetensors"})
    with serving(hub) as address:
        return home, fetch(home, address), hub.asked


def test_only_the_safest_weights_and_what_describes_them_are_taken(there):
    _, found, asked = there
    assert found["files"] == ["README.md", "config.json", "model.safetensors"]
    assert found["weights"] == ["model.safetensors"]
    assert found["notes"] == ["owner/name also holds code (modeling_name.py); it was not downloaded"]
    assert not [line for line in asked if ".py" in line or ".bin" in line or "tokenizer" in line]


def test_the_commit_and_the_licence_come_with_it(there):
    _, found, asked = there
    assert found["revision"] == COMMIT and found["licence"] == "apache-2.0"
    assert all(f"/resolve/{COMMIT}/" in line for line in asked if "/resolve/" in line)


def test_a_download_that_was_cut_goes_on_where_it_stopped(there):
    _, _, asked = there
    gets = [line for line in asked if line.startswith("GET") and line.count("model.safetensors")]
    assert any(line.endswith("bytes=10485760-") for line in gets), gets


def test_the_content_is_the_one_that_was_hashed(there):
    _, found, _ = there
    with open(f"{found['folder']}/model.safetensors", "rb") as file:
        assert file.read() == FILES["model.safetensors"]


@pytest.mark.parametrize("setting", [{"HF_HUB_OFFLINE": "1"}, {}])
def test_what_was_downloaded_is_found_again_without_a_network(there, setting):
    home, found, _ = there
    again = fetch(home, "http://127.0.0.1:9", **setting)
    assert again["folder"] == found["folder"] and again["licence"] == "apache-2.0"
    assert "The Hub cannot be reached; owner/name was taken from this machine's cache" in again["notes"]


@pytest.mark.parametrize("setting", [{"HF_HUB_OFFLINE": "1"}, {}])
def test_without_a_network_a_person_is_told_what_to_copy_where(tmp_path, setting):
    said = fetch(tmp_path, "http://127.0.0.1:9", "hf:owner/name@v1.0", **setting)
    assert said["kind"] == "ResourceError"
    assert "open https://huggingface.co/owner/name/tree/v1.0, download model.safetensors" in said["words"]
    assert "copy the folder here, and give its path instead of hf:owner/name" in said["words"]
    assert "\n" not in said["words"]


@pytest.mark.wide
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_with_another_content_is_removed_and_named(tmp_path, name):
    with serving(Hub(dict(FILES), wrong=frozenset({name}))) as address:
        said = fetch(tmp_path, address)
    assert said["kind"] == "DamagedFileError"
    assert f"Checksum mismatch in the downloaded {name}" in said["words"]
    assert not list(tmp_path.rglob(name))
    with serving(Hub(dict(FILES))) as address:
        assert fetch(tmp_path, address)["weights"] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("status", "fault", "words"),
    [
        (404, "RepoNotFound", "The Hub has no public model owner/name"),
        (404, "RevisionNotFound", "owner/name has no revision main"),
        (403, "GatedRepo", "given out only to people who have accepted its licence"),
    ],
)
def test_what_the_hub_refuses_is_a_sentence(tmp_path, status, fault, words):
    with serving(Hub(dict(FILES), status=status, fault=fault)) as address:
        said = fetch(tmp_path, address)
    assert said["kind"] == "UsageError" and words in said["words"]


def test_a_file_of_this_machine_is_not_taken_for_one_of_the_hub(tmp_path):
    with serving(Hub(dict(FILES), redirected={"model.safetensors": "file:///etc/hostname"})) as address:
        said = fetch(tmp_path, address)
    assert said["kind"] == "ResourceError" and "The Hub cannot be reached (" in said["words"]
    assert not list(tmp_path.rglob("model.safetensors"))


def test_a_full_disk_is_called_one(tmp_path):
    with serving(Hub(dict(FILES))) as address:
        said = fetch(tmp_path, address, limit=2**20)
    assert said["kind"] == "ResourceError"
    assert "Cannot write" in said["words"] and "the file is larger than is allowed here" in said["words"]
    assert not list(tmp_path.rglob("model.safetensors"))


def test_pickled_weights_are_taken_only_if_there_is_nothing_else(tmp_path):
    files = {name: data for name, data in FILES.items() if not name.endswith("safetensors") and name != "README.md"}
    with serving(Hub(files)) as address:
        found = fetch(tmp_path, address)
    assert found["weights"] == ["pytorch_model.bin"]
    assert found["licence"] == "not stated; see https://huggingface.co/owner/name/tree/main"


@pytest.mark.parametrize(
    ("names", "weights"),
    [
        (["a.bin", "model.safetensors", "other.safetensors"], ["model.safetensors"]),
        (["model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"], None),
        (["b.safetensors", "a.safetensors"], ["a.safetensors", "b.safetensors"]),
        (["x.pth", "training_args.bin"], ["x.pth"]),
        (["x.pth", "pytorch_model.bin"], ["pytorch_model.bin"]),
        (["siglip.npz"], ["siglip.npz"]),
        (["config.json"], []),
    ],
)
def test_which_files_are_the_weights(names, weights):
    assert hub_module._select_weights(names) == (sorted(names) if weights is None else weights)


def test_a_model_without_weights_is_refused():
    with pytest.raises(UsageError, match=r"owner/name has no weights that can be read here.*\.safetensors"):
        hub_module._select_files(HubName("owner/name", "main"), ["config.json", "flax_model.msgpack"])


def test_names_are_taken_apart():
    assert parse_hub_name("hf:owner/name") == HubName("owner/name", "main")
    assert parse_hub_name("hf:owner/name@v1.0") == HubName("owner/name", "v1.0")
    assert parse_hub_name(f"hf:o-w/n.a_m@{COMMIT}").page == f"https://huggingface.co/o-w/n.a_m/tree/{COMMIT}"
    assert is_hub_name("hf:a/b") and not is_hub_name("a/b")


@pytest.mark.parametrize(
    "text", ["hf:name", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/b@../..", "hf:a/b@", "hf:a b/c", "hf:a/b@/tmp/evil"]
)
def test_what_is_no_name_is_refused(text):
    with pytest.raises(UsageError, match="is called hf:OWNER/NAME"):
        parse_hub_name(text)


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: mit\n---\n", "mit"),
        ('---\r\nlicense: "cc-by-nc-4.0"  # no trade\r\n---\r\n', "cc-by-nc-4.0"),
        ("---\nlicense: other\nlicense_name: dinov3-license\nlicense_link: https://x.y/z\n---\n", None),
        ("\n---\nlicense: m\x1b[2Jit\n---", "m[2Jit"),
        ("---\nlicense: mit\n", ""),
        ("# license: mit\n", ""),
        ("---\ntags:\n- license: mit\n---\n", ""),
        ("", ""),
    ],
)
def test_the_licence_of_a_card(tmp_path, card, licence):
    (tmp_path / "README.md").write_bytes(card.encode())
    assert read_licence(tmp_path / "README.md") == ("dinov3-license (https://x.y/z)" if licence is None else licence)


@pytest.mark.parametrize("card", [b"\n" * 2**20, b"---\n" + b"\n" * 2**20, b"---" + b"\n---x" * 2**17])
def test_a_card_of_lines_alone_costs_no_time(tmp_path, card):
    (tmp_path / "README.md").write_bytes(card)
    start = time.process_time()
    assert read_licence(tmp_path / "README.md") == ""
    assert time.process_time() - start < 2


def test_a_branch_in_the_cache_cannot_lead_elsewhere(tmp_path):
    model = tmp_path / "models--a--b"
    for folder in (model / "refs", model / "snapshots", tmp_path / "evil"):
        folder.mkdir(parents=True)
    (tmp_path / "evil" / "model.safetensors").write_bytes(b"")
    (model / "refs" / "main").write_text("../../evil")
    assert hub_module._find_snapshot(HubName("a/b", "main"), tmp_path) is None
    (model / "refs" / "main").write_text(COMMIT)
    (tmp_path / "evil").rename(model / "snapshots" / COMMIT)
    assert hub_module._find_snapshot(HubName("a/b", "main"), tmp_path) == model / "snapshots" / COMMIT


def test_a_card_that_is_not_there_states_nothing(tmp_path):
    assert read_licence(tmp_path / "README.md") == ""


def test_a_cached_file_that_has_changed_since_is_removed(tmp_path):
    blob = tmp_path / ("a" * 64)
    blob.write_bytes(b"x")
    (tmp_path / "model.safetensors").symlink_to(blob)
    with pytest.raises(DamagedFileError, match=r"expected aaaaaaaa, got 2d711642\. The file was removed"):
        hub_module._verify_hash(tmp_path / "model.safetensors")
    assert not blob.exists() and not (tmp_path / "model.safetensors").is_symlink()
    (tmp_path / "plain").write_bytes(b"x")
    assert not hub_module._verify_hash(tmp_path / "plain")


def test_a_bundle_comes_with_what_it_knows_of_its_training_pictures():
    files = ["config.json", "familiar.safetensors", "manifest.json", "model.safetensors"]
    name = HubName("owner/name", "main")
    assert sorted(hub_module._select_files(name, files)[0]) == files
    files.remove("manifest.json")  # then it belongs to no bundle
    assert "familiar.safetensors" not in hub_module._select_files(name, files)[0]
