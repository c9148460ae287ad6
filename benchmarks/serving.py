"""How much of a model's speed its server keeps: pictures a second and waiting times at 1, 8 and 64 clients.

    python benchmarks/serving.py               # about four minutes, nothing else running

Beside `vitrail serve` stand the model by itself, in batches of 64 prepared pictures (what no server can beat), and an
endpoint as tutorials write it: FastAPI, one upload, Pillow, one forward pass. Server, clients and model share the same
cores, clients ask again as soon as they are answered, and every request carries an encoded picture. Writes
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from fastapi import FastAPI, UploadFile
from making.records import RESULTS, Results, Row

CLIENTS = (1, 8, 64)
WARM = 3.0
HEADERS = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"


def main() -> None:
    """Measure what is missing; or, with --naive, be the server that is compared with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--models", nargs="*", default=["digits", "vit_tiny_patch16_224"])
    parser.add_argument("--naive", nargs=2, metavar=("MODEL", "PORT"), help="serve as a tutorial does")
    parser.add_argument("--alone", metavar="MODEL", help="print the model's own pictures a second")
    options = parser.parse_args()
    if options.naive:
        naive(Path(options.naive[0]), int(options.naive[1]))
    elif options.alone:
        print(alone(Path(options.alone), options.seconds))
    else:
        measure(options.models, options.seconds)


def measure(models: list[str], seconds: float) -> None:
    """Every model by itself, and behind both servers with each number of clients."""
    results = Results("serving")
    for name in models:
        with tempfile.TemporaryDirectory() as folder:
            bundle, picture = made(name, Path(folder))
            words = [sys.executable, __file__, "--alone", str(bundle), "--seconds", str(seconds)]
            results.row({"model": name, "server": "none"}, partial(told, words))
            for server, start in (("vitrail", ours), ("naive", theirs)):
                for clients in CLIENTS:
                    key = {"model": name, "server": server, "clients": clients}
                    row = results.row(key, partial(behind, start, bundle, picture, clients, seconds, server))
                    print(f"{key}: {row}", flush=True)
    results.write({"cores": os.cpu_count()})
    (RESULTS / "serving.md").write_text(table(results.rows), encoding="utf-8")
    print(table(results.rows))


def made(name: str, folder: Path) -> tuple[Path, bytes]:
    """A bundle and an encoded picture for it: digits as they are, or a photograph at the model's size."""
    from PIL import Image
    from sklearn.datasets import load_digits, load_sample_image

    from vitrail.checkpoints import bundle
    from vitrail.model.sizes import named
    from vitrail.model.vit import create
    from vitrail.spec import ImageSpec

    if name == "digits":
        config = replace(named("vit_nano_patch2_8"), channels=1, outputs=10)
    else:
        config = replace(named(name), outputs=1000)
    height, width = config.image_size
    spec = ImageSpec(height=height, width=width, channels=config.channels)
    classes = tuple(str(number) for number in range(config.outputs))
    bundle.save(folder / "model", create(config, seed=0).eval(), spec, "classes", classes, {})
    data = io.BytesIO()
    if name == "digits":
        digit = np.rint(load_digits().images[0] * (255 / 16)).astype(np.uint8)
        Image.fromarray(digit).save(data, "PNG")
    else:
        china = Image.fromarray(load_sample_image("china.jpg")).crop((0, 0, 427, 427))
        china.resize((width, height)).save(data, "JPEG", quality=90)
    return folder / "model", data.getvalue()


def told(words: list[str]) -> Row:
    """What a command of this script prints."""
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return {"pictures": float(done.stdout)}


def alone(model: Path, seconds: float) -> float:
    """Pictures a second of the model by itself, in batches of 64 that are prepared already."""
    import torch

    from vitrail.doors.predicting import open_predictor
    from vitrail.predict.reading import Name

    predictor = open_predictor(model)
    spec = predictor.spec
    images = torch.randint(0, 256, (64, spec.channels, *spec.size), dtype=torch.uint8)
    names = [Name("", "")] * len(images)
    predictor.answer(names, images)
    began, batches = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        predictor.answer(names, images)
        batches += 1
    return batches * len(images) / (time.perf_counter() - began)


def naive(model: Path, port: int) -> None:
    """One upload, Pillow, one forward pass in a thread of the framework."""
    import torch
    import uvicorn
    from PIL import Image

    from vitrail.doors.predicting import open_predictor

    predictor = open_predictor(model)
    network, spec = predictor.alone().model.eval(), predictor.spec
    app = FastAPI()

    @app.post("/predict")
    def predict(file: UploadFile) -> dict[str, object]:
        image = Image.open(file.file).convert("RGB" if spec.channels == 3 else "L").resize((spec.width, spec.height))
        values = np.array(image, dtype=np.float32).reshape(spec.height, spec.width, spec.channels).transpose(2, 0, 1)
        with torch.inference_mode():
            chances = network(torch.from_numpy(values / 255 * 2 - 1)[None]).softmax(-1)[0]
        return {"label": int(chances.argmax()), "probabilities": chances.tolist()}

    app.get("/v2/health/ready")(lambda: {"ready": True})
    uvicorn.run(app, port=port, log_level="error")


@contextmanager
def ours(model: Path) -> Iterator[int]:
    """`vitrail serve`, ready."""
    with running([sys.executable, "-m", "vitrail", "serve", str(model), "--per-client", "1000"], "--port") as port:
        yield port


@contextmanager
def theirs(model: Path) -> Iterator[int]:
    """The naive endpoint, ready."""
    with running([sys.executable, __file__, "--naive", str(model)], "") as port:
        yield port


@contextmanager
def running(words: list[str], flag: str) -> Iterator[int]:
    """A server as a command of its own, until it says that it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([*words, *([flag] if flag else []), str(port)], stdout=subprocess.DEVNULL)
    try:
        while b"200" not in answered(port, b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"):
            assert process.poll() is None, "the server has ended"
            time.sleep(0.1)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def answered(port: int, words: bytes) -> bytes:
    """The first line of whatever comes back."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as line:
        line.sendall(words)
        return line.recv(15)
    return b""


def behind(start: object, model: Path, picture: bytes, clients: int, seconds: float, server: str) -> Row:
    """Pictures a second, median and 99th percentile of waiting, with so many clients that never rest."""
    assert callable(start)
    with start(model) as port:
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
            asked = time.perf_counter()
            writer.write(words)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert head.startswith(b"http/1.1 200"), head
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            waits.append(time.perf_counter() - asked)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return waits, time.perf_counter() - began


def table(rows: list[Row]) -> str:
    """Markdown."""
    own = {row["model"]: row["pictures"] for row in rows if row["server"] == "none"}
    lines = ["| model | server | clients | pictures/s | of the model alone | median, ms | 99 %, ms |"]
    lines.append("|---|---|---:|---:|---:|---:|---:|")
    for row in rows:
        share = f"{row['pictures'] / own[row['model']]:.0%}"
        if row["server"] == "none":
            lines.append(f"| {row['model']} | none, batches of 64 | | {row['pictures']:,.0f} | | | |")
            continue
        times = f"{1000 * row['median']:,.1f} | {1000 * row['p99']:,.1f}"
        lines.append(
            f"| {row['model']} | {row['server']} | {row['clients']} | {row['pictures']:,.0f} | {share} | {times} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
