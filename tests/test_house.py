"""The rules of the house that a machine can keep: dependencies, floors, lengths, docstrings, no file that is run."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from scripts import script

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "vitrail"
MODULES = sorted(PACKAGE.rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

CORE = (
    "torch>=2.9",
    "numpy",
    "pillow",
    "simplejpeg",
    "safetensors",
    "huggingface_hub",
    "scikit-learn",
    "scipy",
    "matplotlib",
    "jinja2",
    "jaxtyping",
    "rich",
)
ARRIVES_LATER: set[str] = set()
"""Declared for a coming issue and not imported yet. This set only shrinks."""
IMPORT_NAMES = {"pillow": "PIL", "scikit-learn": "sklearn"}
EXTRAS = {
    "data": ["datasets", "pyarrow"],
    "medical": ["pydicom", "pylibjpeg", "pylibjpeg-openjpeg", "pylibjpeg-rle"],
    "serve": ["fastapi", "uvicorn", "httptools", "python-multipart", "prometheus-client"],
    "export": ["onnx", "onnxscript", "onnxruntime"],
    "openvino": ["onnx", "onnxscript", "onnxruntime", "openvino"],
    "ray": ["ray[data]"],
    "track": ["tensorboard"],
    "docs": ["sphinx", "furo", "myst-parser", "sphinx-copybutton", "nbclient", "ipykernel"],
    "dev": [
        *(
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "hypothesis",
            "beartype",
            "ruff",
            "mypy",
            "import-linter",
            "hatchling",
        ),
        *("timm", "transformers", "torchvision", "vit-pytorch", "open_clip_torch", "captum", "webdataset"),
        "tifffile",
        *("datasets", "pyarrow", "pandas", "pydicom", "pylibjpeg", "pylibjpeg-openjpeg", "pylibjpeg-rle"),
        "pi-heif",
        *("fastapi", "uvicorn", "httptools", "python-multipart", "prometheus-client", "httpx2", "onnx", "onnxscript"),
        *("onnxruntime", "playwright", "tensorboard"),
        "optuna",
    ],
}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imports_of(path: Path) -> Iterator[str]:
    """Absolute module names that a file imports anywhere in it."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module)


def distribution(requirement: str) -> str:
    return re.split(r"[<>=!~ \[;]", requirement)[0]


def where(path: Path, node: ast.AST, what: str) -> str:
    return f"{name_of(path)}:{node.lineno} {what}"


