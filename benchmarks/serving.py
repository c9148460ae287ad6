"""How much of a model's speed its server keeps: pictures a second and waiting times at 1, 8 and 64 clients.

    python benchmarks/serving.py               # about 18 minutes, nothing else running

Beside `vitrail serve` stand the model by itself in batches of 64 prepared pictures, once as PyTorch computes it
(`model(images)` and nothing of ours around it) and once as Vitrail does (its predictor), an endpoint as tutorials write
it (FastAPI, one upload, Pillow, one forward pass), and LitServe (`pip install litserve`) as it comes and with batches
of up to 64, both with what the tutorial does. All have the same weights in float32. Server, clients and model share the
same cores, clients ask again as soon as they are answered, and every request carries an encoded picture. Everything is
measured in turns, round after round, and compared within a round; figures are medians of the rounds. Writes
benchmarks/results/serving.json and a table in Markdown beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from making.records import RESULTS, Results, Row
from making.tutorial import naive
from PIL import Image

from vitrail.runtime import cpu_name

CLIENTS = (1, 8, 64)
WARM = 3.0
MEASURED = ("pictures", "median", "p99")
HEADERS = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"


def main() -> None:
    """Measure what is missing; or, with --serve, be a server that is compared with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="*", default=["digits", "vit_tiny_patch16_224"])
    parser.add_argument("--serve", nargs=3, metavar=("SERVER", "MODEL", "PORT"), help="be one of the other servers")
    parser.add_argument("--alone", nargs=2, metavar=("WAY", "MODEL"), help="print the model's own pictures a second")
    options = parser.parse_args()
    if options.serve:
        server, model, port = options.serve
        OTHERS[server](Path(model), int(port))
    elif options.alone:
        way, model = options.alone
        print(ALONE[way](Path(model), options.seconds))
    else:
        measure(options.models, options.seconds, options.rounds)


def measure(models: list[str], seconds: float, rounds: int) -> None:
    """Every model by itself, and behind each server with each number of clients; the others with small models only."""
    results = Results("serving")
    with tempfile.TemporaryDirectory() as folder:
        bundles = {name: make_bundle(name, Path(folder) / name) for name in models}
        for number, (name, (bundle, picture)) in product(range(rounds), bundles.items()):
            for way in ALONE:
                words = [sys.executable, __file__, "--alone", way, str(bundle), "--seconds", str(seconds)]
                results.row({"model": name, "server": way, "clients": 0, "round": number}, partial(run_script, words))
            for server, clients in product(("vitrail", *(OTHERS if name == "digits" else ())), CLIENTS):
                key = {"model": name, "server": server, "clients": clients, "round": number}
                row = results.row(key, partial(behind, server, bundle, picture, clients, seconds))
                print(f"{key}: {row['pictures']:.1f} pictures/s", flush=True)
    compared = comparison(results.rows)
    results.write({"cores": os.cpu_count(), "processor": cpu_name(), "comparison": compared})
    (RESULTS / "serving.md").write_text(table(compared), encoding="utf-8")
    print(table(compared))


def make_bundle(name: str, folder: Path) -> tuple[Path, bytes]:
    """A bundle and an encoded picture for it: digits as they are, or a photograph at the model's size."""
    from sklearn.datasets import load_digits, load_sample_image

    from vitrail.checkpoints import bundle_weights
    from vitrail.model.registry import config_from_name
    from vitrail.model.vit import create_model
    from vitrail.spec import ImageSpec

    if name == "digits":
        config = replace(config_from_name("vit_pico_patch2_8"), channels=1, outputs=10)
    else:
        config = replace(config_from_name(name), outputs=1000)
    height, width = config.image_size
    spec = ImageSpec(height=height, width=width, channels=config.channels)
    classes = tuple(str(number) for number in range(config.outputs))
    bundle_weights.save_bundle(
        folder / "model", create_model(config, seed=0).eval(), spec, "classification", classes, {}
    )
    data = io.BytesIO()
    if name == "digits":
        digit = np.rint(load_digits().images[0] * (255 / 16)).astype(np.uint8)
        Image.fromarray(digit).save(data, "PNG")
    else:
        china = Image.fromarray(load_sample_image("china.jpg")).crop((0, 0, 427, 427))
        china.resize((width, height)).save(data, "JPEG", quality=90)
    return folder / "model", data.getvalue()


def run_script(words: list[str]) -> Row:
    """What a command of this script prints."""
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return {"pictures": float(done.stdout)}


def by_pytorch(model: Path, seconds: float) -> float:
    """Pictures a second of the model by itself, in batches of 64 that are normalised already; PyTorch as it comes."""
    from vitrail.checkpoints import bundle_weights

    found = bundle_weights.load_bundle(model)
    images = torch.rand(64, found.spec.channels, *found.spec.size)
    module = found.model.eval()
    with torch.inference_mode():
        return len(images) * a_second(lambda: module(images), seconds)


def by_vitrail(model: Path, seconds: float) -> float:
    """The same of the predictor, with normalisation and decisions, in batches of 64 that are prepared already."""
    from vitrail.data.parallel import ImageName
    from vitrail.services.prediction import open_predictor

    predictor = open_predictor(model)
    spec = predictor.spec
    images = torch.randint(0, 256, (64, spec.channels, *spec.size), dtype=torch.uint8)
    names = [ImageName("", "")] * len(images)
    return len(images) * a_second(lambda: predictor.predict_prepared(names, images), seconds)


