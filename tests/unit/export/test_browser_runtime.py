"""onnxruntime-web: one version by its SHA-256, from a file or a registry, and a sentence for everything else."""

from __future__ import annotations

import functools
import hashlib
import io
import re
import tarfile
import threading
from http.server import ThreadingHTTPServer

import pytest

from vitrail.errors import DamagedFileError, ResourceError, UsageError
from vitrail.export import browser_runtime
from vitrail.export.browser_proof import QuietHandler
from vitrail.export.browser_runtime import RUNTIME_FILES, RUNTIME_VERSION, load_runtime


def package() -> bytes:
    """A package with the needed files, of other content."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name in ("README.md", *(f"dist/{name}" for name in RUNTIME_FILES)):
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(name)
            archive.addfile(info, io.BytesIO(name.encode()))
    return data.getvalue()


@pytest.fixture
def known(monkeypatch):
    """A package that counts as the published one."""
    data = package()
    monkeypatch.setattr(browser_runtime, "RUNTIME_SHA256", hashlib.sha256(data).hexdigest())
    return data


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """The folder of a registry on this machine, which npm's own variable names."""
    folder = tmp_path / "registry"
    (folder / "onnxruntime-web" / "-").mkdir(parents=True)
    handler = functools.partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{server.server_address[1]}/")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield folder / "onnxruntime-web" / "-"
        server.shutdown()


def test_the_files_come_from_a_package_on_disk(known, tmp_path):
    (tmp_path / "o.tgz").write_bytes(known)
    assert load_runtime(tmp_path / "o.tgz", False) == {name: f"dist/{name}".encode() for name in RUNTIME_FILES}


def test_the_files_come_from_a_registry(known, registry):
    (registry / f"onnxruntime-web-{RUNTIME_VERSION}.tgz").write_bytes(known)
    assert load_runtime(None, True) == {name: f"dist/{name}".encode() for name in RUNTIME_FILES}


def test_another_package_is_refused_wherever_it_comes_from(registry, tmp_path):
    digest = hashlib.sha256(package()).hexdigest()
    (tmp_path / "o.tgz").write_bytes(package())
    (registry / f"onnxruntime-web-{RUNTIME_VERSION}.tgz").write_bytes(package())
    said = rf"is not onnxruntime-web@1\.30\.0: its SHA-256 must be d2228df7\w+\. Got {digest}\. Get it with: npm pack"
    with pytest.raises(DamagedFileError, match=rf"o\.tgz {said}"):
        load_runtime(tmp_path / "o.tgz", False)
    with pytest.raises(DamagedFileError, match=f"^What the registry sent {said}"):
        load_runtime(None, True)


def test_without_a_package_the_two_ways_are_named():
    with pytest.raises(UsageError, match=re.escape("--runtime FILE.tgz (`npm pack onnxruntime-web@1.30.0` makes it)")):
        load_runtime(None, False)


def test_both_ways_at_once_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"either read from a file or downloaded\. Got --runtime and --fetch\."):
        load_runtime(tmp_path, True)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"is needed at .*none\.tgz\. `npm pack"):
        load_runtime(tmp_path / "none.tgz", False)


def test_without_a_network_the_file_is_asked_for(registry, monkeypatch):
    with pytest.raises(ResourceError, match=r"cannot be downloaded from http://127\.0\.0\.1:\d+ \(.*404.*\)\. On"):
        load_runtime(None, True)
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    with pytest.raises(ResourceError, match=r"cannot be downloaded from http://127\.0\.0\.1:9 \(.*refused.*\)"):
        load_runtime(None, True)


def test_a_registry_that_is_no_address_is_refused(monkeypatch):
    monkeypatch.setenv("npm_config_registry", "file:///etc")
    with pytest.raises(UsageError, match=r"npm_config_registry must be the address .* Got 'file:///etc'\."):
        load_runtime(None, True)
