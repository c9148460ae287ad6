"""Errors in Python name arguments, the same mistakes on the command line name flags."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.cli.main import main
from vitrail.config.keywords import spell_errors
from vitrail.config.python_spelling import PLACEHOLDERS, to_python
from vitrail.errors import UsageError, VitrailError
from vitrail.train.events import spell_notes

PACKAGE = Path(vitrail.__file__).parent
FLAG = re.compile(r"--[a-z]")
COMMANDS_ONLY = (
    "cli/", "serve/", "bench/", "report/audience.py", "report/dossier.py", "report/checklists.py",
    "checkpoints/model_card.py",
    "predict/chunks.py", "services/benchmarking.py", "services/cost.py", "services/environment.py",
    "services/predict_chunks.py", "services/predict_file.py", "services/image_options.py",
    "config/python_spelling.py",
)  # fmt: skip
"""Where verbs and options live that Python does not have."""
FOREIGN = (
    "gunicorn without --preload", "pack it without --sparse", "Pack it without --sparse", "tar --concatenate",
    "tar --dereference --hard-dereference", "torchrun --nproc-per-node 2", "--help-plan lists them",
    "which --json lists", "--maps show", "curl --data-binary", "--host-resolver-rules=MAP", "http.server --directory",
    "--dry-run and send them from elsewhere: hf upload",
)  # fmt: skip
"""Flags of other programs, and sentences that only the command line prints."""
SHELL = re.compile(r"vitrail (check|convert|evaluate|explain|report|train) ([A-Z]+ )?--[a-z-]+")
"""Commands without a counterpart in Python stay commands."""


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        ("say --task multilabel.", 'say task="multilabel".'),
        ("--group case was asked for; leave --group out", 'group="case" was asked for; leave group= out'),
        ("draw new splits with --data.split none.", 'draw new splits with settings={"data.split": "none"}.'),
        ("Name it with --data.targets, or", 'Name it with settings={"data.targets": ...}, or'),
        ('--data.targets "my label" takes it', 'settings={"data.targets": "my label"} takes it'),
        ("--data.split 'a\"b' takes it", 'settings={"data.split": "a\\"b"} takes it'),
        ("--recipe.lr 0.1 --recipe.muon_lr 1e-3.", 'settings={"recipe.lr": 0.1, "recipe.muon_lr": 1e-3}.'),
        ("(--image.max-pixels).", '(settings={"image.max_pixels": ...}).'),
        ("Leave such pictures out with --skip-bad.", "Leave such pictures out with skip_bad=True."),
        ("a larger --image-size or model", "a larger image_size= or model"),
        ("use --image.page N (1 to 3)", 'use settings={"image.page": N} (1 to 3)'),
        ("with --data-root FOLDER.", "with data_root=FOLDER."),
        ("say --data.keep_empty true.", 'say settings={"data.keep_empty": True}.'),
        ("Name the one (--class NAME).", "Name the one (target=NAME)."),
        ("--keep keeps one. Give --rule, --at or --use NAME.", "keep= keeps one. Give rule=, at= or use=NAME."),
        ('vitrail decide runs/a --rule "sensitivity 0.9"', 'vitrail.open("runs/a").decide(rule="sensitivity 0.9")'),
        ("vitrail decide RUN --rule RULE --keep NAME", "vitrail.open(RUN).decide(rule=RULE, keep=NAME)"),
        ("Use it: vitrail decide RUN --use training", 'Use it: vitrail.open(RUN).decide(use="training")'),
        ("Continue with: vitrail train --resume runs/a.b", 'Continue with: vitrail.open("runs/a.b").resume()'),
        ("by --resume 'my run', or choose", 'by vitrail.open("my run").resume(), or choose'),
        ("(vitrail embed runs/a PICTURES --to f.npy), or", '(vitrail.open("runs/a").embed(PICTURES)), or'),
        ("teach it: vitrail train SOURCE --weights m", 'teach it: vitrail.fit(source, weights="m")'),
        ("Make it with: vitrail export runs/a --to onnx", 'Make it with: vitrail.open("runs/a").export("onnx")'),
        ("Give --at defective=0.30, or", 'Give at={"defective": 0.30}, or'),
        ("first: vitrail decide RUN --use training", 'first: vitrail.open(RUN).decide(use="training")'),
        ("Continue with: vitrail tune --resume t", 'Continue with: vitrail.tune(source, out="t", resume=True)'),
        ("write it with vitrail check SOURCE --out DIR.", "write it with vitrail check SOURCE --out DIR."),
        ("the command line: recipe.lr must be a number.", "settings: recipe.lr must be a number."),
        ("the command line: data.folds must be 0.", "folds must be 0."),
        ("pack it without --sparse", "pack it without --sparse"),
        ("nothing of the kind -- at all", "nothing of the kind -- at all"),
    ],
)  # fmt: skip
def test_flags_become_arguments_with_their_values(flags, arguments):
    assert to_python(flags) == arguments
    assert to_python(arguments) == arguments, "a message that passes twice stays"


def test_only_the_message_of_an_error_changes():
    @spell_errors
    def ask() -> None:
        raise UsageError("Give --minutes 5.") from cause

    cause = KeyError("a")
    with pytest.raises(UsageError, match=r"^Give minutes=5\.$") as caught:
        ask()
    assert caught.value.__cause__ is cause and caught.value.exit_code == 2 and ask.__name__ == "ask"


@functools.cache
def sentences() -> list[tuple[str, str]]:
    """Place and words of every text of the package that names a flag; not docstrings."""
    names = {path: path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py"))}
    files = {where: path.read_text("utf-8") for path, where in names.items() if not where.startswith(COMMANDS_ONLY)}
    return [found for where, code in files.items() if FLAG.search(code) for found in sentences_of(where, code)]


def sentences_of(where: str, code: str) -> Iterator[tuple[str, str]]:
    """Those of one file; what an f-string fills in is a word."""
    nodes = list(ast.walk(ast.parse(code)))
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        inner |= {id(part) for part in ast.walk(node)} - {id(node)} if isinstance(node, ast.JoinedStr) else set()
    for node in nodes:
        if id(node) not in inner and isinstance(node, ast.JoinedStr | ast.Constant):
            text = "".join(map(filled, node.values)) if isinstance(node, ast.JoinedStr) else str(node.value)
            if FLAG.search(text):
                yield f"{where}:{node.lineno}", text


def filled(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "steps"


def test_every_sentence_that_names_a_flag_has_words_for_python():
    found = sentences()
    assert len(found) > 150
    left = {}
    for where, text in found:
        said = to_python(text)
        for words in FOREIGN:
            said = said.replace(words, "")
        if FLAG.search(SHELL.sub("", said)):
            left[where] = said
    assert not left, "\n".join(f"{where}: {said}" for where, said in left.items())


# -- The same mistakes in Python and on the command line.


@pytest.fixture
def tables(tmp_path: Path, monkeypatch) -> Path:
    """A folder with tables that need a word from their owner, and a run folder that is there already."""
    monkeypatch.chdir(tmp_path)
    for row in range(12):
        Image.fromarray(np.full((8, 8), 20 * row, np.uint8)).save(tmp_path / f"{row}.png")
    columns = {
        "two": ["path,fruit,shop", *(f"{row}.png,{'ab'[row % 2]},{'cd'[row // 2 % 2]}" for row in range(12))],
        "commas": ["path,label", *(f"{row}.png,\"1,{row + 100}\"" for row in range(12))],
        "unknown": ["path,label", *(f"{row}.png,{row % 3 - 1}" for row in range(12))],
        "none": ["path", *(f"{row}.png" for row in range(12))],
    }  # fmt: skip
    for name, lines in columns.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.toml").write_text('[data]\nsource = "digits"\n')
    return tmp_path


def fit(source: object = "digits", **arguments: object) -> Callable[[], object]:
    return lambda: vitrail.fit(source, **{"quiet": True, "out": "new", **arguments})


MISTAKES = {
    "unknown setting": (fit(settings={"recipe.batch_sise": 3}), "--recipe.batch_sise 3", "recipe.batch_size"),
    "setting of another type": (fit(settings={"recipe.lr": "fast"}), "--recipe.lr fast", "recipe.lr"),
    "setting out of range": (fit(folds=-1), "--folds -1", "folds"),
    "unknown task": (fit(task="words"), "--task words", "task"),
    "group of no column": (fit(group="case"), "--group case", 'group="case"|--group case'),
    "given twice": (fit(steps=3, settings={"recipe.steps": 4}), "--steps 3 --recipe.steps 4", "steps= and|--steps and"),
    "two budgets": (fit(minutes=1, epochs=2), "--minutes 1 --epochs 2", "minutes= and epochs=|--minutes and --epochs"),
    "run folder in use": (fit(out="run"), "--out run", r"resume\(\), or choose another with out=|--resume run, or"),
    "no file of a set": (fit("cifar10", data_root="."), "--data-root .", "data_root=|--data-root"),
    "task of another source": (fit(task="regression"), "--task regression", 'task="regression"|--task regression'),
    "several columns": (fit("two.csv"), "", 'settings={"data.targets": "fruit"}|--data.targets fruit'),
    "thousands or decimals": (
        fit("commas.csv", task="regression"),
        "--task regression",
        'settings={"data.decimal": "point"}|--data.decimal point',
    ),
    "a class or unknown": (fit("unknown.csv"), "", 'settings={"data.uncertain": "ignore"}|--data.uncertain ignore'),
    "no column of labels": (fit("none.csv"), "", 'settings={"data.targets": COLUMN}|--data.targets COLUMN'),
}
SOURCES = {"several columns": "two.csv", "thousands or decimals": "commas.csv", "a class or unknown": "unknown.csv",
           "no column of labels": "none.csv", "no file of a set": "cifar10"}  # fmt: skip


@pytest.mark.first(6)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_spelled_as_it_was_made(mistake, tables, capsys):
    in_python, words, expected = MISTAKES[mistake]
    with pytest.raises(VitrailError) as caught:
        in_python()
    said = str(caught.value)
    assert not FLAG.search(said) and "command line" not in said, said
    assert re.search(expected, said), said
    out = [] if "--out" in words else ["--out", "new"]
    assert main(["train", SOURCES.get(mistake, "digits"), *words.split(), *out]) == caught.value.exit_code
    typed = capsys.readouterr().err
    assert re.search(expected, typed) and "settings=" not in typed, typed


@pytest.mark.parametrize("mistake", ["group of no column", "several columns"])
def test_a_loop_over_the_events_spells_a_mistake_alike(mistake, tables):
    source, settings = ("digits", {"group": "case"}) if "group" in mistake else ("two.csv", {})
    events = vitrail.train(source, out="new", **settings)
    with pytest.raises(VitrailError, match=MISTAKES[mistake][2]) as caught:
        for _ in events:
            pass
    assert not FLAG.search(str(caught.value)) and not list(events)


def test_notes_of_a_training_name_arguments_and_other_events_stay():
    def events():
        yield vitrail.Note("Draw other splits with --seed 3.")
        yield vitrail.RunFolderEvent(Path("run"))

    note, folder = spell_notes(events())
    assert note.text == "Draw other splits with seed=3." and folder == vitrail.RunFolderEvent(Path("run"))


def test_methods_of_a_run_name_their_arguments(tables):
    run = vitrail.open("run")
    for ask in (
        lambda: run.extend(minutes=1, steps=3),
        lambda: run.predict([np.zeros((8, 8), np.uint8)]),
        lambda: run.publish("me/flowers", layout="onnx"),
        lambda: run.export("timm", resize=True),
        lambda: run.export("onnx", precision="float32", calibrate="0.png"),
        lambda: run.predictor,
    ):
        with pytest.raises(VitrailError) as caught:
            ask()
        said = str(caught.value)
        assert not FLAG.search(said) and "command line" not in said, said
    with pytest.raises(UsageError, match=r"^extend\(\) takes one budget, minutes=, epochs= or steps=\. Got 2\.$"):
        run.extend(minutes=1, steps=3)
    with pytest.raises(UsageError, match=r"Finish it with: vitrail\.open\(\"run\"\)\.resume\(\)$"):
        run.predict([np.zeros((8, 8), np.uint8)])


def test_placeholders_are_words_of_the_messages():
    texts = " ".join(text for _, text in sentences())
    assert not [word for word in PLACEHOLDERS.split("|") if not re.search(rf"\b{word}\b", texts)]
