"""Commands in processes of their own, forked from one that has imported everything: dying costs no import of torch.

`with Nursery() as nursery: child = nursery.start("train", "digits"); os.kill(child.pid, 9); nursery.wait(child)`
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, NamedTuple


class Child(NamedTuple):
    """A command that runs."""

    pid: int
    said: Path
    """What it prints on both streams."""


class Ended(NamedTuple):
    """A command that has ended: its exit code, negative for the signal that killed it, and what it printed."""

    code: int
    said: str


class Nursery:
    """Starts commands; those that still run at the end are killed."""

    def __enter__(self) -> Nursery:
        self._folder = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=Path(__file__).parent,  # that of the first test that asks may be gone before the last one
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._count, self._alive = 0, set[int]()
        return self

    def __exit__(self, *error: object) -> None:
        for pid in self._alive:
            os.kill(pid, signal.SIGKILL)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()

    def start(self, *words: object, **environment: str) -> Child:
        """Begin `vitrail WORDS` and come back at once."""
        self._count += 1
        said = Path(self._folder.name) / f"{self._count}.txt"
        asked = {"words": [str(word) for word in words], "environment": environment, "said": str(said)}
        pid = int(self._ask(asked)["pid"])
        self._alive.add(pid)
        return Child(pid, said)

    def wait(self, child: Child) -> Ended:
        """Wait for its end."""
        code = int(self._ask({"wait": child.pid})["code"])
        self._alive.discard(child.pid)
        return Ended(code, child.said.read_text(encoding="utf-8"))

    def run(self, *words: object, **environment: str) -> Ended:
        """Begin and wait."""
        return self.wait(self.start(*words, **environment))

    def _ask(self, question: dict[str, object]) -> dict[str, int]:
        streams: tuple[IO[str] | None, IO[str] | None] = self._process.stdin, self._process.stdout
        assert streams[0] is not None and streams[1] is not None
        streams[0].write(json.dumps(question) + "\n")
        streams[0].flush()
        found: dict[str, int] = json.loads(streams[1].readline())
        return found


def _serve() -> None:
    """Import what a training imports, start nothing, and fork whenever asked."""
    import matplotlib.figure
    import scipy.stats
    import sklearn.metrics
    import torch

    import vitrail.train.fit
    from vitrail.cli.main import main
    from vitrail.model.registry import config_from_name
    from vitrail.model.vit import create_model
    from vitrail.train.loop import build_train_state
    from vitrail.train.plan import Plan

    assert matplotlib and scipy and sklearn and vitrail
    torch.set_num_threads(1)  # a process with more cannot be forked
    build_train_state(
        create_model(config_from_name("vit_mu_patch8_16"), seed=0), Plan()
    )  # torch imports a part of itself only now
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            print(json.dumps({"code": os.waitstatus_to_exitcode(os.waitpid(question["wait"], 0)[1])}), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs inherit that it is ignored,
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and those of nohup this one
            os.environ.update(question["environment"])
            paper = os.open(question["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(paper, 1)
            os.dup2(paper, 2)
            code = main(question["words"])
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        print(json.dumps({"pid": pid}), flush=True)


if __name__ == "__main__":
    _serve()
