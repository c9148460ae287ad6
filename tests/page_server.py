"""A small server that keeps every promise that the web page relies on, with answers that were recorded beforehand.

It can be busy, slow, or ask for a token when a test says so, which a real server does only by chance.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import vitrail

PAGE = Path(vitrail.__file__).parent / "serve" / "page"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'"
)
NO_PICTURE = {"error": "This is no picture that Vitrail can read. Send a JPEG, PNG, TIFF or DICOM file.", "status": 415}
BUSY = {"error": "256 pictures are waiting already. Try again in a second.", "status": 503}
EMPTY = {"error": "The map is zero everywhere: no attention raises this score. Choose another class.", "status": 422}
NO_TOKEN = {"error": "This server answers only with its token, and this is not it.", "status": 401}


@dataclass(eq=False)
class Recorded:
    """What a server says, and what it has been asked."""

    about: dict[str, Any]
    rows: dict[str, dict[str, Any]]
    """Of each known picture, by the SHA-256 of its bytes, what /predict answers."""
    maps: dict[str, dict[tuple[str, str], dict[str, Any]]] = field(default_factory=dict)
    """Of each known picture what /explain answers, by method and by target (empty: the answer)."""
    token: str = ""
    """Without it nothing is answered; empty asks for none."""
    busy: int = 0
    """So many of the next requests for answers are put off by a second."""
    gate: threading.Event = field(default_factory=threading.Event)
    """Answers wait for it; open from the beginning."""
    asked: list[tuple[str, int]] = field(default_factory=list)
    """Path and number of pictures of every request that carried some."""
    url: str = ""

    def __post_init__(self) -> None:
        self.gate.set()

    def predict(self, bodies: list[tuple[str, bytes]]) -> list[dict[str, Any]]:
        """One row for each picture, in order."""
        return [self.rows.get(digest(body)) or {"path": name, **NO_PICTURE} for name, body in bodies]

    def explain(self, body: bytes, method: str, target: str) -> dict[str, Any]:
        """The map of one picture, or why there is none."""
        known = self.maps.get(digest(body))
        return NO_PICTURE if known is None else known.get((method, target), EMPTY)


def digest(body: bytes) -> str:
    """The name under which the answer to a picture is kept."""
    return hashlib.sha256(body).hexdigest()


@contextmanager
def serving(recorded: Recorded) -> Iterator[Recorded]:
    """The same with a server behind it, whose address is `url`."""
    server = _Quiet(("127.0.0.1", 0), _handler(recorded))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    recorded.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield recorded
    finally:
        recorded.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that stops waiting is no error."""


def _handler(recorded: Recorded) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Tests print nothing."""

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if path == "/about":
                self.say({**recorded.about, "token": bool(recorded.token)})
            elif path == "/":
                self.file(PAGE / "index.html")
            elif path.startswith("/page/") and (PAGE / Path(path).name).is_file():
                self.file(PAGE / Path(path).name)
            else:
                self.say({"error": f"There is nothing at {path}.", "status": 404})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            path, query = urlsplit(self.path).path, dict(parse_qsl(urlsplit(self.path).query))
            pictures = parts_of(body, self.headers.get("Content-Type", ""))
            recorded.asked.append((path, len(pictures)))
            recorded.gate.wait(20)
            if recorded.token and self.headers.get("Authorization") != f"Bearer {recorded.token}":
                self.say(NO_TOKEN)
            elif path == "/predict" and recorded.busy:
                recorded.busy -= 1
                self.say(BUSY)
            elif path == "/predict":
                self.say({"rows": recorded.predict(pictures)})
            else:
                self.say(recorded.explain(body, query["method"], query.get("target", "")))

        def say(self, answer: dict[str, Any]) -> None:
            status = answer.get("status", 200)
            self.send(status, "application/json", json.dumps(answer).encode())

        def file(self, path: Path) -> None:
            self.send(200, TYPES[path.suffix], path.read_bytes())

        def send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", POLICY)
            if status == 503:
                self.send_header("Retry-After", "1")
            self.end_headers()
            self.wfile.write(body)

    return Handler


def parts_of(body: bytes, kind: str) -> list[tuple[str, bytes]]:
    """The file parts of multipart/form-data as (file name, content); a raw body is one without a name."""
    found = re.search(r"boundary=(\S+)", kind)
    if found is None:
        return [("", body)]
    pieces = body.split(b"--" + found[1].encode())[1:-1]
    split = (piece.removeprefix(b"\r\n").partition(b"\r\n\r\n") for piece in pieces)
    return [
        (re.search(rb'filename="([^"]*)"', head)[1].decode(), content.removesuffix(b"\r\n"))  # type: ignore[index]
        for head, _, content in split
    ]
