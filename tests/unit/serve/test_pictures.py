"""Decoding processes: they work beside each other, and may die, hang and be left alone."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import numpy as np
import pytest

from corpus.bombs import sized
from corpus.writing import encoded
from vitrail.serve import decode_pool
from vitrail.serve.decode_pool import DecodePool
from vitrail.serve.http_errors import HttpError
from vitrail.serve.limits import ServerLimits
from vitrail.spec import ImageSpec

pytestmark = pytest.mark.serial

SPEC = ImageSpec(height=8, width=8)
SMALL = encoded(np.full((8, 8, 3), 7, np.uint8), "PNG")


def large() -> bytes:
    """A picture that takes a good part of a second."""
    return sized(6000, 6000)


def run(play, **changes) -> DecodePool:
    """Let a coroutine play with the processes."""
    found = DecodePool(SPEC, ServerLimits(**{"decode_workers": 1, **changes}))

    async def whole() -> None:
        await found.start()
        try:
            await play(found)
        finally:
            await found.close()

    asyncio.run(whole())
    for pid in found.process_ids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    return found


def test_pictures_come_out_prepared_with_remarks():
    async def play(found):
        made = await found.decode("picture", SMALL)
        assert made.images.shape == (1, 3, 8, 8) and (made.images == 7).all()
        assert made.info == {"remarks": [], "size": [8, 8], "seen": [8, 8]}
        made.images.add_(1)  # its own memory
        many = await asyncio.gather(*(found.decode("picture", bytearray(SMALL)) for _ in range(20)))
        assert all((one.images == 7).all() for one in many)

    run(play, decode_workers=2)


def test_e10_a_process_that_is_killed_costs_one_request_and_is_replaced_at_once():
    """E10."""
    data = large()

    async def play(found):
        (pid,) = found.process_ids
        asked = asyncio.create_task(found.decode("picture", data))
        await asyncio.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(HttpError, match="died") as refused:
            await asked
        assert (refused.value.status, refused.value.retry_after) == (503, 1)
        began = time.monotonic()
        assert (await found.decode("picture", SMALL)).images.shape == (1, 3, 8, 8)
        assert time.monotonic() - began < 2
        assert found.num_died == 1 and found.is_healthy and found.process_ids != (pid,)

    run(play)


def test_e10_five_deaths_in_a_minute_are_no_accident(monkeypatch):
    """E10."""

    async def play(found):
        for number in range(5):
            assert found.is_healthy, number
            os.kill(found.process_ids[0], signal.SIGKILL)
            with pytest.raises(HttpError, match="died"):
                await found.decode("picture", SMALL)
            await asyncio.wait(found._tasks)
        assert not found.is_healthy
        assert (await found.decode("picture", SMALL)).images.shape[0] == 1  # it goes on all the same
        monkeypatch.setattr(decode_pool, "DEATH_WINDOW_SECONDS", 0.0)
        assert found.is_healthy

    run(play)


def test_e10_a_picture_that_takes_too_long_is_given_up():
    """E10."""
    data = large()

    async def play(found):
        (pid,) = found.process_ids
        with pytest.raises(HttpError, match=r"longer than 0\.1 s") as refused:
            await found.decode("picture", data)
        assert refused.value.status == 413 and found.num_stopped == 1 and found.num_died == 0 and found.is_healthy
        assert (await found.decode("picture", SMALL)).images.shape[0] == 1 and found.process_ids != (pid,)

    run(play, decode_timeout=0.1)


def test_a_client_that_leaves_leaves_the_process_in_order():
    data = large()

    async def play(found):
        asked = asyncio.create_task(found.decode("picture", data))
        await asyncio.sleep(0.02)
        asked.cancel()
        waits = asyncio.create_task(found.decode("picture", data))
        await asyncio.sleep(0.02)
        waits.cancel()  # before its turn
        assert (await found.decode("picture", SMALL)).images.shape == (1, 3, 8, 8)
        assert found.num_died == found.num_stopped == 0

    run(play)
