"""Count what the package is made of, in one checkout or in two side by side: lines, imports, names, and three walks.

python docs/house_numbers.py [BEFORE] [AFTER] [--walks] [--list] [--json]; without a path it counts its own checkout.
The counts are read from the text of src/vitrail. `--walks` trains a tiny run with each checkout, and follows calls.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import tokenize
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SMALL = 60
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
IMPORTS = (ast.Import, ast.ImportFrom)
WALKS = ("predict", "again", "plan", "load")
KINDS = ("code", "imports", "docstrings", "comments", "blank")
TRAIN = "train digits --model vit_mu_patch8_16 --steps 4 --out run"
CONVERT = "convert run/model --to timm --out timm"
NO_PARTICIPLES = "bed bleed breed embed exceed feed need proceed red seed shed speed succeed wed weed"
IRREGULAR = """begun bent bitten blown born borne bought bound broken brought built burnt caught chosen dealt done drawn
driven drunk eaten fallen fed felt fled flown forbidden foretold forgotten forsaken fought found frozen given gone grown
heard held hidden hung kept known laid learnt led left lent lit lost made meant met paid proven ridden risen rung said
seen sent sewn shaken shown shrunk slept sold sought sown spent spoken spun stolen stood struck stuck sung sunk sworn
swum swung taken taught thought thrown told torn understood undone unforeseen unknown unwound unwritten withdrawn
withheld won worn wound woven written"""
"""Past participles that are not also base forms: read, put, cut, set, let, hit, split and their like are left out."""

Trees = dict[str, ast.Module]
Lists = dict[str, list[str]]


@dataclass(frozen=True)
class Import:
    """One name that a file imports from the package: a module, or with `attribute` something in it."""

    target: str
    local: str
    attribute: str | None
    line: int
    inside: bool  # in a function
    typing: bool  # under TYPE_CHECKING


def main() -> None:
    """Print the numbers of each checkout that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkouts", nargs="*", type=Path, default=[ROOT])
    parser.add_argument("--walks", action="store_true", help="also run three walks and count the files they touch")
    parser.add_argument("--list", action="store_true", help="name what was counted, too")
    parser.add_argument("--json", action="store_true", help="print numbers and lists as JSON")
    parser.add_argument("--trace", choices=WALKS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.trace:
        return trace_walk(args.trace, args.checkouts[0])
    counted = {str(path): count_all(path.resolve(), args.walks) for path in args.checkouts}
    if args.json:
        print(json.dumps({path: {"numbers": one[0], "lists": one[1]} for path, one in counted.items()}, indent=1))
        return None
    print_table({path: numbers for path, (numbers, _) in counted.items()})
    for path, (_, lists) in counted.items() if args.list else ():
        for title, entries in lists.items():
            print("\n  ".join([f"\n{title.strip()} ({path})", *entries]))
    return None


def print_table(columns: dict[str, dict[str, float]]) -> None:
    """One row a number, one column a checkout."""
    cell = max(12, *map(len, columns))
    for name in ("", *next(iter(columns.values()))):
        shown = [f"{round(numbers[name], 1):,}" for numbers in columns.values()] if name else columns
        print(f"{name:<52}", *(f"{value:>{cell}}" for value in shown))


def count_all(checkout: Path, walks: bool) -> tuple[dict[str, float], Lists]:
    """The numbers of a checkout, and the lists behind those that have one."""
    package = checkout / "src" / "vitrail"
    texts = {path.relative_to(package).as_posix(): path.read_text("utf-8") for path in sorted(package.rglob("*.py"))}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    lines = {name: split_lines(text, trees[name]) for name, text in texts.items()}
    imports = {name: list(find_own_imports(name, trees)) for name in trees}
    code = [line for split in lines.values() for line in split["code"]]
    numbers: dict[str, float] = {"files": len(texts), "lines": sum(len(text.splitlines()) for text in texts.values())}
    numbers |= {f"  {kind}": sum(len(split[kind]) for split in lines.values()) for kind in KINDS}
    numbers["characters of a code line"] = sum(map(len, code)) / len(code)
    numbers["  without its indentation"] = sum(len(line.strip()) for line in code) / len(code)
    small = {name for name, split in lines.items() if len(split["code"]) < SMALL}
    lists = list_lonely(small, imports) | list_cycles(imports) | list_names(trees)
    lists["module-level functions called once"] = list_called_once(trees, imports)
    if walks:
        lists |= run_walks(checkout)
    return numbers | {title: len(entries) for title, entries in lists.items()}, lists


def split_lines(text: str, tree: ast.Module) -> Lists:
    """The lines of a file by kind.

    All lines of an import statement are imports, and all lines of a string that stands as a statement are docstrings,
    blank ones included. A comment line holds nothing else. A blank line within any other string is code.
    """
    kinds: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL):
            kinds.setdefault(token.start[0], "comments" if token.type == tokenize.COMMENT else "blank")
        elif token.type not in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
            kinds |= dict.fromkeys(range(token.start[0], token.end[0] + 1), "code")
    for node in ast.walk(tree):
        bare = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if isinstance(node, ast.stmt) and (bare or isinstance(node, IMPORTS)):
            rows = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            kinds |= dict.fromkeys(rows, "docstrings" if bare else "imports")
    rows_of = list(enumerate(text.splitlines(), 1))
    return {kind: [line for number, line in rows_of if kinds[number] == kind] for kind in KINDS}


