"""`vitrail serve`: a model behind HTTP, with a web page."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UsageError
from ...files.disk import check_writable
from ...runtime import PrecisionName, count_usable_cores
from ...serve.auth import BearerTokens, read_tokens
from ...serve.limits import ServerLimits
from ...services.progress import print_notes
from ..arguments import Command

if TYPE_CHECKING:
    from ...serve.served_model import ServedModel

REQUIRED_PACKAGES = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")


@dataclass(frozen=True, kw_only=True)
class Serve(Command):
    """Answer pictures over HTTP, with a web page for people, until Ctrl-C or SIGTERM.

    POST /predict, /explain, /embed, and the Open Inference Protocol under /v2; /docs describes them. A token is asked
    for if --token-file or the variable VITRAIL_TOKEN holds one.

      vitrail serve RUN
      vitrail serve RUN --host 0.0.0.0 --port 80 --token-file tokens.txt
      curl --data-binary @photo.jpg http://127.0.0.1:8000/predict
    """

    POSITIONAL = ("model",)
    DOTTED = "changes"
    SECTIONS = ("image",)

    model: str
    """A run folder, a bundle, a folder of transformers or timm that names its classes, or hf:OWNER/NAME."""
    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 or :: for all of this machine's."""
    port: int = 8000
    """0 takes a free one."""
    name: str = ""
    """What the model is called; by default as its folder is."""
    token_file: Path | None = None
    """A file with one token a line."""
    proxy: str = ""
    """Addresses of reverse proxies whose X-Forwarded-For is believed, such as 127.0.0.1."""
    max_bytes: int = ServerLimits.max_body_bytes
    """Of one request."""
    max_pictures: int = ServerLimits.max_images
    """Of one request."""
    batch: int = ServerLimits.max_batch_size
    """Pictures that the model answers at once, at most."""
    waiting: int = ServerLimits.max_waiting_images
    """Pictures that may be inside at any moment; further ones get 503."""
    per_client: int = ServerLimits.max_requests_per_client
    """Requests of one address that are answered at any moment; further ones get 429."""
    deadline: float = ServerLimits.deadline
    """Seconds from the last byte of a request to its answer; after them 504."""
    slow: float = ServerLimits.read_timeout
    """Seconds for the head of a request, and for a body beyond what its size explains."""
    workers: int = 0
    """Processes that decode pictures; 0 takes one for each core, up to 4."""
    threads: int = 0
    """Threads of the model; 0 measures whether one or all of them serve more."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    precision: PrecisionName = "float32"
    """Number format of the answers: float32 is the same on every machine, bf16 and fp16 are faster on some."""
    log: bool = False
    """Print a line for each request: when it ended, its path, its status and its seconds; no names, no addresses."""
    score_log: Path | None = None
    """Append a line with the time, the file's name and the scores of every answered picture to this .jsonl file, for
    vitrail watch; no picture is kept."""
    json: bool = False
    """Print where it listens, that it is ready, that it has stopped, and with --log requests, as lines of JSON."""
    changes: tuple[tuple[str, str], ...] = ()
    """How files are opened, where that is no part of the model: --image.page 2, --image.max_pixels 100000000."""

    def run(self) -> int:
        """Serve until Ctrl-C or SIGTERM."""
        if missing := [name for name in REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]:
            raise UsageError(
                f'vitrail serve needs {" and ".join(missing)}, which the extra brings: pip install "vitrail[serve]".'
            )
        from ...serve.server import ServeRequest, choose_model_name, run_server

        if self.score_log is not None:
            if self.score_log.suffix.lower() != ".jsonl":
                raise UsageError(f"A score log is a file whose name ends in .jsonl. Got --score-log {self.score_log}.")
            check_writable(self.score_log)
        tokens = read_tokens(self.token_file, os.environ)
        limits = ServerLimits(
            max_body_bytes=self.max_bytes,
            max_total_body_bytes=max(ServerLimits.max_total_body_bytes, 2 * self.max_bytes),
            max_images=self.max_pictures,
            max_batch_size=self.batch,
            max_waiting_images=self.waiting,
            max_requests_per_client=self.per_client,
            deadline=self.deadline,
            read_timeout=self.slow,
            decode_workers=self.workers or min(4, count_usable_cores()),
        )
        request = ServeRequest(
            model=self.model,
            name=choose_model_name(self.model, self.name),
            host=self.host,
            port=self.port,
            proxy=self.proxy,
            device=self.device,
            precision=self.precision,
            threads=self.threads,
            changes=dict(self.changes),
            limits=limits,
            log=self._print_request if self.log else None,
            score_log=self.score_log,
        )
        run_server(request, tokens, lambda listener: self._print_listening(listener, tokens), self._print_ready)
        self._print_line("stopped", {"stopped": request.name})
        return 0

    def _print_listening(self, listener: socket.socket, tokens: BearerTokens) -> None:
        from ...serve.server import get_listener_url, is_public

        if is_public(listener) and not tokens:
            sys.stderr.write(
                f"warning: whoever reaches this machine may use the model, because --host is {self.host} and no token "
                "is asked for. Give --token-file, or leave --host out.\n"
            )
        url = get_listener_url(listener)
        self._print_line(f"listening on {url}, reading {self.model}", {"listening": url})

    def _print_ready(self, served_model: ServedModel) -> None:
        predictor = served_model.predictor
        print_notes(predictor.notes)
        noun = "numbers" if predictor.task == "regression" else predictor.task
        what = "good or defect" if predictor.task == "anomaly" else f"{len(predictor.classes)} {noun}"
        facts = f"{served_model.name}: {what}"
        self._print_line(f"ready to answer as {facts}; Ctrl-C stops", {"ready": served_model.name})

    def _print_request(self, path: str, status: int, seconds: float) -> None:
        when = datetime.now().astimezone().isoformat(timespec="seconds")
        outcome = str(status) if status else "client left"
        facts = {"ended": when, "path": path, "status": status, "seconds": round(seconds, 4)}
        self._print_line(f"{when} {path} {outcome} {seconds:.3f} s", facts)

    def _print_line(self, line: str, facts: Mapping[str, object]) -> None:
        print(json.dumps(facts) if self.json else line, flush=True)
