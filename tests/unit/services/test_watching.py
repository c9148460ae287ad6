"""`vitrail watch` from a run to its page: days of files, manifests and logs, labels that come later, wrong inputs."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from good_parts import draw_part, draw_parts, save_weights
from quick_fits import LEARNING, digits, threads_kept  # noqa: F401 - a fixture
from unit.report.test_page import Balanced
from vitrail.cli.main import main
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.drift import WatchReport
from vitrail.services import watching

SINCE = "2026-11-01"
DAYS, PER_DAY, CHANGED = 8, 15, 4
SETTINGS = {**LEARNING["settings"], "data.val_fraction": 0.1, "data.test_fraction": 0.5}


def write_images(folder: Path, images: np.ndarray, days: int = DAYS, changed: int = CHANGED) -> list[Path]:
    """So many images a day; from one day on they are darker."""
    folder.mkdir(parents=True)
    paths = []
    for number, image in enumerate(images[: days * PER_DAY]):
        day = number // PER_DAY
        paths.append(folder / f"{number:03d}.png")
        Image.fromarray((image * (0.5 if day >= changed else 1)).astype(np.uint8)).save(paths[-1])
        time = (datetime(2026, 11, 1, 9) + timedelta(days=day, minutes=number % PER_DAY)).timestamp()
        os.utime(paths[-1], (time, time))
    return paths


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of digits, and a stream of them that becomes darker, as files, a manifest and labels."""
    import torch

    threads = torch.get_num_threads()
    folder = tmp_path_factory.mktemp("watched")
    vitrail.fit("digits", steps=60, device="cpu", out=folder / "run", settings=SETTINGS, quiet=True)
    torch.set_num_threads(threads)
    images, targets = digits(1797)
    order = np.random.default_rng(0).permutation(1797)
    paths = write_images(folder / "stream", images[order])
    taken = [datetime.fromtimestamp(path.stat().st_mtime).date().isoformat() for path in paths]
    names = [f"stream/{path.name}" for path in paths]
    labels = targets[order].astype(str).tolist()
    lots = [f"l{number // 3}" for number in range(len(names))]
    write_table(folder / "stream.csv", [("path", "taken", "lot"), *zip(names, taken, lots, strict=True)])
    write_table(folder / "labels.csv", [("path", "label"), *zip(names, labels[: len(names)], strict=True)])
    return folder


