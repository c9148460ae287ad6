"""The page's chooser: what a decision costs follows the slider, and the pictures are answered by the chosen one."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

import vitrail
from end_to_end.page_hands import visiting
from served import serving
from stored_runs import store_run
from vitrail.services.deciding import DecisionRequest, decide

pytestmark = [pytest.mark.needs_chromium, pytest.mark.wide]


def picture() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (12, 8), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def cells(hands, row: int) -> list[str]:
    return hands.page.locator("#cost-rows tr").nth(row).locator("td").all_inner_texts()


def counted(cell: str) -> tuple[int, int]:
    found = re.match(r"(\d+) of (\d+): ", cell)
    assert found, cell
    return int(found[1]), int(found[2])


def test_costs_follow_the_slider_and_pictures_the_chosen_decision(browser, tmp_path):
    run = store_run(tmp_path / "run")
    chance = vitrail.open(run).predict([picture()]).records()[0]["prob_defect"]
    decide(run, DecisionRequest(at={"defect": round(chance + 0.01, 3)}), keep="high", by="A. Meier", use="high")
    decide(run, DecisionRequest(at={"defect": round(chance - 0.01, 3)}), keep="low")
    decide(run, DecisionRequest(prevalence={"defect": 0.05}, rule="cost 9", positive="defect"), keep="rare")
    asked = []
    with serving(run, "--workers", 1, "--threads", 1, "--device", "cpu") as server:
        address = f"http://127.0.0.1:{server.port}"
        with visiting(browser, address) as hands:
            hands.page.on("request", lambda request: asked.append(request.url))
            hands.pick({"a.png": picture()})
            expect(hands.page.locator(".word")).to_have_text("sound")
            expect(hands.page.locator("#answer .notes")).to_contain_text("Answered by the decision high.")
            hands.page.click("#deciding summary")
            expect(hands.page.locator("#cost-rows tr")).to_have_count(2)
            expect(hands.page.locator("#decision-says")).to_contain_text("kept by A. Meier")
            for name in ("", "low", "rare"):
                hands.page.select_option("#decision", name)
                label = decide(run, DecisionRequest(), use=name or "high").splits["val"].old.labels[0]
                misses, alarms = (counted(cell) for cell in cells(hands, 0)[1:])
                assert misses == (label.misses, label.positives) and alarms == (label.false_alarms, label.negatives)
            hands.page.fill("#threshold", "0.2")
            moved = decide(run, DecisionRequest(at={"defect": 0.2}, prevalence={"defect": 0.05})).splits["val"].new
            errors = [moved.labels[0].misses, moved.labels[0].false_alarms]
            assert [counted(cell)[0] for cell in cells(hands, 1)[1:]] == errors
            expect(hands.page.locator("#decision-command")).to_have_text(
                "vitrail decide RUN --at defect=0.2 --prevalence defect=0.05 --keep NAME --use NAME"
            )
            hands.page.select_option("#decision", "low")
            expect(hands.page.locator(".word")).to_have_text("defect")
            before = len(asked)
            hands.page.focus("#threshold")
            hands.page.keyboard.press("Home")
            assert counted(cells(hands, 1)[1])[0] == 0 and cells(hands, 1)[0] == "0.000"
            for _ in range(3):
                hands.page.keyboard.press("ArrowRight")
            assert cells(hands, 1)[0] == "0.003"
            hands.page.keyboard.press("End")
            misses, alarms = (counted(cell) for cell in cells(hands, 1)[1:])
            assert misses[0] == misses[1] and alarms[0] == 0
            hands.page.fill("#threshold", "0.3")
            result = decide(run, DecisionRequest(at={"defect": 0.3}))
            label = result.splits["val"].new.labels[0]
            assert [counted(cell)[0] for cell in cells(hands, 1)[1:]] == [label.misses, label.false_alarms]
            text = cells(hands, 1)[1]
            low, high = label.sensitivity.interval
            assert f"({100 - 100 * high:.1f} to {100 - 100 * low:.1f})" in text
            expect(hands.page.locator("#decision-command")).to_have_text(
                "vitrail decide RUN --at defect=0.3 --keep NAME --use NAME"
            )
            assert len(asked) == before, "the slider asks the server for nothing"
            assert sum(url.endswith("/decisions") for url in asked) == 1
            assert {url.split("/")[2] for url in asked} == {address.split("/")[2]}
