"""`vitrail export --to web` as a person would type it, and the page that comes of it in a browser without a network."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from playwright.sync_api import expect

from end_to_end.page_hands import Hands
from end_to_end.test_wrong_inputs import sentence
from vitrail.export import browser_proof

pytestmark = pytest.mark.wide
RUNTIME = os.environ.get("VITRAIL_ONNXRUNTIME_WEB", "")


@pytest.fixture
def run(run_folder, tmp_path):
    """A copy that may be written to."""
    return shutil.copytree(run_folder, tmp_path / "run")


@pytest.mark.needs_chromium
@pytest.mark.needs_onnxruntime_web
def test_one_file_is_proved_on_the_run_s_own_pictures(vitrail, run):
    answer = vitrail("export", run, "--to", "web", "--runtime", RUNTIME, "--prove", "--json")
    assert answer.code == 0, answer.err
    said = json.loads(answer.out)
    assert said["path"] == str(run / "exports" / "model.html") and said["browser"]["exact"]["num_changed"] == 0
    assert said["browser"]["exact"]["difference"] < 1e-4 and said["browser"]["exact"]["num_images"] >= 2
    assert any(note.startswith("proved in Chromium ") and "own test split" in note for note in said["notes"])


@pytest.mark.needs_chromium
@pytest.mark.needs_onnxruntime_web
def test_the_page_answers_from_disk_explains_and_saves_what_predict_writes(vitrail, browser, run, flowers, tmp_path):
    out = tmp_path / "flowers.html"
    assert vitrail("export", run, "--to", "web", "--runtime", RUNTIME, "--out", out).code == 0
    context = browser.new_context(offline=True, accept_downloads=True)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.goto(out.as_uri())
    expect(page.locator("#limits")).to_have_text(
        "JPEG, PNG, WebP, BMP, GIF and NPY. They stay in this browser: nothing is sent anywhere."
    )
    said = (
        "on the processor, in one thread: a page from the disk has no more. Not on a graphics processor: a page in one"
    )
    expect(page.locator("dt:text-is('Computed') + dd")).to_contain_text(said)
    hands = Hands(page)
    pictures = {f"{path.parent.name}-{path.name}": path.read_bytes() for path in sorted(flowers.rglob("*.png"))}
    hands.pick({**pictures, "notes.txt": b"no picture"})
    hands.answered(len(pictures) + 1)
    hands.explained("occlusion · pixels, a patch covered at a time.")
    expect(hands.row("notes.txt")).to_contain_text("not a picture this page reads")
    saved = hands.saved().decode()
    context.close()
    assert not wrong
    folder = tmp_path / "named"
    folder.mkdir()
    for name, data in pictures.items():
        (folder / name).write_bytes(data)
    assert vitrail("predict", run, folder, "--to", tmp_path / "ours.csv").code == 0
    ours = (tmp_path / "ours.csv").read_text().replace(f"{folder}/", "")
    theirs, expected_rows = ([line.split(",") for line in text.splitlines()] for text in (saved, ours))
    assert [row[:5] for row in theirs] == [row[:5] for row in expected_rows]
    for one, other in zip(theirs[1:], expected_rows[1:], strict=True):
        assert [float(cell) for cell in one[5:-1]] == pytest.approx([float(cell) for cell in other[5:-1]], abs=1e-5)


@pytest.mark.needs_chromium
@pytest.mark.needs_onnxruntime_web
@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_a_folder_is_proved_and_says_how_it_is_served(vitrail, run, tmp_path, precision):
    out = tmp_path / "web"
    words = ("--runtime", RUNTIME, "--prove", "--precision", precision, "--force")
    answer = vitrail("export", run, "--to", "web", "--out", out, *(words if precision != "float32" else words[:-1]))
    assert answer.code == 0, answer.err
    assert f"such as: python -m http.server --directory {out}" in answer.out and "proved in Chromium" in answer.out
    assert (out / "index.html").is_file() and (out / "page" / "model.onnx").is_file()


@pytest.mark.needs_chromium
@pytest.mark.needs_onnxruntime_web
def test_a_folder_says_its_engine_takes_threads_and_opens_again_without_its_server(
    vitrail, browser, run, flowers, tmp_path
):
    out = tmp_path / "web"
    assert vitrail("export", run, "--to", "web", "--runtime", RUNTIME, "--out", out).code == 0
    picture = next(flowers.rglob("*.png"))
    computed = "dt:text-is('Computed') + dd"
    with browser.new_context() as threads, browser.new_context(service_workers="block") as plain:
        with browser_proof._open_address(out) as address:
            page, alone = threads.new_page(), plain.new_page()
            for tab in (page, alone):
                tab.goto(address)
                expect(tab.locator("#limits")).to_contain_text("nothing is sent anywhere")
            assert page.evaluate("crossOriginIsolated") and not alone.evaluate("crossOriginIsolated")
            said = f"on the processor, in {min(4, os.cpu_count() or 1)} thread"
            expect(page.locator(computed)).to_contain_text(said)
            expect(page.locator(computed)).to_contain_text("Not on a graphics processor: this browser ")
            expect(alone.locator(computed)).to_contain_text("in one thread: more need https, or the headers COOP and")
        again = threads.new_page()
        again.goto(address)  # its server is gone
        expect(again.locator("#limits")).to_contain_text("nothing is sent anywhere")
        Hands(again).pick({picture.name: picture.read_bytes(), "again.png": picture.read_bytes()})
        Hands(again).answered(2)
        expect(again.locator("tr.failed")).to_have_count(0)


@pytest.mark.needs_onnxruntime_web
def test_without_a_browser_a_page_is_kept_and_called_unproved(vitrail, run, monkeypatch):
    monkeypatch.setattr(browser_proof, "CHROMIUM_NAMES", ("no-such-browser",))
    answer = vitrail("export", run, "--to", "web", "--runtime", RUNTIME)
    assert answer.code == 0, answer.err
    said = "not proved in a browser, which needs Chromium (apt-get install chromium); then --prove does"
    assert answer.out.splitlines()[-1].strip() == said
    assert (run / "exports" / "model.html").is_file()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "A web page answers with onnxruntime-web@1.30.0, which is not part of Vitrail. Name its file with"),
        (("--runtime", "none.tgz"), 2, "The file of onnxruntime-web@1.30.0 is needed at none.tgz."),
        (("--runtime", "none.tgz", "--fetch"), 2, "either read from a file or downloaded."),
        (("--runtime", __file__), 4, "is not onnxruntime-web@1.30.0: its SHA-256 must be"),
        (("--fetch",), 5, "cannot be downloaded from http://127.0.0.1:9"),
        (("--fetch", "--resize"), 2, "A web page resizes pictures by itself, as the run does. Leave out --resize."),
        (("--fetch", "--precision", "bf16"), 2, "onnx files compute in float32, int8, float16, and not in bf16."),
        (("--fetch", "--prove"), 2, "A page is proved in a browser, which needs Chromium (apt-get install chromium)."),
    ],
)
def test_what_cannot_become_a_page_is_said_in_a_sentence(vitrail, run, monkeypatch, words, code, said):
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    monkeypatch.setattr(browser_proof, "CHROMIUM_NAMES", ("no-such-browser",))
    assert said in sentence(vitrail("export", run, "--to", "web", *words), code)
    assert not (run / "exports").exists()


def test_options_of_pages_are_for_pages_and_a_page_that_is_there_is_kept(vitrail, run, tmp_path):
    said = sentence(vitrail("export", run, "--to", "pt2", "--prove"), 2)
    assert said == "--runtime, --fetch and --prove are for web, whose pages run in a browser. Got --to pt2."
    (tmp_path / "mine.html").write_text("mine")
    answer = vitrail("export", run, "--to", "web", "--out", tmp_path / "mine.html", "--fetch")
    assert "mine.html exists already and is not overwritten." in sentence(answer, 2)
    assert (tmp_path / "mine.html").read_text() == "mine"