def find_own_imports(name: str, trees: Trees) -> Iterator[Import]:
    """What a file imports from the package, wherever it does so; a folder stands for its __init__.py."""
    for node, inside, typing in find_imports(trees[name].body):
        stem: tuple[str, ...] = ()
        if isinstance(node, ast.ImportFrom):
            stem = (*Path("vitrail", name).parts[: -node.level or -99], *(node.module or "").split("."))
        for alias in node.names:
            module = locate_module((*stem, *alias.name.split(".")), trees)
            target = module or locate_module(stem, trees)
            if target:
                attribute = None if module else alias.name
                yield Import(target, alias.asname or alias.name, attribute, node.lineno, inside, typing)


def find_imports(
    nodes: Iterable[ast.AST], inside: bool = False, typing: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    """Every import statement, whether it is in a function, and whether only type checkers read it."""
    for node in nodes:
        if isinstance(node, IMPORTS):
            yield node, inside, typing
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from find_imports(node.body, inside, True)
            yield from find_imports(node.orelse, inside, typing)
        else:
            yield from find_imports(ast.iter_child_nodes(node), inside or isinstance(node, FUNCTIONS), typing)


def locate_module(parts: tuple[str, ...], trees: Trees) -> str | None:
    """The file of a dotted name, None where it is not a module of the package."""
    first, *rest = [part for part in parts if part] or [""]
    choices = ("/".join([*rest, "__init__.py"]), "/".join(rest) + ".py")
    return next((name for name in choices if name in trees), None) if first == "vitrail" else None


def list_lonely(small: set[str], imports: dict[str, list[Import]]) -> Lists:
    """Small files that one other file imports, and imports in functions; an __init__.py is no file here."""
    files = [name for name in imports if not name.endswith("__init__.py")]
    pairs = {(one.target, name) for name in files for one in imports[name] if one.target != name}
    importers = Counter(target for target, _ in pairs)
    inside = {f"{name}:{one.line}" for name in imports for one in imports[name] if one.inside and not one.typing}
    lonely = sorted(
        f"{name} <- {by}" for name, by in pairs if name in small.intersection(files) and importers[name] == 1
    )
    return {
        f"files under {SMALL} code lines with one importer": lonely,
        "imports of own modules inside functions": sorted(inside),
    }


def list_cycles(imports: dict[str, list[Import]]) -> Lists:
    """Cycles of files by all their imports, and of neighbours: the files and folders within one folder."""
    lists: Lists = {}
    for which in ("without", "with"):
        pairs = {
            (name, one.target) for name, found in imports.items() for one in found if which == "with" or not one.typing
        }
        neighbours = {ends for pair in pairs if (ends := split_paths(*pair))}
        for kind, edges in (("files", pairs), ("neighbours in a folder", neighbours)):
            cycles = find_cycles(edges)
            lists[f"cycles of {kind} {which} TYPE_CHECKING"] = [", ".join(cycle) for cycle in cycles]
            lists[f"  {kind} in them, {which}"] = [member for cycle in cycles for member in cycle]
    return lists


def split_paths(name: str, target: str) -> tuple[str, str] | None:
    """Where two paths part: train/fit.py and train/planning/memory.py give train/fit.py and train/planning."""
    one, other = Path(name).parts, Path(target).parts
    for depth, (mine, theirs) in enumerate(zip(one, other, strict=False), 1):
        if mine != theirs:
            ends = "/".join(one[:depth]), "/".join(other[:depth])
            return None if any(end.endswith("__init__.py") for end in ends) else ends
    return None


def find_cycles(pairs: Collection[tuple[str, str]]) -> list[list[str]]:
    """The strongly connected components of more than one node."""
    edges: dict[str, set[str]] = {node: set() for pair in pairs for node in pair}
    for start, end in pairs:
        edges[start].add(end)
    reached: dict[str, set[str]] = {start: set() for start in edges}
    for start, found in reached.items():
        waiting = [start]
        while waiting:
            new = edges[waiting.pop()] - found
            found |= new
            waiting.extend(new)
    cycles = {frozenset({a, *(b for b in reached[a] if a in reached[b])}) for a in edges}
    return sorted((sorted(cycle) for cycle in cycles if len(cycle) > 1), key=len, reverse=True)


def list_names(trees: Trees) -> Lists:
    """Functions named by a bare participle, and names of classes and modules that the package uses more than once."""
    functions = [(name, node) for name in trees for node in ast.walk(trees[name]) if isinstance(node, FUNCTIONS)]
    found = [(name, node) for name, node in functions if is_participle(node.name)]
    public = [(name, node) for name, node in found if node in trees[name].body and not node.name.startswith("_")]
    classes = Counter(node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef))
    modules = Counter(Path(name).stem for name in trees if not name.endswith("__init__.py"))
    return {
        "functions named by a bare participle": [f"{name}:{node.lineno} {node.name}" for name, node in found],
        "  different names among them": sorted({node.name for _, node in found}),
        "  public ones of a module": [f"{name}:{node.lineno} {node.name}" for name, node in public],
        "repeated names of classes": [f"{name} {times}" for name, times in classes.items() if times > 1],
        "repeated names of modules": [f"{name} {times}" for name, times in modules.items() if times > 1],
    }


