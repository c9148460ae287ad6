"""Static files of the web page, read once when the server starts: a request never opens a file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

PAGE_FOLDER = Path(__file__).parent / "page"
INDEX_FILE = "index.html"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
}
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Sent with every page: no foreign resources, no inline scripts, and caches must revalidate."""


class StaticFile(NamedTuple):
    """Content, media type and entity tag of one file."""

    body: bytes
    media_type: str
    etag: str


def make_static_file(body: bytes, media_type: str) -> StaticFile:
    """A static file with an entity tag from its SHA-256."""
    return StaticFile(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def load_static_files(folder: Path = PAGE_FOLDER) -> Mapping[str, StaticFile]:
    """The files of the web page by name; empty if it is not installed."""
    if not folder.is_dir():
        return {}
    files = sorted(path for path in folder.iterdir() if path.suffix in MEDIA_TYPES and path.is_file())
    return {path.name: make_static_file(path.read_bytes(), MEDIA_TYPES[path.suffix]) for path in files}
