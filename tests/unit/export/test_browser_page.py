"""The page as one file and as a folder: all parts are there, nothing else can run, each module finds what it needs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from exportable import member
from vitrail.errors import UsageError
from vitrail.export import browser_page
from vitrail.export.browser_page import BrowserPage, bundle_modules, describe_for_page, explain_no_page
from vitrail.export.browser_runtime import RUNTIME_FILES

MODEL = bytes(range(256)) * 5
RUNTIME = {
    RUNTIME_FILES[0]: b"var a=1;export{a as InferenceSession,a as default};\n//# sourceMappingURL=x.map\n",
    RUNTIME_FILES[1]: b"\0asm" + bytes(900),
}


def page(name: str = "<b>flowers</b>") -> BrowserPage:
    return BrowserPage(model=MODEL, description=describe_for_page(member(), name, "Apache-2.0"), runtime=RUNTIME)


class Scripts(HTMLParser):
    """Attributes and text of every script, and the style."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[dict[str, str | None], str]] = []
        self.style = ""
        self.open: str | None = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.open = tag
        if tag == "script":
            self.found.append((dict(attrs), ""))

    def handle_data(self, data):
        if self.open == "script":
            self.found[-1] = (self.found[-1][0], self.found[-1][1] + data)
        elif self.open == "style":
            self.style += data

    def handle_endtag(self, tag):
        self.open = None

    def part(self, name: str) -> bytes:
        return b"".join(base64.b64decode(text) for given, text in self.found if given.get("data-part") == name)


def hash_of(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_one_file_holds_the_model_the_runtime_and_what_the_page_knows(tmp_path, monkeypatch):
    monkeypatch.setattr(browser_page, "BLOCK_BYTES", 300)  # several blocks, the last one shorter
    page().write(tmp_path / "model.html")
    scripts = Scripts((tmp_path / "model.html").read_text(encoding="utf-8"))
    assert scripts.part("model.onnx") == MODEL and scripts.part(RUNTIME_FILES[1]) == RUNTIME[RUNTIME_FILES[1]]
    sizes = [given["data-size"] for given, _ in scripts.found if given.get("data-part") == "model.onnx"]
    assert sizes == [str(len(MODEL))] * 5
    (described,) = (json.loads(text) for given, text in scripts.found if given.get("id") == "described")
    assert described["classes"] == ["cat", "dog", "fish"] and described["name"] == "<b>flowers</b>"
    assert described["spec"]["resize_size"] == [12, 8] and described["reasons"] == ["", "unsure", "unlike"]


def test_the_policy_of_one_file_allows_its_own_script_and_style_and_no_address(tmp_path):
    page().write(tmp_path / "model.html")
    text = (tmp_path / "model.html").read_text(encoding="utf-8")
    scripts = Scripts(text)
    policy = re.search(r'http-equiv="content-security-policy" content="([^"]*)"', text)[1]
    allowed = dict(rule.split(" ", 1) for rule in policy.split("; "))
    (main,) = (text for given, text in scripts.found if given.get("type") == "module")
    assert allowed["script-src"] == f"'{hash_of(main)}' 'wasm-unsafe-eval'"
    assert allowed["style-src"] == f"'{hash_of(scripts.style)}'"
    assert allowed["default-src"] == "'none'" and "connect-src" not in allowed
    assert text.index("content-security-policy") < text.index("<script")
    assert not re.search(r'(?:src|href)="(?!data:|#)', text), "everything is inside"
    assert "Copyright (c) Microsoft Corporation" in text


def test_a_folder_holds_every_file_that_the_page_asks_for(tmp_path):
    page().write(tmp_path / "web")
    names = {path.relative_to(tmp_path / "web").as_posix() for path in (tmp_path / "web").rglob("*") if path.is_file()}
    assert {"index.html", "page/model.onnx", "page/parts.js", "page/onnxruntime-licence.txt"} <= names
    assert (tmp_path / "web" / "page" / "model.onnx").read_bytes() == MODEL
    text = (tmp_path / "web" / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'(?:src|href)="([^"#]+)"', text)) <= names
    assert "'unsafe-inline'" not in text and "http://" not in text and "https://" not in text


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_every_module_finds_what_it_imports(kind):
    modules = browser_page._load_modules(kind)
    for name, text in modules.items():
        for names, module in browser_page.IMPORT_NAMES.findall(text):
            exported = set(browser_page.EXPORT.findall(modules[module]))
            wanted = {one.split(" as ")[0].strip() for one in names.split(",")}
            assert wanted <= exported, f"{name} takes {wanted - exported} from {module}"


def test_modules_are_joined_in_the_order_of_their_imports():
    modules = {
        "a.js": 'import { two as b, one } from "./b.js";\nimport * as c from "./c.js";\n\nrun(b, one, c.three);',
        "b.js": 'import { three } from "./c.js";\nexport const one = three;\nexport function two() {}\nconst own = 1;',
        "c.js": "const x = 3;\nexport { x as three };\n//# sourceMappingURL=c.map",
    }
    script = bundle_modules("a.js", modules)
    assert [re.findall(r"^const (\$\w+) =", script, re.MULTILINE)] == [["$c_js", "$b_js", "$a_js"]]
    assert "const { two: b, one } = $b_js;" in script and "const c = $c_js;" in script
    assert "return { one: one, two: two };" in script and "return { three: x };" in script
    assert "import" not in script and "export" not in script and "sourceMapping" not in script


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ({"a.js": 'import { a } from "./a.js";'}, "import each other"),
        ({"a.js": 'import a from "./b.js";', "b.js": ""}, "a.js: "),
        ({"a.js": "const end = '</script>';"}, "would end within its HTML"),
    ],
)
def test_what_cannot_be_joined_is_noticed_when_the_page_is_written(modules, said):
    with pytest.raises(AssertionError, match=re.escape(said)):
        bundle_modules("a.js", modules)


def test_a_model_that_is_too_large_for_one_file_is_told_of_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(browser_page, "MAX_SINGLE_FILE_BYTES", 1000)
    with pytest.raises(UsageError, match=r"at most 1,000 bytes\. This one has 1,280: write a folder, --out .*model"):
        page().write(tmp_path / "model.html")
    page().write(tmp_path / "model")
    assert (tmp_path / "model" / "index.html").is_file()


@pytest.mark.parametrize(
    ("task", "decided", "expected"),
    [
        ("classification", "positive", {"thresholds": {"dog": 0.52}, "calibrated": True, "columns": []}),
        ("multilabel", "labels", {"thresholds": {"cat": 0.45, "dog": 0.5, "fish": 0.55}, "unlike": False}),
        ("regression", "nothing", {"columns": ["cat", "dog", "fish"], "classes": [], "calibrated": False}),
        ("classification", "unlike", {"unlike": True, "abstains_below": 0.36, "answered": "no", "decided_by": ""}),
        ("classification", "unsure", {"unlike": False, "answered": "unknown"}),
    ],
)
def test_the_page_knows_of_its_model_what_the_server_says(task, decided, expected):
    described = describe_for_page(member(task=task, decided=decided), "x", "")
    assert {name: described[name] for name in expected} == expected
    assert set(described["notes"]) == {"unsure", "unlike", "unknown"}


def test_an_anomaly_model_has_no_page_and_is_told_where_else():
    assert explain_no_page("anomaly").endswith("Export an anomaly model --to onnx, or serve it.")
    assert explain_no_page("regression") == ""
