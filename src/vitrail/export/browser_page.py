"""The model as a web page: one HTML file, or a folder, that answers in any browser without a server's help.

The page is that of `vitrail serve`, with another module in place of its server: a worker decodes, resizes and answers
by ONNX Runtime. As one file its modules are joined into one script, and the model lies in it as text; its policy lets
the browser run nothing but that script and reach no address at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from ..data.preprocess import MAX_ASPECT_RATIO
from ..errors import UsageError
from ..evaluate.tables import ABSTENTION_UNKNOWN, NOT_ABSTAINED
from ..model.vit import ViT
from ..predict.answer_notes import FILE_REMARKS, explain_abstentions
from ..predict.exported import ABSTENTION_REASONS
from ..predict.predictor import AnsweringModel, as_predictor
from ..spec import ImageSpec
from ..version import __version__
from .browser_runtime import RUNTIME_FILES, RUNTIME_VERSION
from .ensemble import decisions_in_file

PAGE_FOLDER = Path(__file__).parents[1] / "serve" / "page"
"""The server's page, whose look and words these pages have."""
BROWSER_FOLDER = Path(__file__).parent / "browser"
"""What stands in for the server, in JavaScript."""
MODEL_FILE = "model.onnx"
LICENCE_FILE = "onnxruntime-licence.txt"
SERVICE = "service.js"
RUNTIME_MODULE, RUNTIME_BINARY = RUNTIME_FILES[:2]
ENGINE = f"ONNX Runtime Web {RUNTIME_VERSION}"
MAX_SINGLE_FILE_BYTES = 400 * 2**20
"""Largest model inside one HTML file; browsers read larger files too slowly, if at all."""
BLOCK_BYTES = 12 * 2**20
"""Bytes in one block of text; a multiple of 3, so that blocks need no padding in between."""
IMAGES_PER_BATCH = 4
SINGLE_FILE_POLICY = (
    "default-src 'none'; script-src '{script}' 'wasm-unsafe-eval'; style-src '{style}'; img-src blob: data:; "
    "worker-src blob:; base-uri 'none'; form-action 'none'"
)
FOLDER_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'"
)
"""Content security policies: what the browser may run and reach."""
OCCLUSION = {
    "name": "occlusion",
    "title": "Occlusion",
    "line": "How the score falls when a block of patches is covered; slow, and needs no theory.",
    "of_class": True,
}
# fmt: off
CHARSET = '<meta charset="utf-8">'
SCRIPT = '<script type="module" src="page/app.js"></script>'
STYLE = '<link rel="stylesheet" href="page/style.css">'
ICON = "page/icon.svg"
END = "</body>"
SENTENCES = {  # the server's page -> this one
    "Asking the server which model it has …": "Reading the model …",
    "This page needs JavaScript to draw answers. Without it, the same server answers "
    "<code>curl --data-binary @picture.jpg http://HOST/predict</code>.": "This page needs JavaScript.",
    "The picture is sent to this server only when you take it.": "The picture stays in this browser.",
}
# fmt: on


