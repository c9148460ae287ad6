"""Everybody at once: good clients, slow ones, those who send too much, garbage, and bombs, for as long as is asked.

The server is told apart from its attackers by what a probe in a process of its own sees, and by its own metrics.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from corpus.bombs import gif, header_only, strips, text_bomb
from served import memory

PROBE = """
import http.client, json, sys, time
port, until, server = int(sys.argv[1]), time.monotonic() + float(sys.argv[2]), sys.argv[3]
waits, owed, bad = [], [], 0
def stalled():
    files = [f"/proc/{who}/schedstat" for who in ("self", f"{server}/task/{server}")]
    return sum(int(open(file).read().split()[1]) for file in files) / 1e9 if sys.platform == "linux" else 0.0
while time.monotonic() < until:
    before, began = stalled(), time.monotonic()
    try:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        line.request("GET", "/v2/health/live")
        bad += line.getresponse().status != 200
        line.close()
    except OSError:
        bad += 1
    waits.append(time.monotonic() - began)
    owed.append(max(0.0, waits[-1] - (stalled() - before)))
    time.sleep(0.05)
def told(waits):
    waits = sorted(waits)
    return {"worst": waits[-1], "p99": waits[int(0.99 * (len(waits) - 1))], "median": waits[len(waits) // 2]}
print(json.dumps({**told(waits), "owed": told(owed), "count": len(waits), "bad": bad}))
"""
"""Asks for health every 50 ms. What it waits is the server's (`owed`) but for the time in which the kernel kept the
server's loop or the probe, both ready to run, from a processor that others had: other programs on a busy machine."""
CONNECT, ANSWER = 10.0, 40.0


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """How many of each kind, and how long a good client thinks between two requests."""

    good: int = 64
    slow: int = 200
    oversize: int = 50
    garbage: int = 50
    bombs: int = 20
    pause: float = 0.5


@dataclass
class Seen:
    """What clients have seen."""

    good: Counter[int] = field(default_factory=Counter)
    others: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    cut: int = 0
    """Slow connections that the server closed."""


def attack(port: int, pid: int, picture: bytes, seconds: float, crowd: Crowd) -> dict[str, object]:
    """Attack, and say what became of it.

    Returns:
        good, others: how often each status came (0: no answer). median, slowest: seconds of good answers under attack.
        health: seconds that the probe waited: worst, 99th percentile, median, and the same as `owed`, which `PROBE`
        explains. growth: MiB, at its highest. recovery: seconds until good answers came as fast as before. quiet:
        median seconds before the attack.
    """
    return asyncio.run(_attack(port, pid, picture, seconds, crowd))


async def _attack(port: int, pid: int, picture: bytes, seconds: float, crowd: Crowd) -> dict[str, object]:
    quiet = [await _timed(port, picture) for _ in range(20)]
    before, most, seen = memory(pid), 0.0, Seen()
    words = [sys.executable, "-c", PROBE, str(port), str(seconds), str(pid)]
    probe = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + seconds
    bombs = [header_only(), gif((65_535, 65_535)), strips(), text_bomb()]
    tasks = [
        *(_again(until, good, port, picture, seen, crowd.pause, number) for number in range(crowd.good)),
        *(_again(until, slow, port, seen, until, number) for number in range(crowd.slow)),
        *(_again(until, oversize, port, seen, number) for number in range(crowd.oversize)),
        *(_again(until, garbage, port, seen, number) for number in range(crowd.garbage)),
        *(_again(until, bomb, port, seen, bombs[number % len(bombs)], number) for number in range(crowd.bombs)),
    ]
    everybody = asyncio.gather(*tasks)
    while not everybody.done():
        most = max(most, await asyncio.to_thread(memory, pid))
        await asyncio.wait([everybody], timeout=1.0)
    await everybody
    over = time.monotonic()
    usual = max(0.2, 3 * statistics.median(quiet))
    while await _timed(port, picture) > usual:
        pass
    recovery = time.monotonic() - over
    told, _ = await asyncio.to_thread(probe.communicate)
    return {
        "seconds": seconds, "good": dict(seen.good), "others": dict(seen.others), "cut": seen.cut,
        "median": statistics.median(seen.seconds), "slowest": max(seen.seconds), "quiet": statistics.median(quiet),
        "health": json.loads(told), "growth": most - before, "recovery": recovery,
    }  # fmt: skip


async def _again(until: float, once: Callable[..., Awaitable[None]], *args: object) -> None:
    await asyncio.sleep(random.random())
    while time.monotonic() < until:
        await once(*args)


async def good(port: int, picture: bytes, seen: Seen, pause: float, number: int) -> None:
    """Ask, take the answer, come again when told to."""
    began = time.monotonic()
    status, again = await _asked(port, _request(picture), f"127.0.1.{number + 1}")
    seen.good[status] += 1
    if status == 200:
        seen.seconds.append(time.monotonic() - began)
    await asyncio.sleep(again or pause * random.uniform(0.5, 1.5))


async def slow(port: int, seen: Seen, until: float, number: int) -> None:
    """A byte a second of a head, or of a body, or nothing at all."""
    start = [b"POST /predict HTTP/1.1\r\nHost: x\r\nX-Slow: ", _head(100_000), b""][number % 3]
    with suppress(OSError, TimeoutError):
        reader, writer = await _connected(port, f"127.0.2.{number + 1}")
        try:
            writer.write(start)
            while time.monotonic() < until:
                with suppress(TimeoutError):
                    if not await asyncio.wait_for(reader.read(1000), 1.0):
                        seen.cut += 1
                        return
                if start:
                    writer.write(b"x")
        finally:
            writer.close()


async def oversize(port: int, seen: Seen, number: int) -> None:
    """200 MiB, announced or not, as fast as they are taken."""
    chunked = b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    piece = bytes(65536)
    with suppress(OSError, TimeoutError):
        reader, writer = await _connected(port, f"127.0.3.{number + 1}")
        try:
            writer.write(_head(200 * 2**20) if number % 2 else chunked)
            answer = asyncio.ensure_future(reader.readline())
            with suppress(OSError, TimeoutError):  # the refusal may have come before the door was shut
                for _ in range(3200):
                    if answer.done() or writer.is_closing():
                        break
                    writer.write(piece if number % 2 else b"10000\r\n" + piece + b"\r\n")
                    await asyncio.wait_for(writer.drain(), CONNECT)
                    await asyncio.sleep(0)
            line = await asyncio.wait_for(answer, CONNECT)
            seen.others[_status(line)] += 1
        finally:
            writer.close()
    await asyncio.sleep(1)


async def garbage(port: int, seen: Seen, number: int) -> None:
    """Noise as a picture, or as HTTP."""
    noise = random.randbytes(random.randrange(1, 5000))
    status, _ = await _asked(port, _request(noise) if number % 2 else noise + b"\r\n\r\n", f"127.0.4.{number + 1}")
    seen.others[status] += 1
    await asyncio.sleep(0.5)


async def bomb(port: int, seen: Seen, data: bytes, number: int) -> None:
    """A small file that is a large picture."""
    status, _ = await _asked(port, _request(data), f"127.0.5.{number + 1}")
    seen.others[status] += 1
    await asyncio.sleep(1)


async def _timed(port: int, picture: bytes) -> float:
    began = time.monotonic()
    status, _ = await _asked(port, _request(picture), "127.0.0.1")
    return time.monotonic() - began if status == 200 else ANSWER


async def _asked(port: int, words: bytes, host: str) -> tuple[int, int]:
    """The status of the first response, 0 for none, and its Retry-After."""
    try:
        reader, writer = await _connected(port, host)
    except (OSError, TimeoutError):
        return 0, 0
    try:
        writer.write(words)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), ANSWER)
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return 0, 0
    finally:
        writer.close()
    lines = head.decode("latin-1").lower().split("\r\n")
    again = next((line.partition(": ")[2] for line in lines if line.startswith("retry-after")), "0")
    return _status(head), int(again)


async def _connected(port: int, host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """From an address of its own on Linux, where all of 127.0.0.0/8 is this machine."""
    own = (host, 0) if sys.platform == "linux" else None
    return await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port, local_addr=own), CONNECT)


def _request(body: bytes) -> bytes:
    return _head(len(body), b"Connection: close\r\n") + body


def _head(length: int, more: bytes = b"") -> bytes:
    return b"POST /predict HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n" % (more, length)


def _status(head: bytes) -> int:
    return int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.1 ") else 0
