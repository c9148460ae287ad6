"""The Dockerfile of `examples/` copies what is there and starts a verb that exists; no test here can build it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from vitrail.cli.arguments import parse_command
from vitrail.cli.main import COMMANDS

EXAMPLES = Path(__file__).parents[2] / "examples"


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, rest), lines that go on joined."""
    text = (EXAMPLES / "Dockerfile").read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def test_the_dockerfile_copies_what_is_there_and_starts_a_verb_that_exists():
    root = EXAMPLES.parent
    shown = {line[1:] for line in (EXAMPLES / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = [rest.split()[:-1] for name, rest in instructions() if name == "COPY"]
    for source in (word for words in copied for word in words):
        assert (root / source).exists() and source in shown, source
    (installed,) = (rest for name, rest in instructions() if name == "RUN")
    extra = installed.partition('".[')[2].partition("]")[0]
    assert extra in tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"-c {root.joinpath('constraints.txt').name}" in installed
    (entry,) = (json.loads(rest) for name, rest in instructions() if name == "ENTRYPOINT")
    (words,) = (json.loads(rest) for name, rest in instructions() if name == "CMD")
    assert entry == ["vitrail"]
    asked = parse_command(COMMANDS[words[0]], words[1:])
    assert (asked.host, f"{asked.port}") == ("0.0.0.0", dict(instructions())["EXPOSE"])
    checked = next(rest for name, rest in instructions() if name == "HEALTHCHECK")
    assert f"127.0.0.1:{asked.port}/v2/health/live" in checked
    assert any("/v2/health/live" in path.read_text() for path in (root / "src/vitrail/serve").glob("*.py"))