@dataclass(frozen=True, kw_only=True)
class BrowserPage:
    """What a page is made of."""

    model: bytes
    """An ONNX file for images of the model's size."""
    description: Mapping[str, Any]
    """What the page knows of its model, from `describe_for_page`."""
    runtime: Mapping[str, bytes]
    """The files of ONNX Runtime, by name."""

    def write(self, path: Path) -> None:
        """Write one file, if its name ends in .html, else a folder.

        Raises:
            UsageError: the model is too large for one file.
        """
        if not is_single_file(path):
            self._write_folder(path)
            return
        if len(self.model) > MAX_SINGLE_FILE_BYTES:
            raise UsageError(
                f"A page in one file holds models of at most {MAX_SINGLE_FILE_BYTES:,} bytes. This one has "
                f"{len(self.model):,}: write a folder, --out {path.with_suffix('')}, or take --precision float16."
            )
        with path.open("w", encoding="utf-8", newline="\n") as file:
            self._write_single_file(file)

    def _write_folder(self, folder: Path) -> None:
        page = folder / "page"
        page.mkdir(parents=True)
        html = _replace_once((PAGE_FOLDER / "index.html").read_text(encoding="utf-8"), self._common_replacements())
        html = _replace_once(html, {CHARSET: CHARSET + _policy(FOLDER_POLICY)})
        (folder / "index.html").write_text(html, encoding="utf-8", newline="\n")
        modules = _load_modules("folder")
        modules[f"../{SERVICE}"] = modules.pop(SERVICE)  # which has a say in what lies beside and below it
        for name, text in modules.items():
            (page / name).write_text(text, encoding="utf-8", newline="\n")
        for name in ("style.css", "icon.svg"):
            (page / name).write_bytes((PAGE_FOLDER / name).read_bytes())
        for name, data in {**self.runtime, MODEL_FILE: self.model}.items():
            (page / name).write_bytes(data)
        (page / LICENCE_FILE).write_bytes((BROWSER_FOLDER / LICENCE_FILE).read_bytes())

    def _write_single_file(self, file: IO[str]) -> None:
        modules = _load_modules("file")
        runtime_module = self.runtime[RUNTIME_MODULE].decode("utf-8")
        worker = bundle_modules("worker.js", {**modules, RUNTIME_MODULE: runtime_module})
        script, style = bundle_modules("app.js", modules), (PAGE_FOLDER / "style.css").read_text(encoding="utf-8")
        policy = SINGLE_FILE_POLICY.format(script=_policy_hash(script), style=_policy_hash(style))
        icon = base64.b64encode((PAGE_FOLDER / "icon.svg").read_bytes()).decode("ascii")
        licence = (BROWSER_FOLDER / LICENCE_FILE).read_text(encoding="utf-8")
        html = _replace_once((PAGE_FOLDER / "index.html").read_text(encoding="utf-8"), self._common_replacements())
        html = _replace_once(
            html.replace(ICON, f"data:image/svg+xml;base64,{icon}"),
            {
                CHARSET: f"{CHARSET}{_policy(policy)}\n<!--\n{licence}-->",
                SCRIPT: f'<script type="module">{script}</script>',
                STYLE: f"<style>{style}</style>",
            },
        )
        before, _, after = html.rpartition(END)
        file.write(before)
        parts = {"worker.js": worker.encode(), RUNTIME_BINARY: self.runtime[RUNTIME_BINARY], MODEL_FILE: self.model}
        for name, data in parts.items():
            for block in _encode_blocks(name, data):
                file.write(block)
        file.write(END + after)

    def _common_replacements(self) -> dict[str, str]:
        text = json.dumps(self.description, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
        described = f'<script type="application/json" id="described">{text}</script>\n{END}'
        return {**SENTENCES, END: described}


def is_single_file(path: Path) -> bool:
    """Whether a page of this name is one file, not a folder."""
    return path.suffix == ".html"


def explain_no_page(task: str) -> str:
    """Why a model of this task has no page; empty where it has one."""
    if task == "segmentation":
        return "A web page shows no masks yet. Export a segmentation model --to onnx."
    refusal = "A web page shows neither p-values nor distances. Export an anomaly model --to onnx, or serve it."
    return refusal if task == "anomaly" else ""


def describe_for_page(model: AnsweringModel, name: str, licence: str) -> dict[str, Any]:
    """What the page knows of its model: as `GET /about` of the server says it, and how images are prepared.

    Args:
        name: what the page calls the model.
        licence: of its weights, if known.
    """
    predictor, decisions = as_predictor(model), decisions_in_file(model)
    network, spec, number = predictor.members[0].model, predictor.spec, predictor.task == "regression"
    assert isinstance(network, ViT)
    labels = (decisions.positive,) if decisions.positive else predictor.classes
    notes = explain_abstentions(decisions)
    return {
        "name": name,
        "task": predictor.task,
        "classes": [] if number else list(predictor.classes),
        "columns": list(predictor.classes) if number else [],
        "image": {"height": spec.height, "width": spec.width, "channels": spec.channels},
        "thresholds": dict(zip(labels, decisions.thresholds, strict=False)),
        "calibrated": all(one.decisions.temperature != () for one in predictor.members),
        "abstains_below": decisions.sure or None,
        "unlike": decisions.unlike is not None,
        "methods": [OCCLUSION],
        "palette": [],
        "limits": {"pictures": IMAGES_PER_BATCH, "pixels": spec.max_pixels},
        "version": __version__,
        "licence": licence,
        "local": ENGINE,
        "spec": _describe_spec(spec, network.config.patch),
        "reasons": list(ABSTENTION_REASONS),
        "answered": NOT_ABSTAINED if decisions.unlike is not None else ABSTENTION_UNKNOWN,
        "decided_by": decisions.version,
        "notes": notes,
        "remarks": FILE_REMARKS,
    }


def _describe_spec(spec: ImageSpec, patch: tuple[int, int]) -> dict[str, Any]:
    """How images are decoded and resized."""
    names = (
        *("height", "width", "channels", "low", "high", "mean", "interpolation", "antialias", "fit", "crop_fraction"),
        *("crop_start", "max_pixels", "white", "dtype", "resize_size"),
    )
    return {**{name: getattr(spec, name) for name in names}, "max_aspect": MAX_ASPECT_RATIO, "patch": patch}


def _load_modules(kind: Literal["file", "folder"]) -> dict[str, str]:
    """The page's modules by name, with ours in place of the server's, and NAME_kind.js as NAME.js."""
    ours = {path.name: path for path in sorted(BROWSER_FOLDER.glob("*.js")) if "_" not in path.name}
    kinds = {path.name.replace(f"_{kind}", ""): path for path in sorted(BROWSER_FOLDER.glob(f"*_{kind}.js"))}
    paths = {path.name: path for path in sorted(PAGE_FOLDER.glob("*.js"))} | ours | kinds
    return {name: path.read_text(encoding="utf-8") for name, path in paths.items()}


def _replace_once(text: str, replacements: Mapping[str, str]) -> str:
    for old, new in replacements.items():
        assert text.count(old) == 1, f"The page's index.html holds {old!r} {text.count(old)} times."
        text = text.replace(old, new)
    return text


def _policy(policy: str) -> str:
    return f'\n<meta http-equiv="content-security-policy" content="{policy}">'


def _policy_hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


def _encode_blocks(name: str, data: bytes) -> Iterator[str]:
    """Blocks of base64 that the page reads and drops, the first with the size of the whole."""
    for start in range(0, len(data), BLOCK_BYTES):
        text = base64.b64encode(data[start : start + BLOCK_BYTES]).decode("ascii")
        yield f'<script type="text/plain" data-part="{name}" data-size="{len(data)}">{text}</script>\n'


# -- Joining ES modules into one script, for pages that are opened from disk: browsers load no module from there.

IMPORT_NAMES = re.compile(r'^import \{([^}]*)\} from "\./([\w.-]+)";$', re.MULTILINE)
IMPORT_MODULE = re.compile(r'^import \* as (\w+) from "\./([\w.-]+)";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async function|function|class|const) (\w+))", re.MULTILINE)
EXPORT_LIST = re.compile(r"\bexport\s*\{([^{}]*)\};?\s*$")
SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)
LEFT_OVER = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)


