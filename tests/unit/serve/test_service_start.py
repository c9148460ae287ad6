"""A server whose decoding processes cannot start ends with the reason, unless it was asked to stop meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from vitrail.serve.auth import BearerTokens
from vitrail.serve.limits import ServerLimits
from vitrail.serve.service import Service


def failures_of_a_start(draining: bool) -> list[BaseException]:
    """What is reported where the process that starts the decoders was ended by a signal to the whole group."""
    found: list[BaseException] = []

    async def end() -> None:
        raise EOFError("unexpected EOF")

    async def start() -> None:
        service = Service("m", ServerLimits(), BearerTokens(), lambda on_broken: None, lambda model: None, found.append)
        service.is_draining = draining
        task = asyncio.create_task(end())
        task.add_done_callback(service._on_started)
        await asyncio.wait([task])
        await asyncio.sleep(0)

    asyncio.run(start())
    return found


@pytest.mark.parametrize("draining", [False, True])
def test_a_start_that_a_stop_interrupts_is_no_failure(draining):
    assert [str(problem) for problem in failures_of_a_start(draining)] == ([] if draining else ["unexpected EOF"])