def is_participle(name: str) -> bool:
    """Whether a name is one word, and that a past participle; underscores around it do not matter."""
    word = name.strip("_").lower()
    regular = word.isalpha() and word.endswith("ed") and word not in NO_PARTICIPLES.split()
    return regular or word in IRREGULAR.split()


def list_called_once(trees: Trees, imports: dict[str, list[Import]]) -> list[str]:
    """Module-level functions that one call in the package uses and nothing else; scopes of local names are ignored."""
    own = {(name, node.name) for name, tree in trees.items() for node in tree.body if isinstance(node, FUNCTIONS)}
    used, called = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for name, tree in trees.items():
        known = {function: (module, function) for module, function in own if module == name}
        known |= {one.local: (one.target, one.attribute) for one in imports[name] if one.attribute}
        modules = {one.local: one.target for one in imports[name] if not one.attribute}
        functions = [id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for node in ast.walk(tree):
            found = known.get(node.id) if isinstance(node, ast.Name) else None
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                found = modules[node.value.id], node.attr
            if found:
                used[found] += 1
                called[found] += id(node) in functions
    return sorted(f"{name} {function}" for name, function in own if used[name, function] == called[name, function] == 1)


def run_walks(checkout: Path) -> Lists:
    """Train a tiny run with a checkout, convert it, and trace each walk in a process of its own."""
    lists: Lists = {}
    settings = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(checkout / "src")}
    with tempfile.TemporaryDirectory() as folder:
        for walk in ("", *WALKS):
            script = [str(Path(__file__).resolve()), str(checkout), "--trace", walk]
            commands = [script] if walk else [["-m", "vitrail", *words.split()] for words in (TRAIN, CONVERT)]
            for words in commands:
                command = [sys.executable, "-P", *words]
                done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True)
                if done.returncode:
                    raise SystemExit(f"This failed with {checkout}: {' '.join(command)}\n{done.stderr}")
            if walk:
                lists |= json.loads(Path(folder, f"{walk}.json").read_text("utf-8"))
    return lists


