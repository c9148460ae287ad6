"""Ask a server for hours: open files, threads, processes and memory must stay as they are (part E, 22 and 25).

    python benchmarks/server_soak.py --requests 100000           # a small model of its own; or --minutes 20
    python benchmarks/server_soak.py --minutes 10 --fuzz         # noise on its paths instead of pictures

Prints a line a minute and writes benchmarks/results/server-soak.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

from corpus.all_cases import CASES  # noqa: E402 - the tests are no package that is installed
from served import PATHS, Server, memory, saved, serving, tree  # noqa: E402

CLIENTS = 16
HEAD = b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


def main() -> None:
    """Serve, ask, look now and then, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--requests", type=float, default=math.inf)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--fuzz", action="store_true")
    options = parser.parse_args()
    words = noise if options.fuzz else of_pictures()
    with tempfile.TemporaryDirectory() as folder, serving(options.model or saved(Path(folder) / "tiny")) as server:
        asyncio.run(ask(server.port, words, 2000, 60, Counter()))  # warm
        looks, statuses = [look(server, 0, 0)], Counter[int]()
        print(looks[0], flush=True)
        began = time.monotonic()
        while statuses.total() < options.requests and time.monotonic() - began < 60 * options.minutes:
            asyncio.run(ask(server.port, words, options.requests - statuses.total(), 60, statuses))
            looks.append(look(server, time.monotonic() - began, statuses.total()))
            print(looks[-1], flush=True)
    found = {"looks": looks, "statuses": {str(status): count for status, count in sorted(statuses.items())}}
    name = "server-fuzz.json" if options.fuzz else "server-soak.json"
    (ROOT / "benchmarks" / "results" / name).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(found["statuses"])


def of_pictures() -> Callable[[], bytes]:
    """Requests with every kind of the corpus that is quick to make, good ones and bad ones."""
    files = [case.make() for case in CASES if not case.heavy]

    def one() -> bytes:
        data = random.choice(files)
        path = random.choices((b"/predict", b"/embed", b"/explain"), (20, 2, 1))[0]
        return HEAD % (path, len(data)) + data

    return one


def noise() -> bytes:
    """A request with some of its bytes exchanged."""
    body = random.randbytes(random.randrange(500))
    words = bytearray(HEAD % (random.choice(PATHS).encode(), len(body)) + body)
    for _ in range(random.choice((0, 1, 1, 5, 50))):
        words[random.randrange(len(words))] = random.randrange(256)
    return bytes(words)


async def ask(port: int, words: Callable[[], bytes], count: float, seconds: float, statuses: Counter[int]) -> None:
    """So many requests, or for so long."""
    until, left = time.monotonic() + seconds, [count]

    async def client() -> None:
        while left[0] > 0 and time.monotonic() < until:
            left[0] -= 1
            statuses[await status(port, words())] += 1

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def status(port: int, words: bytes) -> int:
    """Of the first response; 0 if there is none within some seconds."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return -1
    try:
        writer.write(words)
        line = await asyncio.wait_for(reader.readline(), 15)
        return int(line.split(b" ")[1]) if line.startswith(b"HTTP/1.1 ") else 0
    except (OSError, TimeoutError):
        return 0
    finally:
        writer.close()


def look(server: Server, seconds: float, requests: int) -> dict[str, float]:
    """What the server holds at the moment."""
    own = Path(f"/proc/{server.child.pid}")
    threads = next(line for line in (own / "status").read_text().splitlines() if line.startswith("Threads"))
    return {
        "minutes": round(seconds / 60, 1),
        "requests": requests,
        "files": len(list((own / "fd").iterdir())),
        "threads": int(threads.split()[1]),
        "processes": len(tree(server.child.pid)),
        "mebibytes": round(memory(server.child.pid), 1),
    }


if __name__ == "__main__":
    main()
