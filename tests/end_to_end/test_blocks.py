"""The pages keep their word: every command in README.md and docs/ parses, and most run, as Python does."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import blocks
import desk
from end_to_end.conftest import TINY
from served import serving
from vitrail.cli.arguments import HELP_FLAGS, parse_command
from vitrail.cli.main import COMMANDS

FOUND = blocks.blocks()
RUN = {block.page for block in FOUND if block.kind == "python" and block.page not in blocks.PYTHON}
RUN |= {line.page for block in FOUND for line in blocks.commands(block) if not line.reason}
PAGES = [page for page in blocks.PAGES if page in RUN]
LONG = ("docs/chest-films.md", "docs/evaluation.md", "docs/explaining.md")
"""Pages of five seconds and more that are not the front page: `--all` runs them, `make test` the first."""
SERVED = {"docs/own-loop.md": ("sound", "defective")}
"""Pages whose `vitrail serve` runs too, and what it may answer; those of other pages are parsed alone."""
QUICK = tuple(page for page in PAGES if page not in LONG)
SHORT = ("--steps", "30", "--recipe.batch_size", "4", "--data.val_fraction", "0.2", "--compute.threads", "1")
CHANGES = (
    (r"runs/\.\.\.", "runs/cells"),
    (r" --(minutes|epochs) \S+| --steps \d+", ""),
    (r"--folds 5", "--folds 2"),
    (r"--devices 8\b", "--devices 2"),
    (r"--out runs/cells", "--out runs/folds"),
    (r"--to pt2 --resize", "--to pt2 --resize --out resized.pt2"),
    (r"--class crack", "--class defective"),
    (r"--image-size 480x640", "--image-size 56x70"),
    (r"--image-size 224", "--image-size 16"),
)
"""What is smaller on the desk, or called otherwise."""
PROLOGUE = {
    "docs/data.md": """
import itertools, numpy, pandas, torch, vitrail
numbers = itertools.count()
settings = {"recipe.batch_size": 4, "data.val_fraction": 0.2}
def fit(*given, **more):
    words = {"steps": 2, "model": "vit_mu_patch8_16", "settings": settings, "quiet": True}
    return vitrail.fit(*given, **words, **more, out=f"runs/own-{next(numbers)}")
pictures = numpy.random.default_rng(0).integers(0, 255, (24, 20, 24), dtype=numpy.uint8)
labels, more, answers = numpy.arange(24) % 2, pictures[::-1], numpy.arange(24)[::-1] % 2
pairs = [(picture, ("cat", "dog")[number % 2]) for number, picture in enumerate(pictures)]
frame = pandas.read_csv("films.csv").rename(columns={"patient": "patient_id"})
dataset = torch.utils.data.StackDataset(torch.from_numpy(pictures), torch.from_numpy(labels))
""",
    "docs/embeddings.md": """
import vitrail
from pathlib import Path
others = vitrail.open("runs/cells").embed(sorted(Path("films").iterdir()))
""",
    "docs/estimators.md": """
import numpy
X = numpy.random.default_rng(0).integers(0, 255, (24, 16, 16), dtype=numpy.uint8)
y, new, ages, patients = numpy.arange(24) % 2, X[:3], numpy.arange(24) / 2, numpy.arange(24) // 2
table = numpy.stack([y, 1 - y], axis=1)
""",
    "docs/own-functions.md": """
import numpy
X, y = numpy.random.default_rng(0).integers(0, 255, (24, 16, 16), dtype=numpy.uint8), numpy.arange(24) % 2
""",
    "docs/true-maps.md": "from vitrail.explain.faithfulness.localization import center_baseline as mine, "
    "edge_baseline as other",
}
"""What a page's Python takes for granted."""
SMALL = "steps=2, model='vit_mu_patch8_16', settings={'recipe.batch_size': 4, 'data.val_fraction': 0.2}"
PYTHON_CHANGES = (
    (r"minutes=2, settings=\{", f"{SMALL[:-1]}, 'recipe.evaluate_every': 1, "),
    (r"n_trials=20", "n_trials=3"),
    (r"trials=6, minutes=60", f"trials=2, {SMALL}".replace("steps=2", "steps=6")),
    (r"minutes=10", SMALL),
    (r"vitrail\.fit\((?=[\[(f])|vitrail\.fit\((?=dataset)", "fit("),
    (r"\(\"a\.png\", \"cat\"\), \(\"b\.png\", \"dog\"\), \.\.\.", "*pairs"),
    (r"minutes=5|steps=500|epochs=20", "steps=2, model='vit_mu_patch8_16', settings={'recipe.batch_size': 4}"),
    (r'.*"hf:.*', ""),
    (r'open\("runs/flowers"\)\.publish', 'open("runs/large").publish'),
    (r'Path\("runs/planted"\)', 'Path("runs/cells")'),
)


class Quiet:
    """Types commands into this process where nobody reads what they print."""

    def __call__(self, *words: object) -> int:
        from vitrail.cli.main import main

        return main([str(word) for word in words])


@pytest.fixture(scope="session")
def whole_desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every page begins with."""
    folder = tmp_path_factory.mktemp("desk")
    desk.prepare(folder, Quiet())
    return folder


@pytest.fixture
def own_desk(whole_desk: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy for one page, so that none lives on what another has left; gone when it has run."""
    folder = shutil.copytree(whole_desk, tmp_path / "desk")
    yield folder
    shutil.rmtree(folder)