def trace_walk(walk: str, checkout: Path) -> None:
    """Run one walk in this process, whose folder holds a run and converted weights; write what it touched.

    `predict` opens the run and asks it about a picture, `again` only asks an open run, a second time; `plan` is a
    training by command line that ends before its first step, and `load` opens a file of the timm layout.
    """
    from PIL import Image

    import vitrail
    from vitrail.cli.main import main as run_command

    package = checkout / "src" / "vitrail"
    if Path(vitrail.__file__).parent != package:
        raise SystemExit(f"The walk would run {vitrail.__file__}, not {package}.")
    Image.linear_gradient("L").resize((16, 16)).save("picture.png")
    tracer = Tracer(f"{package}{os.sep}", read_floors(checkout))
    run = vitrail.open("run") if walk == "again" else None
    if run is not None:
        run.predict(["picture.png"])
    threading.setprofile(tracer.watch)
    sys.setprofile(tracer.watch)
    if run is not None:
        run.predict(["picture.png"])
    elif walk == "predict":
        vitrail.open("run").predict(["picture.png"])
    elif walk == "load":
        vitrail.load("timm/model.safetensors")
    elif run_command(["train", "digits", "--dry-run"]):
        raise SystemExit("The plan was not made.")
    sys.setprofile(None)
    threading.setprofile(None)
    lists = {f"walk {walk}: files": tracer.touched, f"walk {walk}: turns back": tracer.turns}
    Path(f"{walk}.json").write_text(json.dumps(lists), "utf-8")


def read_floors(checkout: Path) -> dict[str, int]:
    """The floor of each room of the package, 0 the highest, as import-linter is told in pyproject.toml."""
    contracts = tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one.get("containers") == ["vitrail"] and "layers" in one)
    floors = [layer.replace(":", "|").split("|") for layer in layers]
    return {room.strip(" ()"): floor for floor, rooms in enumerate(floors) for room in rooms}


class Tracer:
    """The files whose functions run, in the order of their first call, and the turns back.

    Only functions count, not the bodies of modules and classes, nor what these call while they are imported. A turn
    back is a pair of files: within one thread, a call in the first is followed by a call in the second, which was
    touched before and lies on a higher floor. The same pair counts once, however often a loop repeats it.
    """

    def __init__(self, package: str, floors: dict[str, int]) -> None:
        self.package = package
        self.floors = floors
        self.touched: list[str] = []
        self.turns: list[str] = []
        self._thread = threading.local()

    def watch(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call in the package; Python calls this at every call and return."""
        code, mine = frame.f_code, self._thread.__dict__
        if event not in ("call", "return") or not code.co_filename.startswith(self.package):
            return
        if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or class
            mine["importing"] = mine.get("importing", 0) + (1 if event == "call" else -1)
        elif event == "call" and not mine.get("importing"):
            name = code.co_filename.removeprefix(self.package)
            last = mine.setdefault("last", name)
            mine["last"] = name
            if name not in self.touched:
                self.touched.append(name)
            elif self._floor(name) < self._floor(last) and f"{last} -> {name}" not in self.turns:
                self.turns.append(f"{last} -> {name}")

    def _floor(self, name: str) -> int:
        return self.floors.get(Path(name).parts[0].removesuffix(".py"), -1)


if __name__ == "__main__":
    main()
