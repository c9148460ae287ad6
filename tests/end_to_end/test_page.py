"""The web page in a real browser: pictures in, the server's answers out in words, maps that can be read."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from end_to_end.page_hands import visiting
from end_to_end.page_worlds import SIDE, World, findings, flower, maps_of, measures
from page_server import EMPTY, NO_PICTURE, PAGE, digest, serving

pytestmark = pytest.mark.needs_chromium


def one(world: World, place: int = 0) -> dict[str, bytes]:
    name = list(world.pictures)[place]
    return {name: world.pictures[name]}


def test_a_picture_that_is_chosen_is_answered_in_calibrated_words(served, hands):
    hands.pick(one(served))
    expect(hands.page.locator(".word")).to_have_text("0")
    expect(hands.page.locator(".promise")).to_have_text("Of 100 pictures answered like this, about 93 are “0”.")
    lit = hands.page.locator(".hundred .lit").get_attribute("d")
    assert lit.count("M") == 93
    expect(hands.page.locator(".bars .found .chance")).to_have_text("0.930")
    expect(hands.page.locator("#batch")).to_be_hidden()
    expect(hands.page.locator("#says")).to_have_text("digit-00.png: 0")


@pytest.mark.wide
def test_every_class_can_be_shown(served, hands):
    hands.pick(one(served))
    expect(hands.page.locator(".bars li")).to_have_count(5)
    hands.page.click("text=Show 5 more classes")
    expect(hands.page.locator(".bars li")).to_have_count(10)
    chances = [float(text) for text in hands.page.locator(".bars .chance").all_inner_texts()]
    assert chances == sorted(chances, reverse=True)
    assert sum(chances) == pytest.approx(1, abs=0.005)


def test_pictures_are_dropped(served, hands):
    carried = hands.carry(one(served) | one(served, 3))
    hands.page.dispatch_event("body", "dragover", {"dataTransfer": carried})
    expect(hands.page.locator("#intake")).to_have_class("over")
    hands.page.dispatch_event("body", "drop", {"dataTransfer": carried})
    hands.answered(2)
    expect(hands.page.locator("#intake")).not_to_have_class(re.compile("over"))
    expect(hands.row("digit-03.png").locator("td.answer")).to_have_text("3")


@pytest.mark.wide
def test_a_picture_is_pasted(served, hands):
    paste = "(files) => document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: files, bubbles: true }))"
    hands.page.evaluate(paste, hands.carry(one(served, 2)))
    expect(hands.page.locator(".word")).to_have_text("2")


@pytest.mark.wide
def test_the_camera_is_asked_only_when_its_button_is_pressed_and_let_go_afterwards(hands):
    dark = "!document.getElementById('film').srcObject"
    hands.until(dark)
    hands.page.click("#open-camera")
    expect(hands.page.locator("#take")).to_be_enabled()
    hands.page.keyboard.press("Escape")
    expect(hands.page.locator("#camera")).to_be_hidden()
    hands.until(dark)
    hands.page.click("#open-camera")
    hands.page.click("#take")  # waits until it is enabled
    hands.answered(1)
    expect(hands.page.locator("#detail-name")).to_have_text("camera-1.png")
    expect(hands.page.locator("#answer .stern")).to_have_text(NO_PICTURE["error"])  # nobody has recorded this one
    hands.until(dark)


def test_the_map_shows_the_patches_values_and_the_slider_its_strength(served, hands):
    picture = one(served)
    truth = served.recorded.maps[digest(*picture.values())]["relevance", ""]["values"]
    hands.pick(picture)
    hands.explained()
    row, column = 2, 2
    hands.point(row, column)
    said = hands.page.locator("#reading").inner_text()
    assert said.startswith(f"Row {row + 1}, column {column + 1}: ")
    assert float(said.split(": ")[1].split(",")[0]) == pytest.approx(truth[row][column], rel=1e-3)
    hands.page.mouse.move(0, 0)
    expect(hands.page.locator("#reading")).to_have_text("")
    strong = hands.colour(row, column)
    hands.page.fill("#opacity", "0")
    grey = round(truth[row][column] * 255)
    assert hands.colour(row, column) == [grey] * 3, "without a map the picture is as the model sees it"
    assert strong != [grey] * 3
    dark = min((value, place) for place, value in enumerate(truth[0]))[1]
    hands.page.fill("#opacity", "100")
    assert hands.colour(0, dark) == [0] * 3, "where the map is 0 the picture is untouched"


@pytest.mark.wide
def test_another_method_and_another_class_draw_other_maps(served, hands):
    hands.pick(one(served))
    hands.explained()
    of_answer = hands.colour(3, 2)
    hands.page.select_option("#target", "7")
    hands.explained("Evidence for 7")
    assert hands.colour(3, 2) != of_answer
    hands.page.select_option("#method", "integrated")
    hands.explained("integrated · ")
    hands.page.select_option("#method", "relevance")
    hands.explained()
    explanations = [path for path, _ in served.recorded.asked if path == "/explain"]
    assert len(explanations) == 3, "a map that is known is not asked for again"


@pytest.mark.wide
def test_a_method_that_is_blind_to_classes_takes_none_and_its_artefacts_are_not_coloured(served, hands):
    hands.pick(one(served))
    hands.explained()
    hands.page.select_option("#method", "attention")
    hands.explained("attention · ")
    expect(hands.page.locator("#target")).to_be_disabled()
    expect(hands.page.locator("#caption")).to_contain_text("Hatched: 2 patches whose value is not drawn.")
    hands.point(5, 1)
    expect(hands.page.locator("#reading")).to_contain_text("Row 6, column 2: holds notes of the model")


@pytest.mark.wide
def test_a_no_of_the_explanation_is_told_below_the_picture(served, hands):
    picture = one(served)
    del served.recorded.maps[digest(*picture.values())]["relevance", "7"]
    hands.pick(picture)
    hands.explained()
    hands.page.select_option("#target", "7")
    expect(hands.page.locator("#caption")).to_have_text(EMPTY["error"])
    expect(hands.page.locator("#plain")).to_be_visible()
    hands.page.select_option("#target", "8")
    hands.explained("Evidence for 8")


def test_what_is_not_answered_says_why_in_sentences(served, hands):
    hands.pick(one(served, -2))
    expect(hands.page.locator(".word")).to_have_text("Not sure enough to answer")
    expect(hands.page.locator(".notes")).to_contain_text("No class reaches 0.5.")
    expect(hands.page.locator(".notes")).to_contain_text("A person should look at this picture.")
    expect(hands.page.locator(".promise")).to_contain_text("about 41 are “0”")
    hands.pick(one(served, -1))
    expect(hands.page.locator(".word")).to_have_text("Unlike the training pictures")
    expect(hands.page.locator("#answer")).to_contain_text("here they promise nothing")
    expect(hands.page.locator(".promise")).to_have_count(0)


@pytest.mark.wide
def test_labels_have_bars_with_their_thresholds(browser):
    world = findings()
    with serving(world.recorded) as recorded, visiting(browser, recorded.url) as hands:
        hands.pick(world.pictures)
        hands.answered(2)
        expect(hands.page.locator(".word")).to_have_text("crack · inactive, dark")
        promises = hands.page.locator(".promise").all_inner_texts()
        assert promises[0] == "Of 100 pictures answered like this, about 71 show “crack”."
        assert promises[1].endswith("about 56 show “inactive, dark”.")
        bars = hands.page.locator(".bars li").all_inner_texts()
        assert [bar.splitlines()[0] for bar in bars] == ["crack", "inactive, dark", "dust", "=scratch"]
        assert "threshold 0.800" in bars[2]
        expect(hands.page.locator(".bars .found")).to_have_count(2)
        mark = hands.page.locator(".bars i").nth(2).bounding_box()
        track = hands.page.locator(".track").nth(2).bounding_box()
        assert mark["x"] + 1 - track["x"] == pytest.approx(0.8 * track["width"], abs=1)
        expect(hands.page.locator("thead th.n")).to_have_text("Highest")
        expect(hands.row("cell 0.png").locator("td.n")).to_have_text("0.790")
        hands.row("cell 1.png").click()
        expect(hands.page.locator(".word")).to_have_text("None of the 4 labels")
        assert hands.saved() == world.table.csv_bytes()


@pytest.mark.wide
def test_numbers_have_units_and_ranges(browser):
    world = measures()
    with serving(world.recorded) as recorded, visiting(browser, recorded.url) as hands:
        hands.pick(world.pictures)
        hands.answered(3)
        first, second = (told.splitlines() for told in hands.page.locator(".values dd").all_inner_texts())
        assert first == ["171.3 cm", "between 170.3 and 172.3 cm"]
        assert second[0] == "1.00e-7"
        heads = hands.page.locator("thead th").all_inner_texts()
        assert [head.split("\n")[0].strip(" ↕") for head in heads[1:3]] == ["height, cm", "weight"]
        expect(hands.row("-1.png").locator("td.n").nth(1)).to_have_text("65,012")
        hands.explained("Evidence for height (cm)")
        hands.page.select_option("#target", "weight")
        hands.explained("Evidence for weight")
        assert hands.saved() == world.table.csv_bytes()


@pytest.mark.wide
def test_scores_that_are_not_calibrated_promise_nothing(served, browser):
    served.recorded.about["calibrated"] = False
    with visiting(browser, served.recorded.url) as hands:
        hands.pick(one(served))
        expect(hands.page.locator(".promise")).to_contain_text("Score 0.930 for “0”")
        expect(hands.page.locator(".hundred")).to_have_count(0)
        expect(hands.page.locator("#answer h3")).to_have_text("Scores")


@pytest.mark.wide
def test_a_kind_that_browsers_cannot_show_is_drawn_by_the_server(served, hands):
    film, body = flower("TIFF"), next(iter(served.pictures.values()))
    served.recorded.rows[digest(film)] = served.recorded.rows[digest(body)]
    served.recorded.maps[digest(film)] = maps_of(film, served.recorded.about)
    hands.pick(one(served) | {"film.tif": film})
    hands.answered(2)
    expect(hands.row("film.tif").locator("img.thumb")).to_have_attribute("src", re.compile("^data:image/png"))
    expect(hands.row("digit-00.png").locator("img.thumb")).to_have_attribute("src", re.compile("^blob:"))


@pytest.mark.wide
def test_the_whole_page_is_done_by_keyboard_alone(served, hands):
    page = hands.page
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()  # a moment later than the key
    hands.tab_to("#choose")
    names = list(served.pictures)[:3]
    files = [{"name": name, "mimeType": "image/png", "buffer": served.pictures[name]} for name in names]
    hands.open_chooser("Enter").set_files(files)
    hands.answered(3)
    hands.explained()
    hands.tab_to("#map")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#reading")).to_contain_text("the strongest patch")
    before = page.locator("#reading").inner_text()
    page.keyboard.press("ArrowRight")
    assert page.locator("#reading").inner_text() != before
    page.keyboard.press("Escape")
    expect(page.locator("#reading")).to_have_text("")
    hands.tab_to("#method")
    page.keyboard.press("ArrowDown")
    hands.explained("integrated · ")
    hands.tab_to("#opacity")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#opacity")).to_have_value("70")
    hands.tab_to("thead button")
    page.keyboard.press("Enter")
    hands.tab_to("button.name")
    page.keyboard.press("End")
    page.keyboard.press("ArrowUp")
    expect(page.locator("button.name").nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#detail-name")).to_have_text(names[1])
    hands.tab_to("summary")
    page.keyboard.press("Enter")
    expect(page.locator("#facts")).to_contain_text(f"{SIDE} × {SIDE} pixels, grey")
    page.keyboard.press("Escape")
    expect(page.locator("#facts")).to_be_hidden()


def test_no_file_of_the_page_names_another_place_or_holds_what_its_policy_forbids():
    for path in PAGE.iterdir():
        text = path.read_text(encoding="utf-8")
        places = set(re.findall(r"https?://[^\s\"'<]+", text)) - {"http://www.w3.org/2000/svg", "http://HOST/predict"}
        assert not places, path.name
        assert text.count("\n") <= 350, path.name
        if path.suffix == ".html":
            assert not re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*src=)", text)