def nodes(*kinds: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    """Every node of these kinds in the package, with its file."""
    for path in MODULES:
        yield from ((path, node) for node in ast.walk(tree_of(path)) if isinstance(node, kinds))


@pytest.mark.wide
def test_every_public_name_is_there_and_documented():
    import vitrail

    assert vitrail.__all__ == sorted(vitrail.__all__)
    for name in vitrail.__all__:
        assert name == "__version__" or (getattr(vitrail, name).__doc__ or "").strip(), f"vitrail.{name}: no docstring"


def test_every_file_begins_with_its_idea():
    assert not [name_of(path) for path in MODULES if not ast.get_docstring(tree_of(path))]


def test_every_public_function_and_class_has_a_docstring():
    public = (
        (path, node)
        for path in MODULES
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    )
    assert not [where(path, node, node.name) for path, node in public if not ast.get_docstring(node)]


def test_every_module_has_a_name_of_its_own():
    names = Counter(path.stem for path in MODULES if path.name not in {"__init__.py", "__main__.py"})
    assert not {name: count for name, count in names.items() if count > 1}


def test_every_class_has_a_name_of_its_own():
    classes = defaultdict(list)
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(name_of(path))
    assert not {name: places for name, places in classes.items() if len(places) > 1}


def test_every_function_is_named_by_what_it_does():
    """No bare participle: `told` and `settled` say neither what is done nor to what."""
    functions = nodes(ast.FunctionDef, ast.AsyncFunctionDef)
    assert not [where(path, f, f.name) for path, f in functions if f.name.strip("_") in PARTICIPLES]


# fmt: off
PARTICIPLES = {
    "asked", "begun", "bound", "broken", "brought", "built", "called", "caught", "checked", "chosen", "counted",
    "decided", "drawn", "found", "given", "held", "joined", "judged", "kept", "known", "laid", "left", "located",
    "looked", "made", "marked", "measured", "merged", "met", "named", "opened", "ordered", "paid", "parted", "saved",
    "seen", "sent", "settled", "shared", "shown", "sought", "spent", "spoken", "taken", "taught", "thought", "told",
    "tried", "understood", "used", "wanted", "warned", "wished", "won", "worn", "written",
}
# fmt: on


@pytest.mark.wide
def test_an_import_inside_a_function_keeps_a_library_out_of_start_up():
    imports: dict[str, list[Any]] = {name: list(NUMBERS.find_own_imports(name, TREES)) for name in TREES}
    needless = [
        f"{name}:{one.line} {one.target}"
        for name in TREES
        for one in imports[name]
        if one.inside and not one.typing and libraries_of(one.target, imports) <= libraries_of(name, imports)
    ]
    assert not needless, "import these at the top of the file: what they bring is loaded with it anyway"


NUMBERS = script("house_numbers", "docs")
SHARDING = "torch.distributed.checkpoint"
TREES = {str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}


def libraries_of(name: str, imports: dict[str, list[Any]]) -> set[str]:
    """The libraries that are loaded with a file; torch's sharding, which takes a second, counts as one of its own."""
    seen, waiting, found = {name}, [name], set()
    while waiting:
        file = waiting.pop()
        found |= {library for library in top_imports(file) if library not in sys.stdlib_module_names}
        packages = [str(folder / "__init__.py") for folder in Path(file).parents]
        new = {one.target for one in imports[file] if not one.inside and not one.typing} | {*packages} - {file}
        waiting += [other for other in new - seen if other in TREES]
        seen |= new
    return found


@functools.cache
def top_imports(name: str) -> set[str]:
    found = set()
    for node, inside, typing in NUMBERS.find_imports(TREES[name].body):
        if inside or typing or (isinstance(node, ast.ImportFrom) and node.level):
            continue
        modules = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        found |= {SHARDING if each.startswith(SHARDING) else each.partition(".")[0] for each in modules}
    return found


@pytest.mark.wide
def test_docstrings_and_comments_are_in_plain_technical_english():
    found = []
    for path in MODULES:
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type == tokenize.COMMENT and (word := PRIVATE_WORDS.search(token.string)):
                found.append(f"{name_of(path)}:{token.start[0]} {word[0]}")
        for owner in ast.walk(tree_of(path)):
            for text in docstrings_of(owner):
                if word := PRIVATE_WORDS.search(text.value):
                    found.append(f"{name_of(path)}:{text.lineno} {word[0]}")
    assert not found


PRIVATE_WORDS = re.compile(
    r"\b(whoever|nobody|somebody|anybody|told|said|errands?|by heart|lonely|foretold|sought|wished|doors?)\b",
    re.IGNORECASE,
)
"""Words of a private language, and what to write: docs/architecture.md and CONTRIBUTING.md."""


def docstrings_of(owner: ast.AST) -> Iterator[ast.Constant]:
    """The docstring of a module, class or function, and the strings below its assignments."""
    body = getattr(owner, "body", None)
    if isinstance(owner, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and isinstance(body, list):
        for node in body:
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield node.value


def test_no_function_swallows_unknown_arguments():
    """The wrapper in config/keywords.py refuses what the wrapped function does not know, and forwards the rest; those
    in argument_types.py and caller_state.py forward everything; scikit-learn's set_params refuses unknown names."""

    def is_typed(keywords: ast.arg | None) -> bool:  # names and types are those of a TypedDict
        return keywords is not None and ast.unparse(keywords.annotation or keywords).startswith("Unpack[")

    functions = ((path, f) for path, f in nodes(ast.FunctionDef) if f.args.kwarg and not is_typed(f.args.kwarg))
    found = [where(path, f, f.name) for path, f in functions]
    known = ("argument_types.py:", "config/keywords.py:", "caller_state.py:", "estimators.py:")
    assert [one for one in found if not one.startswith(known)] == []
    assert [one.partition(" ")[2] for one in found if one.startswith("estimators.py:")] == ["set_params"]


@pytest.mark.wide
def test_nothing_runs_what_a_file_says():
    found = []
    for path, call in nodes(ast.Call):
        flags = {
            word.arg for word in call.keywords if isinstance(word.value, ast.Constant) and word.value.value is True
        }
        if ast.unparse(call.func) in RUNS_CODE or flags & {"shell", "allow_pickle", "trust_remote_code"}:
            found.append(where(path, call, ast.unparse(call.func)))
    for path in MODULES:
        found += [f"{name_of(path)} imports {name}" for name in imports_of(path) if name.partition(".")[0] in PICKLES]
    assert not found


PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
RUNS_CODE = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "yaml.load",
    "torch.load",
    "torch.hub.load",
}


def test_core_dependencies_are_these():
    assert tuple(PROJECT["project"]["dependencies"]) == CORE


def test_extras_are_these():
    assert PROJECT["project"]["optional-dependencies"] == EXTRAS


def test_every_core_dependency_is_imported_or_its_issue_is_still_to_come():
    imported = {name.partition(".")[0] for path in MODULES for name in imports_of(path)}
    unused = {name for name in map(distribution, CORE) if IMPORT_NAMES.get(name, name) not in imported}
    assert unused == ARRIVES_LATER, "import it, or take it from the set that only shrinks"


def test_every_dependency_is_pinned_to_the_version_that_was_tested():
    pinned = {distribution(line) for line in (ROOT / "constraints.txt").read_text().lower().splitlines()}
    assert {distribution(need) for need in (*CORE, *EXTRAS["docs"], *EXTRAS["dev"])} <= pinned


def test_the_libraries_that_tests_compare_with_did_not_replace_torch():
    pinned = re.search(r"(?m)^torch==(\S+)$", (ROOT / "constraints.txt").read_text())
    assert pinned is not None
    assert importlib.metadata.version("torch").partition("+")[0] == pinned[1]


def test_torchvision_is_never_imported():
    assert not [name_of(path) for path in MODULES for name in imports_of(path) if name.startswith("torchvision")]


def test_importing_a_package_does_not_import_torch():
    packages = [".".join(path.parent.relative_to(ROOT / "src").parts) for path in PACKAGE.rglob("__init__.py")]
    script = "import importlib, sys\n" + "".join(
        f"importlib.import_module({name!r}); assert 'torch' not in sys.modules, {name!r}\n" for name in sorted(packages)
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_folder_has_an_init_file():
    bare = {path.parent for path in MODULES} - {path.parent for path in MODULES if path.name == "__init__.py"}
    assert not bare, f"no __init__.py in {sorted(map(name_of, bare))}"


def contract(name: str) -> dict[str, Any]:
    """The import contract of this id."""
    return next(each for each in PROJECT["tool"]["importlinter"]["contracts"] if each["id"] == name)


def test_every_file_and_folder_of_the_package_has_its_floor_and_brackets_only_mean_not_built():
    floors = contract("floors")
    declared = {room.strip() for layer in floors["layers"] for room in layer.split("|")}
    built = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES} - {"__init__", "__main__"}
    assert {room for room in declared if not room.startswith("(")} == built


def test_the_folders_of_train_and_data_have_floors_of_their_own():
    for room in ("train", "data"):
        floors = contract(room)
        assert floors["containers"] == [f"vitrail.{room}"] and floors["type"] == "layers" and floors["exhaustive"]


def test_the_makefile_keeps_its_promised_targets():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert targets == {"demo", "test", "test-ci", "test-all", "check", "bench", "figures", "docs", "book", "clean"}


THINGS = (
    "pictures images files classes rows labels masks models folds patches processes groups shards steps columns values "
    "samples films defects copies channels tensors links trials tokens blocks epochs numbers findings"
)
COUNTED = re.compile(rf"^ (?:[a-z]+ )?(?:{THINGS.replace(' ', '|')})\b")
COUNTED_ON_A_PAGE = re.compile(
    rf"\| (?:count|length) \}}\}}(?: \{{\{{ [a-z.]+ \}}\}})? (?:{THINGS.replace(' ', '|')})\b"
)


def test_a_count_has_its_noun_from_the_helper_that_knows_the_singular():
    """No number with commas, length or count of channels stands before several things; constants of the package do."""
    found = []
    for path, node in nodes(ast.JoinedStr):
        for value, text in pairwise(node.values):
            if isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant) and COUNTED.match(text.value):
                counted = ast.unparse(value.value)
                is_grouped = value.format_spec is not None and ast.unparse(value.format_spec) == "f','"
                is_constant = re.fullmatch(r"(len\()?(\w+\.)?[A-Z_]+\)?", counted)
                may_be_one = is_grouped or counted.startswith("len(") or text.value.startswith(" channels")
                if may_be_one and not is_constant:
                    found.append(where(path, node, f"{counted}{text.value}"))
    for page in PACKAGE.rglob("*.j2"):
        found += [f"{page.name}: {match[0]}" for match in COUNTED_ON_A_PAGE.finditer(page.read_text(encoding="utf-8"))]
    assert not found, "formatting.format_count, or on a page the filter `counted`, says one thing where there is one"
