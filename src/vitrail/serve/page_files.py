"""The web page's files, read once when the server starts; what is not among them is never looked for on the disk."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "page"
FIRST = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
}
POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""With every page: nothing is loaded from anywhere else, nothing inline runs, and browsers ask before they reuse."""


class PageFile(NamedTuple):
    """One file as it is sent."""

    body: bytes
    kind: str
    etag: str


def page_file(body: bytes, kind: str) -> PageFile:
    """Bytes with their entity tag."""
    return PageFile(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def page_files(folder: Path = FOLDER) -> Mapping[str, PageFile]:
    """The files of the page by name; empty where it has not been installed."""
    if not folder.is_dir():
        return {}
    files = sorted(path for path in folder.iterdir() if path.suffix in TYPES and path.is_file())
    return {path.name: page_file(path.read_bytes(), TYPES[path.suffix]) for path in files}