def write_table(path: Path, rows: list[tuple[str, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


@pytest.fixture(autouse=True)
def at_the_desk(world, monkeypatch):
    monkeypatch.chdir(world)


def dates(report: WatchReport) -> list[str]:
    return [day.date for day in report.days if day.alarms]


def test_darker_images_are_noticed_and_the_page_shows_them(world, capsys):
    assert main(["watch", "run", "stream", "--since", SINCE, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [day["n"] for day in found["days"]] == [PER_DAY] * DAYS
    alarms = [day["date"] for day in found["days"] if day.get("alarms")]
    assert alarms and f"2026-11-{CHANGED + 1:02d}" <= alarms[0] <= f"2026-11-{CHANGED + 2:02d}"
    page = Path(found["page"]).read_text(encoding="utf-8")
    reader = Balanced()
    reader.feed(page)
    assert reader.open == [] and "{{" not in page and not re.search(r"<script|<link|https?://|\son[a-z]+=", page)
    assert page.count("data:image/png;base64") >= 10 and alarms[0] in page and str(world) not in page
    assert "at most 0.1 false alarms in 30 days" in page


def test_scores_are_computed_once(world, monkeypatch):
    run = vitrail.open("run")
    first = run.watch("stream", SINCE)
    (kept,) = (world / "run" / "watch").glob("scores-*.jsonl")
    lines = kept.read_text().splitlines()
    assert len(lines) == len({json.loads(line)["image"] for line in lines}) >= DAYS * PER_DAY

    def refuse(*_: object) -> None:
        raise AssertionError("an image is computed again")

    monkeypatch.setattr(watching, "predict_labelled_batches", refuse)
    assert vitrail.open("run").watch(["stream"], since=datetime(2026, 11, 1).date()) == first


def test_a_manifest_has_its_days_and_groups(world):
    run = vitrail.open("run")
    alone = run.watch("stream.csv", SINCE, date="taken")
    files = run.watch("stream", SINCE)
    assert [(day.date, day.n) for day in alone.days] == [(day.date, day.n) for day in files.days]
    assert not alone.grouped
    grouped = run.watch(["stream.csv"], SINCE, group="lot")  # taken is found by its name
    assert grouped.grouped and {day.counted for day in grouped.days} == {PER_DAY // 3}
    assert "if groups come as those of the reference did" in grouped.promise()
    later = run.watch("stream", "2026-11-05")
    assert later.days[0].date == "2026-11-05" and len(later.days) == DAYS - 4


def test_days_that_are_normal_are_what_later_ones_are_compared_with(world):
    run = vitrail.open("run")
    normal = run.watch("stream", f"2026-11-{CHANGED + 1:02d}", normal_until=f"2026-11-{CHANGED + 2:02d}")
    assert not dates(normal) and len(normal.days) == 2 and normal.since == f"2026-11-{CHANGED + 3:02d}"
    assert normal.reference == f"30 pictures from 2026-11-{CHANGED + 1:02d} to 2026-11-{CHANGED + 2:02d}"


def test_labels_that_come_later_give_the_performance_with_its_interval(world, tmp_path):
    lines = (world / "labels.csv").read_text().splitlines(keepends=True)
    (world / "some.csv").write_text("".join(lines[:61]))
    report = vitrail.open("run").watch("stream", SINCE, labels="some.csv", out=tmp_path / "page.html")
    assert re.match(
        r"Accuracy on 60 pictures \(all\): [\d.]+% \(95 % interval [\d.]+% to [\d.]+%\)\.$", report.performance
    )
    assert "held-out pictures (test)" in report.held_out_performance and report.months is None
    assert report.performance in report.table() and report.performance in (tmp_path / "page.html").read_text()


def test_a_log_of_scores_is_watched_as_the_images_are(world, tmp_path):
    from vitrail.evaluate.score_log import format_score_lines

    run, paths = vitrail.open("run"), sorted((world / "stream").iterdir())
    table, lines = run.predict(paths), []
    for row, path in enumerate(paths):
        one = vitrail.open("run").predictor.predict([path]) if row < 2 else None
        time = datetime.fromtimestamp(path.stat().st_mtime).isoformat()
        texts = list(format_score_lines(table, table.ids, time))
        assert one is None or json.loads(texts[row])["unlike"] == pytest.approx(one.distances[0], rel=1e-4)
        lines.append(texts[row])
    log = tmp_path / "server.jsonl"
    log.write_text("\n".join(lines) + "\n")
    logged, filed = run.watch(log, SINCE), run.watch("stream", SINCE)
    assert [(day.date, day.n, day.unlike) for day in logged.days] == [(d.date, d.n, d.unlike) for d in filed.days]
    assert abs(len(dates(logged)) - len(dates(filed))) <= 1  # ties are broken by names
    labelled = run.watch(log, SINCE, labels="labels.csv")
    assert "on 120 pictures" in labelled.performance
    decided = lines[0].replace('"decision": ""', '"decision": "high"')
    log.write_text("\n".join([decided, *lines[1:]]) + "\n")
    with pytest.warns(UserWarning, match=r"1 answer of .*server\.jsonl were given by another decision"):
        assert sum(day.n for day in run.watch(log, SINCE).days) == DAYS * PER_DAY - 1


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["stream"], 2, "--since is missing"),
        (["stream", "--since", "yesterday"], 2, "--since takes a day such as 2026-11-28. Got 'yesterday'."),
        (["stream", "--since", "2031-01-01"], 3, "No picture of stream is of 2031-01-01 or later."),
        (["nowhere", "--since", SINCE], 3, "There is no picture, folder, pattern or @list at nowhere."),
        (["--since", SINCE], 2, "PATHS are missing"),
        (["stream", "--since", SINCE, "--alarms", "0"], 2, "--alarms is the number of false alarms in 30 days"),
        (["stream", "--since", SINCE, "--alarms", "nan"], 2, "alarms"),
        (["stream", "--since", SINCE, "--group", "lot"], 2, "--group lot is a column of a manifest"),
        (["stream.csv", "--since", SINCE, "--date", "when"], 3, "stream.csv has no column 'when'."),
        (["stream.csv", "--since", SINCE, "--date", "lot"], 3, "stream.csv, line 2: column 'lot' must hold days"),
        (["labels.csv", "--since", SINCE], 3, "No column of labels.csv is called date."),
        (["stream", "--since", SINCE, "--labels", "other.csv"], 3, "and none of them is in the stream"),
        (["stream", "--since", SINCE, "--normal-until", "2026-10-01"], 2, "lies before --since"),
        (["stream", "--since", SINCE, "--normal-until", "2027-10-01"], 3, "There is no picture after --normal-until"),
        (["broken", "--since", SINCE], 3, "--skip-bad"),
        (["log.jsonl", "--since", SINCE], 3, "The log is of another model"),
    ],
)  # fmt: skip
def test_wrong_inputs_get_one_sentence(world, words, code, sentence, capsys):
    (world / "broken").mkdir(exist_ok=True)
    (world / "broken" / "a.png").write_bytes(b"no picture")
    (world / "other").mkdir(exist_ok=True)
    shutil.copy(world / "stream" / "000.png", world / "other" / "x.png")
    write_table(world / "other.csv", [("path", "label"), ("other/x.png", "1")])
    row = {
        "time": "2026-11-02T10:00:00",
        "image": "a",
        "unlike": 1.0,
        "scores": {"x": 1.0},
        "abstain": "",
        "decision": "",
    }
    (world / "log.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["watch", "run", *words]) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert sentence in lines[-1] and "Traceback" not in "".join(lines)


def test_what_has_no_held_out_images_or_no_day_is_refused_in_python(world):
    with pytest.raises(UsageError, match="images must be a path or a list of values"):
        vitrail.open("run").watch([np.zeros((8, 8), np.uint8)], SINCE)  # type: ignore[list-item]
    with pytest.raises(UsageError, match="run/model is not a run folder"):
        vitrail.open("run/model").watch("stream", SINCE)
    with pytest.raises(UsageError, match=r"^since= takes a day such as 2026-11-28\. Got 'soon'"):
        vitrail.open("run").watch("stream", "soon")
    with pytest.raises(DataError, match="Name the one with the days: date=COLUMN"):
        vitrail.open("run").watch("labels.csv", SINCE)


def test_images_that_cannot_be_read_are_left_out_on_request(world, tmp_path):
    folder = shutil.copytree(world / "stream", tmp_path / "stream")  # copies keep their times
    (folder / "999.png").write_bytes(b"no picture")
    with pytest.warns(UserWarning, match=r"^Left out: 1 picture that cannot be read, such as .*999\.png"):
        report = vitrail.open("run").watch(folder, SINCE, skip_bad=True)
    assert sum(day.n for day in report.days) == DAYS * PER_DAY


def test_a_score_log_of_another_ending_is_refused_before_the_model_is_read(capsys):
    assert main(["serve", "run", "--score-log", "scores.csv"]) == 2
    assert "ends in .jsonl. Got --score-log scores.csv" in capsys.readouterr().err


@pytest.mark.parametrize("held_out", [True, False])
def test_a_line_of_parts_is_compared_with_good_ones(held_out, tmp_path):
    source, stream = draw_parts(tmp_path / "parts"), tmp_path / "stream"
    run = vitrail.fit(
        source if held_out else source / "train", task="anomaly", weights=save_weights(tmp_path / "theirs"),
        out=tmp_path / "run", device="cpu", quiet=True, settings={"compute.threads": 1},
    )  # fmt: skip
    stream.mkdir()
    for seed in range(300, 306):
        Image.fromarray(draw_part(seed)).save(stream / f"{seed}.png")
    report = run.watch(stream, "2026-01-01")
    expected = "4 good pictures of parts that the run has held out (test)"
    assert report.reference == (expected if held_out else "12 good pictures, each judged by a bank without it")
    assert report.days[-1].n == 6 and not report.days[-1].alarms