ALONE = {"none, PyTorch": by_pytorch, "none, Vitrail": by_vitrail}


def a_second(work: Callable[[], object], seconds: float) -> float:
    """How often it is done in a second, after a first time."""
    work()
    began, times = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        work()
        times += 1
    return times / (time.perf_counter() - began)


def litserve(model: Path, port: int, most: int = 1) -> None:
    """LitServe: a process for HTTP, a process for the model; up to `most` requests at once."""
    from making.lit_server import serve

    serve(model, port, most)


OTHERS: dict[str, Callable[[Path, int], None]] = {
    "naive": naive,
    "litserve": litserve,
    "litserve, batches": partial(litserve, most=64),
}


@contextmanager
def running(server: str, model: Path) -> Iterator[int]:
    """A server as a command of its own, from when it says that it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ours = ["-m", "vitrail", "serve", model, "--per-client", 1000, "--port", port]
    words = ours if server == "vitrail" else [__file__, "--serve", server, model, port]
    path = b"/v2/health/ready" if server == "vitrail" else b"/health"
    process = subprocess.Popen([sys.executable, *map(str, words)], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        while b"200" not in read_status(port, b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path):
            assert process.poll() is None, "the server has ended"
            time.sleep(0.1)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        with suppress(ProcessLookupError):  # LitServe leaves its processes behind
            os.killpg(process.pid, signal.SIGKILL)


def read_status(port: int, words: bytes) -> bytes:
    """The first line of whatever comes back."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as line:
        line.sendall(words)
        return line.recv(15)
    return b""


def behind(server: str, model: Path, picture: bytes, clients: int, seconds: float) -> Row:
    """Pictures a second, median and 99th percentile of waiting, with so many clients that never rest."""
    with running(server, model) as port:
        asyncio.run(load(port, request(picture, server), clients, WARM))
        waits, took = asyncio.run(load(port, request(picture, server), clients, seconds))
    ordered = sorted(waits)
    return {
        "pictures": len(waits) / took,
        "median": statistics.median(ordered),
        "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
    }


def request(picture: bytes, server: str) -> bytes:
    """The same picture as the raw body, or as the upload that tutorials ask for."""
    if server == "vitrail":
        return HEADERS % (b"application/octet-stream", len(picture)) + picture
    body = b'--e\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + picture + b"\r\n--e--\r\n"
    return HEADERS % (b"multipart/form-data; boundary=e", len(body)) + body


async def load(port: int, words: bytes, clients: int, seconds: float) -> tuple[list[float], float]:
    """Every client asks, waits, and asks again; the waits, and how long it all took."""
    waits: list[float] = []
    began = time.perf_counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() - began < seconds:
            begun = time.perf_counter()
            writer.write(words)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert head.startswith(b"http/1.1 200"), head
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            waits.append(time.perf_counter() - begun)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return waits, time.perf_counter() - began


def comparison(rows: list[Row]) -> list[Row]:
    """For each model, server and number of clients: medians of the rounds, also of the ratios within a round."""
    pictures = {cell(row): row["pictures"] for row in rows}
    found: list[Row] = []
    for model, server, clients in dict.fromkeys(cell(row)[:3] for row in rows):
        here = [row for row in rows if cell(row)[:3] == (model, server, clients)]
        alone = {way: [row["pictures"] / pictures[model, way, 0, row["round"]] for row in here] for way in ALONE}
        ours = [pictures[model, "vitrail", clients, row["round"]] / row["pictures"] for row in here if clients]
        found.append({
            "model": model, "server": server, "clients": clients, "rounds": len(here),
            **{name: statistics.median(row[name] for row in here) for name in here[0] if name in MEASURED},
            "of_alone": {way: statistics.median(ratios) for way, ratios in alone.items()},
            "ours": statistics.median(ours) if ours else None,
        })  # fmt: skip
    return found


def cell(row: Row) -> tuple[str, str, int, int]:
    """What a row is about."""
    return row["model"], row["server"], row["clients"], row["round"]


def table(compared: list[Row]) -> str:
    """Markdown."""
    heads = (
        "model",
        "server",
        "clients",
        "pictures/s",
        "of PyTorch alone",
        "of Vitrail alone",
        "median, ms",
        "p99, ms",
    )
    lines = [f"| {' | '.join(heads)} | ours is |", "|---|---|---:|---:|---:|---:|---:|---:|---:|"]
    for row in compared:
        if row["server"] in ALONE:
            lines.append(f"| {row['model']} | {row['server']}, batches of 64 | | {row['pictures']:,.0f} | | | | | |")
            continue
        times = f"{1000 * row['median']:,.1f} | {1000 * row['p99']:,.1f}"
        ours = "" if row["server"] == "vitrail" else f"{row['ours']:.2f} x"
        alone = (f"{row['of_alone'][way]:.0%}" for way in ALONE)
        cells = (row["model"], row["server"], row["clients"], f"{row['pictures']:,.0f}", *alone)
        lines.append(f"| {' | '.join(map(str, cells))} | {times} | {ours} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
