"""Many pictures on the web page: a few a request, a table, a file, and what goes wrong on the way."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from end_to_end.page_hands import visiting
from page_server import NO_PICTURE, NO_TOKEN, digest

pytestmark = pytest.mark.needs_chromium

UNNAMED = """() => [...document.querySelectorAll("button, input, select, canvas[tabindex]")]
    .filter(one => one.checkVisibility())
    .filter(one => !(one.innerText || one.getAttribute("aria-label") || one.labels?.[0]?.innerText))
    .map(one => one.outerHTML)"""
TOO_WIDE = """() => [...document.querySelectorAll("body *")]
    .filter(one => one.checkVisibility() && !one.closest(".unseen, .skip, #scroller"))
    .filter(one => one.getBoundingClientRect().right > innerWidth + 0.5)
    .map(one => one.outerHTML.slice(0, 120))"""


def test_twelve_pictures_are_asked_about_a_few_at_a_time_and_saved_as_predict_saves_them(served, hands):
    hands.pick(served.pictures)
    hands.answered(12)
    assert [count for path, count in served.recorded.asked if path == "/predict"] == [4, 4, 4]
    expect(hands.page.locator("#going")).to_be_hidden()
    expect(hands.page.locator("#says")).to_have_text("12 of 12 done. 2 need a person.")
    labels = hands.page.locator("td.answer").evaluate_all("cells => cells.map(cell => cell.firstChild.data)")
    assert labels == [str(place % 10) for place in range(12)]
    assert hands.saved() == served.table.csv_bytes()


@pytest.mark.wide
def test_the_table_is_sorted_by_any_column_and_narrowed_to_those_that_need_a_person(served, hands):
    hands.pick(served.pictures)
    hands.answered(12)
    first = "tbody tr:first-child"
    hands.page.click("thead th.n button")
    expect(hands.page.locator(f"{first} td.n")).to_have_text("0.410")
    expect(hands.page.locator("thead th.n")).to_have_attribute("aria-sort", "ascending")
    hands.page.click("thead th.n button")
    expect(hands.page.locator(f"{first} td.n")).to_have_text("0.930")
    hands.page.click("thead th.needs button")
    expect(hands.page.locator(f"{first} td.needs")).to_have_text("not sure enough")
    expect(hands.page.locator("#only-count")).to_have_text("(2)")
    hands.page.check("#only")
    expect(hands.page.locator("tbody tr")).to_have_count(2)
    hands.page.uncheck("#only")
    expect(hands.page.locator("tbody tr")).to_have_count(12)


@pytest.mark.wide
def test_one_bad_file_of_three_says_why_and_the_others_go_on(served, hands):
    names = list(served.pictures)
    bad = b"no picture"
    hands.pick({names[0]: served.pictures[names[0]], "notes.txt": bad, names[1]: served.pictures[names[1]]})
    hands.answered(3)
    expect(hands.row("notes.txt")).to_have_class("failed")
    expect(hands.row("notes.txt").locator("td.answer")).to_have_text(NO_PICTURE["error"])
    expect(hands.row(names[1]).locator("td.answer")).to_have_text("1")
    expect(hands.page.locator("#left-out")).to_have_text("1 picture without an answer will not be in the file.")
    assert hands.saved().count(b"\n") == 3
    hands.row("notes.txt").click()
    expect(hands.page.locator("#answer .stern")).to_have_text(NO_PICTURE["error"])
    served.recorded.rows[digest(bad)] = served.recorded.rows[digest(served.pictures[names[5]])]
    hands.page.click("text=Try again")
    expect(hands.page.locator(".word")).to_have_text("5")
    expect(hands.page.locator("#left-out")).to_have_text("")


@pytest.mark.wide
def test_a_file_that_is_too_large_is_not_sent(served, hands):
    hands.pick({"large.png": bytes(2 * 2**20)})
    expect(hands.page.locator("#answer .stern")).to_have_text(
        "This file has 2 MiB, and the server takes at most 1 MiB."
    )
    assert not served.recorded.asked


@pytest.mark.wide
def test_a_busy_server_is_asked_again_when_it_says_so(served, hands):
    served.recorded.busy = 1
    hands.pick(served.pictures)
    expect(hands.page.locator("#progress-says")).to_have_text("The server is busy: next try in 1 s.")
    hands.answered(12)
    assert [count for path, count in served.recorded.asked if path == "/predict"] == [4, 4, 4, 4]


@pytest.mark.wide
def test_what_is_under_way_can_be_stopped_and_go_on(served, hands):
    served.recorded.gate.clear()
    hands.pick(served.pictures)
    expect(hands.page.locator("#progress-says")).to_have_text("0 of 12 done")
    hands.page.click("#stop")
    expect(hands.page.locator("#progress-says")).to_have_text("Stopped. 12 pictures were not asked about.")
    served.recorded.gate.set()
    hands.page.click("#go-on")
    hands.answered(12)
    expect(hands.page.locator("#going")).to_be_hidden()


@pytest.mark.wide
def test_a_server_that_is_gone_is_said_and_nothing_is_lost(served, hands):
    hands.page.context.set_offline(True)
    hands.pick(served.pictures)
    expect(hands.page.locator("#progress-says")).to_contain_text("The server does not answer.")
    hands.page.context.set_offline(False)
    hands.page.click("#go-on")
    hands.answered(12)


@pytest.mark.wide
def test_pictures_that_are_removed_leave_nothing_behind(served, hands):
    served.recorded.gate.clear()
    hands.pick(served.pictures)
    hands.page.click("#clear")
    expect(hands.page.locator("#detail")).to_be_hidden()
    expect(hands.page.locator("#batch")).to_be_hidden()
    served.recorded.gate.set()
    name = list(served.pictures)[4]
    hands.pick({name: served.pictures[name]})
    expect(hands.page.locator(".word")).to_have_text("4")
    expect(hands.page.locator("tbody tr")).to_have_count(1)


def test_a_token_is_asked_for_refused_and_taken(served, browser):
    served.recorded.token = "a-long-and-secret-token"
    with visiting(browser, served.recorded.url) as hands:
        expect(hands.page.locator("#ask-token")).to_be_visible()
        hands.page.fill("#token", "wrong")
        hands.page.click("text=Use it")
        expect(hands.page.locator("#ask-token")).to_be_hidden()
        hands.pick(served.pictures)
        expect(hands.page.locator("#token-says")).to_have_text(NO_TOKEN["error"])
        expect(hands.page.locator("tr.failed")).to_have_count(0)
        hands.page.fill("#token", served.recorded.token)
        hands.page.keyboard.press("Enter")
        hands.answered(12)
        hands.explained()
        expect(hands.page.locator("#ask-token")).to_be_hidden()


@pytest.mark.wide
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_window(served, browser, width, tmp_path):
    long = "a-film-with-a-name-that-never-ends-" * 4 + ".png"
    name = next(iter(served.pictures))
    with visiting(browser, served.recorded.url, width) as hands:
        assert hands.page.evaluate("document.documentElement.scrollWidth") <= width
        hands.page.screenshot(path=tmp_path / f"empty-{width}.png", full_page=True)
        hands.pick({long: served.pictures[name]} | dict(list(served.pictures.items())[1:]) | {"notes.txt": b"none"})
        hands.answered(13)
        hands.explained()
        hands.page.click("#about summary")
        assert hands.page.evaluate("document.documentElement.scrollWidth") <= width
        assert not hands.page.evaluate(TOO_WIDE)
        scroller = hands.page.locator("#scroller")
        assert scroller.evaluate("one => one.scrollWidth - one.clientWidth") == 0, "the table fits as well"
        assert not hands.page.evaluate(UNNAMED)
        hands.page.screenshot(path=tmp_path / f"batch-{width}.png", full_page=True)


@pytest.mark.wide
def test_dark_still_and_printed_pages_are_cared_for(served, hands):
    page = hands.page
    hands.pick(served.pictures)
    hands.answered(12)
    hands.explained()
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(253, 252, 250)"
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    assert page.evaluate(background) == "rgb(23, 24, 28)"
    assert page.evaluate("getComputedStyle(document.querySelector('.track b')).animationName") == "none"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    expect(page.locator("#intake")).to_be_hidden()
    expect(page.locator("#controls")).to_be_hidden()
    for shown in ("#map", ".word", "tbody tr:last-child", "thead th.n button"):
        expect(page.locator(shown).first).to_be_visible()
    height = page.locator("#scroller").evaluate("one => [one.scrollHeight, one.clientHeight]")
    assert height[0] == height[1], "on paper the whole table is there"


@pytest.mark.wide
def test_a_page_whose_server_is_gone_says_so(served, browser):
    with visiting(browser, served.recorded.url) as hands:
        hands.page.route(re.compile("/about$"), lambda route: route.abort())
        hands.page.reload()
        expect(hands.page.locator("#trouble")).to_contain_text("The server does not answer.")


@pytest.mark.wide
def test_numbers_in_the_file_have_the_digits_that_python_gives_them(hands):
    rng = np.random.default_rng(0)
    drawn = (rng.standard_normal(3000) * 10.0 ** rng.uniform(-12, 12, 3000)).astype(np.float32)
    halves = np.array([123456.0625, 123456.1875, -123457.0625, 0.1, 1e9, 123456789.5, 1e-5, 9.999999995e-5])
    values = [*drawn.astype(float).tolist(), *halves.tolist()]
    write = "async values => { const { digits } = await import('/page/csv.js'); return values.map(digits); }"
    assert hands.page.evaluate(write, values) == [f"{value:.9g}" for value in values]
