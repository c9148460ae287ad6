"""A Hub of one model on this machine, to read from and to write to, with the faults of real ones: cut connections,
wrong bytes, gates, silence."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the server holds, and what it has been asked."""

    files: dict[str, bytes]
    repository: str = "owner/name"
    large: tuple[str, ...] = (".safetensors", ".bin")
    """Endings of files whose hash is SHA-256; of the others it is git's."""
    wrong: frozenset[str] = frozenset()
    """Files of which another content is sent than the one that was hashed."""
    cut: set[str] = field(default_factory=set)
    """Files whose first download stops in the middle."""
    redirected: dict[str, str] = field(default_factory=dict)
    """Files for which the reader is sent elsewhere."""
    status: int = 200
    """What every question about the model is answered with."""
    fault: str = ""
    """The Hub's word for that status."""
    exists: bool = True
    """Whether the repository is there before somebody makes it."""
    private: bool = False
    token: str = "good"
    """The only one that may write."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    """Large files that were sent and belong to no commit yet, by their hash."""
    asked: list[str] = field(default_factory=list)
    """Method, path and range of every request."""

    def digest(self, name: str) -> str:
        data = self.files[name]
        if name.endswith(self.large):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    """The address of the running server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_PUT(self) -> None:
            hub.asked.append(f"PUT {self.path}")
            data = self._body()
            hub.blobs[hashlib.sha256(data).hexdigest()] = data
            self._send(200, b"", {}, True)

        def do_POST(self) -> None:
            path = self.path.partition("?")[0]
            hub.asked.append(f"POST {path}")
            data = self._body()
            if self.headers.get("Authorization") != f"Bearer {hub.token}":
                self._send(401 if path.endswith("create") else 403, b"{}", {}, True)
                return
            found = self._written(path, data)
            self._send(404 if found is None else 200, json.dumps(found or {}).encode(), {}, True)

        def _written(self, path: str, data: bytes) -> dict[str, object] | None:
            """What a request that changes something, or is about to, is answered with."""
            address = f"http://{self.headers['Host']}"
            if path == "/api/repos/create":
                hub.exists, hub.private = True, json.loads(data).get("visibility") == "private"
                return {"url": f"{address}/{hub.repository}"}
            if path == "/api/validate-yaml":
                return {"errors": [], "warnings": [{"message": "empty or missing metadata"}]}
            if path == f"/api/models/{hub.repository}/preupload/main":
                named = [file["path"] for file in json.loads(data)["files"]]
                modes = {name: "lfs" if name.endswith(hub.large) else "regular" for name in named}
                return {"files": [{"path": n, "uploadMode": mode, "shouldIgnore": False} for n, mode in modes.items()]}
            if path == f"/{hub.repository}.git/info/lfs/objects/batch":
                objects = json.loads(data)["objects"]
                actions = [{"upload": {"href": f"{address}/put/{one['oid']}"}} for one in objects]
                return {"objects": [{**o, "actions": a} for o, a in zip(objects, actions, strict=True)]}
            if path == f"/api/models/{hub.repository}/commit/main":
                self._commit([json.loads(line) for line in data.splitlines()])
                return {"commitUrl": f"{address}/{hub.repository}/commit/{COMMIT}", "commitOid": COMMIT}
            return None

        def _commit(self, lines: list[dict[str, dict[str, str]]]) -> None:
            for line in lines:
                value = line["value"]
                if line["key"] == "file":
                    hub.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    hub.files[value["path"]] = hub.blobs[value["oid"]]

        def _body(self) -> bytes:
            if "Content-Length" in self.headers:
                return self.rfile.read(int(self.headers["Content-Length"]))
            pieces = []
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            hub.asked.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
            if hub.status != 200:
                self._send(hub.status, b"{}", {"X-Error-Code": hub.fault}, with_body)
            elif not hub.exists:
                self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)
            elif path.startswith(f"/api/models/{hub.repository}/tree/"):
                self._send(200, json.dumps([self._entry(name) for name in hub.files]).encode(), {}, with_body)
            elif path.startswith(f"/api/models/{hub.repository}"):
                files = [{"rfilename": name} for name in hub.files]
                said = {"id": hub.repository, "sha": COMMIT, "siblings": files, "private": hub.private, "tags": []}
                self._send(200, json.dumps(said).encode(), {}, with_body)
            elif path.startswith(f"/{hub.repository}/resolve/"):
                self._file(path.rsplit("/", 1)[1], with_body)
            else:
                self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)

        def _entry(self, name: str) -> dict[str, object]:
            data = hub.files[name]
            entry: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": hub.digest(name)}
            if name.endswith(hub.large):
                entry["oid"] = "0" * 40
                entry["lfs"] = {"oid": hub.digest(name), "size": len(data), "pointerSize": 130}
            return entry

        def _file(self, name: str, with_body: bool) -> None:
            data = hub.files[name]
            if name in hub.wrong:
                data = bytes(len(data))
            headers = {"ETag": f'"{hub.digest(name)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            if name in hub.redirected:
                elsewhere = {"Location": hub.redirected[name], "X-Linked-Size": str(len(data))}
                self._send(302, b"", headers | elsewhere, with_body)
                return
            begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
            if begin:
                headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
            if with_body and name in hub.cut:
                hub.cut.remove(name)
                self._send(200, data, headers, with_body, only=len(data) // 2)
                self.close_connection = True
            else:
                self._send(206 if begin else 200, data[begin:], headers, with_body)

        def _send(
            self, status: int, data: bytes, headers: dict[str, str], with_body: bool, only: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(data[:only])

    return Handler