def bundle_modules(entry: str, modules: Mapping[str, str]) -> str:
    """Join a module and all that it imports into one script without modules, each in a function of its own.

    Args:
        entry: the name of the module to start with.
        modules: the text of each module by its name.
    """
    order: list[str] = []

    def visit(name: str, above: Sequence[str]) -> None:
        assert name not in above, f"{' -> '.join((*above, name))}: modules import each other."
        if name in order:
            return
        for _, needed in (*IMPORT_NAMES.findall(modules[name]), *IMPORT_MODULE.findall(modules[name])):
            visit(needed, (*above, name))
        order.append(name)

    visit(entry, ())
    script = '"use strict";\n' + "".join(_wrap_module(name, modules[name]) for name in order)
    assert not re.search(r"</script|<!--", script, re.IGNORECASE), "The script would end within its HTML."
    return script


def _wrap_module(name: str, text: str) -> str:
    """A module as a constant: an object of its exports."""
    text = SOURCE_MAP.sub("", text).rstrip().replace("import.meta.url", "self.location.href")
    exports = {exported: exported for exported in EXPORT.findall(text)}
    if listed := EXPORT_LIST.search(text):
        pairs = [item.strip().split(" as ") for item in listed[1].split(",")]
        exports |= {pair[-1]: pair[0] for pair in pairs}
        text = text[: listed.start()]
    text = IMPORT_NAMES.sub(lambda found: _destructure(found[1], found[2]), text)
    text = IMPORT_MODULE.sub(lambda found: f"const {found[1]} = {_constant(found[2])};", text)
    text = EXPORT.sub("", text)
    assert not LEFT_OVER.search(text), f"{name}: {LEFT_OVER.search(text)}"
    returned = ", ".join(f"{exported}: {local}" for exported, local in exports.items())
    return f"const {_constant(name)} = (() => {{\n{text}\nreturn {{ {returned} }};\n}})();\n"


def _destructure(names: str, module: str) -> str:
    return f"const {{ {names.strip().replace(' as ', ': ')} }} = {_constant(module)};"


def _constant(module: str) -> str:
    """A name in JavaScript for a module."""
    return "$" + re.sub(r"\W", "_", module)