def on_the_desk(command: blocks.Command) -> list[str]:
    """The words to type: smaller than on the page."""
    text = shlex.join(command.words)
    for pattern, instead in CHANGES:
        text = re.sub(pattern, instead, text)
    words = shlex.split(text)
    if words[0] == "train" and "--resume" not in words and "--weights" not in words:
        words += ["--model", TINY[1], *SHORT]
    elif words[0] == "train" and "--weights" in words:
        words += ["--image-size", "28", *SHORT]
    return words


def test_every_command_of_every_page_parses():
    wrong = []
    for command in (command for block in FOUND for command in blocks.commands(block) if command.words):
        verb, *rest = command.words
        try:
            assert verb in COMMANDS or verb in (*HELP_FLAGS, "--version", "VERB"), f"there is no verb {verb}"
            if verb in COMMANDS and not set(HELP_FLAGS) & set(rest):
                parse_command(COMMANDS[verb], rest)
        except (AssertionError, ValueError) as error:
            wrong.append(f"{command.page}:{command.line}: {command.text}: {error}")
    assert not wrong, "\n".join(wrong)


def test_every_python_block_compiles():
    for block in FOUND:
        if block.kind == "python":
            inside = "".join(f"    {line}\n" for line in block.text.splitlines())
            compile(f"async def page():\n{inside}", f"{block.page}:{block.line}", "exec")


def test_no_reason_speaks_of_a_command_that_is_gone():
    lines = [command.text for block in FOUND for command in blocks.commands(block)]
    assert not [begin for begin in blocks.COMMANDS if not any(line.startswith(begin) for line in lines)]
    python = {block.page for block in FOUND if block.kind == "python"}
    assert set(blocks.PYTHON) <= python and set(PROLOGUE) <= python


def test_blocks_commands_and_reasons_are_told_apart(capsys):
    page = "```sh\n$ vitrail check a/ | head -1\nall well\n$ torchrun -m vitrail check b/  # two\n```\n"
    page += "```\nflowers/\n  b.png\n```\n"
    found = list(blocks.blocks_of("README.md", page))
    assert [(block.line, block.kind) for block in found] == [(1, "commands"), (6, "listing")]
    first, second = blocks.commands(found[0])
    assert (first.line, first.words, first.reason) == (2, ("check", "a/"), "")
    assert (second.line, second.words) == (4, ("check", "b/")) and "processes" in second.reason
    count = blocks.counted()
    parts = sum(block.kind == "commands" for block in FOUND) + count["listings"] + count["Python blocks run"]
    assert count["blocks"] == len(FOUND) == parts + count["Python blocks compiled"]
    assert count["commands run"] > 30
    with capsys.disabled():
        print("\nblocks of the pages:", ", ".join(f"{number} {name}" for name, number in count.items()))


def test_every_block_and_every_line_is_of_a_kind_that_is_known():
    unknown = [
        f"{block.page}:{block.line}: {block.text.splitlines()[:1]}" for block in FOUND if block.kind == "unknown"
    ]
    assert not unknown, "Name what they are in tests/blocks.py (PROGRAMS or LISTINGS):\n" + "\n".join(unknown)


def test_a_mistyped_program_is_not_passed_over():
    page = "```\nvitrial check a/\n```\n```\nvitrail check a/ \\\n  --json\n\nvitrial doctor\n```\n```rust\nfn\n```\n"
    alone, among, other = blocks.blocks_of("README.md", page)
    assert (alone.kind, among.kind, other.kind) == ("unknown", "commands", "unknown")
    lines = blocks.commands(among)
    assert next(lines).words == ("check", "a/", "--json")
    with pytest.raises(ValueError, match=r"README\.md:8: 'vitrial' is no program"):
        next(lines)


@pytest.mark.wide
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", QUICK)
def test_a_quick_page_runs_from_its_first_block_to_its_last(page, vitrail, own_desk, monkeypatch):
    run(page, vitrail, own_desk, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", LONG)
def test_a_long_page_runs_from_its_first_block_to_its_last(page, vitrail, own_desk, monkeypatch):
    run(page, vitrail, own_desk, monkeypatch)


def run(page: str, vitrail, folder: Path, monkeypatch) -> None:
    """Every block of a page in order, in one folder and one namespace."""
    monkeypatch.chdir(folder)
    namespace: dict[str, object] = {"vitrail": __import__("vitrail"), "torch": __import__("torch")}
    exec(PROLOGUE.get(page, ""), namespace)
    for block in (block for block in FOUND if block.page == page):
        if block.kind == "python" and page not in blocks.PYTHON:
            exec(compile(smaller(block.text), f"{page}:{block.line}", "exec"), namespace)
        for command in blocks.commands(block):
            if not command.reason:
                answer = vitrail(*on_the_desk(command))
                assert answer.code == 0, f"{page}:{command.line}: {command.text}\n{answer.err}"
            elif page in SERVED and command.words[0] == "serve":
                with serving(folder / command.words[1]) as server:
                    assert server.ask("/predict", (folder / "new.jpg").read_bytes()).json["label"] in SERVED[page]


def smaller(text: str) -> str:
    """A page's Python with trainings of a few steps."""
    for pattern, instead in PYTHON_CHANGES:
        text = re.sub(pattern, instead, text)
    return text
