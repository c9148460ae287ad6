"""Every fenced block of README.md and docs/: what it is, which commands it holds, and why some of them cannot run here.

python tests/blocks.py     # how many there are of each kind
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")))
FENCE = re.compile(r"^(?P<fence>`{3,})(?P<words>[^`\n]*)\n(?P<text>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "sh run", "text", "console")
ELSEWHERE = {"sh run": "tests/end_to_end/test_data_guide.py runs it"}
GENERATED = {"docs/verbs.md": "the examples of --help: their words are placeholders, so they are only parsed"}

Kind = Literal["python", "commands", "listing", "unknown"]

PROGRAMS = {
    "torchrun": "several processes, and GPUs: tests/end_to_end/test_partners.py starts two here",
    "srun": "a SLURM cluster",
    "make": "sets up an environment; continuous integration runs it",
    "pip": "installs from a registry",
    "git": "fetches the repository",
    "python": "a script of the repository, which its own tests run",
    "docker": "a container engine",
    "kubectl": "a Kubernetes cluster",
    "curl": "a server that answers",
    "ray": "a Ray cluster",
    "python3": "sets up an environment; continuous integration makes one",
    ".": "enters an environment",
    "unzip": "a downloaded archive",
    "awk": "makes tables of a downloaded archive",
    "find": "feeds a command through a pipe; its own tests do",
    "tensorboard": "a server of another project",
    "sbatch": "a SLURM cluster",
    "npm": "downloads from npm's registry",
}
"""First words of lines that are not for this machine, and what they need."""

LANGUAGES = ("bibtex", "dockerfile", "ini", "nginx", "toml", "yaml", "json", "csv", "{eval-rst}", "{toctree}")
"""Words behind a fence that say what a listing is written in."""

LISTINGS = (
    # tables
    "path,", "camera ", "severity ",
    # folders, archives, floors of the package
    "flowers/", "pets-0000.tar:", "estimators ",
    # what a command has printed
    "Pre-training adds", "Task multilabel:", "AUROC ", "nodule ", "runs/digits on", "runs/digits (first)",
    "runs/flowers on",
    "parts: ", "flowers: ", "an escape costs", "Counter(", "Answered with", "# Expected on this machine:",
    "Accuracy on", "test: 400", "listening on", '{"path":', "100 pictures of",
)  # fmt: skip
"""How listings without such a word begin; what begins otherwise, and with no program, is unknown and fails a test."""

VERBS = {
    "serve": "answers until it is stopped; its own tests ask it",
    "bench": "measures this machine for minutes",
}
"""Verbs that are parsed and not run."""

SIGNS = {
    "hf:": "is looked up on the Hub",
    "hub:": "is written to the Hub",
    "--engine ray": "a Ray cluster",
    "openvino": "needs OpenVINO, which development does without; tests/unit/predict/test_openvino_file.py has it",
    "--to web": "needs onnxruntime-web, which is no part of Vitrail",
}
"""What a command that is parsed and not run has in it."""

COMMANDS = {
    "vitrail train cells.csv --distill.teacher dinov2_small.safetensors": "needs published weights in a single file",
    "vitrail train labelled.csv --pretrain": "needs more pictures than a page's desk has; tests/unit/train tries it",
    "vitrail train elpv/": "needs the solar cells of ELPV",
    "vitrail train fashion-mnist": "needs the files of Fashion-MNIST, and 13 minutes",
    "vitrail explain runs/planted": "takes minutes; tests/end_to_end/test_explain.py measures a smaller one",
    "vitrail train digits --model vit_mu_patch8_16 --steps 3000": "is stopped by hand; test_interrupt.py stops its own",
    "vitrail train --resume runs/digits": "goes on with a run that was stopped by hand; so does test_resume_changed.py",
    "vitrail train --resume runs/short": "goes on with a run that has ended; test_extended_run.py has its own",
    "vitrail decide runs/cells --rule": "needs ten validation pictures of each kind; test_deciding.py has them",
    "vitrail watch runs/cells scores.jsonl": "needs the log of a server; tests/unit/services/test_watching.py has one",
    "vitrail evaluate runs/cells other-machine/ --unlike": "needs 99 validation pictures; test_unlike.py has them",
}
"""Beginnings of commands that are parsed and not run."""

PYTHON = {
    "docs/architecture.md": "the inside of a method",
    "docs/export.md": "needs a file that takes half a minute to make; tests/end_to_end/test_export.py opens one",
}
"""Pages whose Python blocks are compiled and not run."""


class Block(NamedTuple):
    """One fenced block."""

    page: str
    line: int
    words: str
    """What stands behind the fence."""
    text: str

    @property
    def kind(self) -> Kind:
        """Python, commands, a listing; unknown is a mistyped program, or a listing that nobody has named."""
        if self.words == "python":
            return "python"
        if self.words in SHELL:
            first = next((line for line in self.text.splitlines() if line and not line.startswith("# ")), "")
            if first.removeprefix("$ ").split(" ")[0] in (*PROGRAMS, "vitrail"):
                return "commands"
            return "listing" if self.text.startswith(LISTINGS) else "unknown"
        return "listing" if self.words in LANGUAGES else "unknown"

    @property
    def rows(self) -> Iterator[tuple[int, str]]:
        """Line numbers and commands, joined where a backslash ends a line; answers below a prompt are none."""
        prompts = any(line.startswith("$ ") for line in self.text.splitlines())
        joined, begun = "", 0
        for place, row in enumerate(self.text.splitlines(), self.line + 1):
            if not joined and (not row or row.startswith(("#", " ")) or (prompts and not row.startswith("$ "))):
                continue
            begun = begun if joined else place
            joined += row.removeprefix("$ ").removesuffix("\\")
            if not row.endswith("\\"):
                yield begun, joined
                joined = ""


class Command(NamedTuple):
    """One line that begins with a program."""

    page: str
    line: int
    text: str
    words: tuple[str, ...]
    """What `vitrail` is given in it; empty where it is not called."""
    reason: str
    """Why it is not run; empty if it is."""


def blocks() -> list[Block]:
    """All of all pages, in the order of the pages."""
    return [block for page in PAGES for block in blocks_of(page, (ROOT / page).read_text(encoding="utf-8"))]


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """The blocks of one page."""
    for found in FENCE.finditer(text):
        yield Block(page, text.count("\n", 0, found.start()) + 1, found["words"].strip(), found["text"])


def commands(block: Block) -> Iterator[Command]:
    """The commands of a block, without prompts, comments, and what follows a pipe.

    Raises:
        ValueError: a line that begins with no program that is known.
    """
    for place, line in block.rows if block.kind == "commands" else ():
        program = line.split(" ")[0]
        if program not in PROGRAMS and program != "vitrail":
            raise ValueError(
                f"{block.page}:{place}: {program!r} is no program that tests/blocks.py knows. Name it in PROGRAMS with "
                "the reason why it is not run; in front of a command whose answer follows write a prompt ('$ ')."
            )
        words = shlex.split(line, comments=True)
        words = words[: words.index("|")] if "|" in words else words
        called = "vitrail" in words and program != "docker"  # there it names an image
        given = tuple(words[words.index("vitrail") + 1 :]) if called else ()
        yield Command(block.page, place, shlex.join(words), given, _reason(block, program, line, given))


def _reason(block: Block, program: str, line: str, given: tuple[str, ...]) -> str:
    told = [PROGRAMS.get(program, ""), ELSEWHERE.get(block.words, ""), GENERATED.get(block.page, "")]
    told += [VERBS.get(given[0], "") if given else "", *(why for sign, why in SIGNS.items() if sign in line)]
    told += [why for begin, why in COMMANDS.items() if line.startswith(begin)]
    return next(filter(None, told), "")


def counted() -> dict[str, int]:
    """How many blocks there are of each kind, and what becomes of their commands."""
    found = blocks()
    lines = [command for block in found for command in commands(block)]
    kinds = Counter(block.kind for block in found)
    python = [block for block in found if block.kind == "python"]
    return {
        "blocks": len(found),
        "listings": kinds["listing"],
        "Python blocks run": sum(block.page not in PYTHON for block in python),
        "Python blocks compiled": sum(block.page in PYTHON for block in python),
        "commands run": sum(not command.reason for command in lines),
        "commands parsed": sum(bool(command.reason and command.words) for command in lines),
        "commands of other programs": sum(not command.words for command in lines),
        "reasons not to run": len({command.reason for command in lines} - {""}),
    }


if __name__ == "__main__":
    for name, count in counted().items():
        print(f"{count:>5}  {name}")
