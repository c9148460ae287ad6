"""ONNX Runtime for browsers: one version of the npm package onnxruntime-web, by its SHA-256, from a file or a registry.

The package is published by Microsoft under the MIT licence; Vitrail does not contain it.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import urllib.request
from pathlib import Path

from ..errors import DamagedFileError, ResourceError, UsageError

RUNTIME_VERSION = "1.30.0"
RUNTIME_SHA256 = "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"
"""Of the package's file as `npm pack` writes it."""
RUNTIME_FILES = (
    "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm",
    "ort.bundle.min.mjs", "ort-wasm-simd-threaded.jsep.wasm",
)  # fmt: skip
"""Files of the package that a page needs: a module and its WebAssembly; in a folder the two that know WebGPU, too."""
PACKAGE = f"onnxruntime-web@{RUNTIME_VERSION}"
REGISTRY_VARIABLE = "npm_config_registry"
"""The environment variable in which npm itself looks for another registry."""
DEFAULT_REGISTRY = "https://registry.npmjs.org"
MAX_PACKAGE_BYTES = 64 * 2**20
TIMEOUT_SECONDS = 60


def load_runtime(path: Path | None, fetch: bool) -> dict[str, bytes]:
    """The files of ONNX Runtime that a page needs, by name, from the package's file or from a registry of npm.

    Args:
        path: the package's file; None with `fetch`.
        fetch: download it.

    Raises:
        UsageError: neither or both are given, there is no such file, or the registry's address is none.
        DamagedFileError: it is not the package of `RUNTIME_VERSION`.
        ResourceError: the registry cannot be reached.
    """
    if path is None and not fetch:
        raise UsageError(
            f"A web page answers with {PACKAGE}, which is not part of Vitrail. Name its file with --runtime FILE.tgz "
            f"(`npm pack {PACKAGE}` makes it), or let it be downloaded with --fetch."
        )
    if path is not None and fetch:
        raise UsageError("onnxruntime-web is either read from a file or downloaded. Got --runtime and --fetch.")
    data = _read_package(path) if path is not None else download_package()
    digest = hashlib.sha256(data).hexdigest()
    if digest != RUNTIME_SHA256:
        raise DamagedFileError(
            f"{path or 'What the registry sent'} is not {PACKAGE}: its SHA-256 must be {RUNTIME_SHA256}. Got {digest}. "
            f"Get it with: npm pack {PACKAGE}"
        )
    return _unpack(data)


def _read_package(path: Path) -> bytes:
    if not path.is_file():
        raise UsageError(f"The file of {PACKAGE} is needed at {path}. `npm pack {PACKAGE}` makes it.")
    return path.read_bytes()


def download_package() -> bytes:
    """Download the package; what arrives is checked by its SHA-256 afterwards."""
    registry = os.environ.get(REGISTRY_VARIABLE, DEFAULT_REGISTRY).rstrip("/")
    if not registry.startswith(("https://", "http://")):
        raise UsageError(f"{REGISTRY_VARIABLE} must be the address of a registry of npm, https://... Got {registry!r}.")
    address = f"{registry}/onnxruntime-web/-/onnxruntime-web-{RUNTIME_VERSION}.tgz"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as response:
            received: bytes = response.read(MAX_PACKAGE_BYTES)
    except (OSError, ValueError) as error:  # URLError is an OSError
        raise ResourceError(
            f"{PACKAGE} cannot be downloaded from {registry} ({error}). On a machine with a network run "
            f"`npm pack {PACKAGE}`, and give the file with --runtime FILE.tgz."
        ) from error
    return received


def _unpack(data: bytes) -> dict[str, bytes]:
    """The needed files of a package whose SHA-256 is known."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        members = {name: archive.extractfile(f"package/dist/{name}") for name in RUNTIME_FILES}
        return {name: member.read() for name, member in members.items() if member is not None}
