"""Whether every link of a built site leads somewhere, and whether a page would fetch anything from elsewhere."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

FETCHED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
"""What a browser loads by itself: a site that is read offline has all of it."""
NO_FILE = {"canonical"}
"""Kinds of <link> that name a page and load nothing."""


class Page(NamedTuple):
    """What a page offers and what it asks for."""

    ids: frozenset[str]
    targets: tuple[tuple[str, bool], ...]
    """Each address, and whether a browser loads it by itself."""


def find_broken_links(site: Path) -> list[str]:
    """One sentence for each link that leads nowhere, and for each thing that a page would fetch over the network."""
    pages = {path.resolve(): read(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for address, loaded in page.targets:
            if wrong := _wrong(path, address, loaded, pages):
                found.append(f"{path.relative_to(site.resolve())}: {address} {wrong}")
    return found


def read(path: Path) -> Page:
    """The ids and addresses of one page."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return Page(frozenset(reader.ids), tuple(dict.fromkeys(reader.targets)))


def _wrong(path: Path, address: str, loaded: bool, pages: dict[Path, Page]) -> str:
    parts = urlsplit(address)
    if parts.scheme == "data":
        return ""
    if parts.scheme or parts.netloc:
        if loaded or parts.scheme == "file":
            return "is fetched from outside the site"
        return ""
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return "does not exist"
    fragment = unquote(parts.fragment)
    if fragment and target in pages and fragment not in pages[target].ids:
        return f"names a place that {target.name} does not have"
    return ""


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.targets: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.ids += [attributes[name] for name in ("id", "name") if attributes.get(name)]
        for name in ("href", "src"):
            if attributes.get(name) and attributes.get("rel") not in NO_FILE:
                self.targets.append((attributes[name], (tag, name) in FETCHED))
