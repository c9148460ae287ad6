"""Many clients, slow models, and those who leave (part E: 6 to 10, 20, 22)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from corpus.writing import encoded, photo
from served import asked, memory, saved, serving, tree
from serving_here import Here, serving_here
from vitrail.serve.limits import ServerLimits

pytestmark = pytest.mark.serial

PICTURE = encoded(photo(), "PNG")
HEAD = b"POST /predict HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % len(PICTURE)


def slowed(here: Here, seconds: float) -> list[int]:
    """Make the model take so long for a batch; the sizes of the batches are noted."""
    true, sizes = here.opened.predict_batch, []

    def slow(names, images, decisions=()):
        sizes.append(len(names))
        time.sleep(seconds)
        return true(names, images, decisions)

    here.opened.predict_batch = slow
    return sizes


def emptied(here: Here) -> None:
    """Nobody is inside any more; an answer is on its way a moment before its place is free."""
    until, admission = time.monotonic() + 10, here.service.admission
    while (admission.num_requests or admission.num_images) and time.monotonic() < until:
        time.sleep(0.02)
    assert (admission.num_requests, admission.num_images) == (0, 0)


def ask_at_once(port: int, count: int, host: str = "127.0.0.1") -> list[tuple[int, float, str]]:
    """So many requests side by side: status, seconds, Retry-After."""

    async def one() -> tuple[int, float, str]:
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        writer.write(HEAD + PICTURE)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        writer.close()
        with suppress(ConnectionError):  # the server may have closed first
            await writer.wait_closed()
        again = next((line.split(": ")[1] for line in head.split("\r\n") if line.startswith("retry-after")), "")
        return int(head.split(" ")[1]), time.monotonic() - began, again

    async def everybody() -> list[tuple[int, float, str]]:
        return await asyncio.gather(*(one() for _ in range(count)))

    return asyncio.run(everybody())


def test_e6_64_clients_at_once_are_answered_in_few_batches():
    """E6."""
    with serving_here(limits=ServerLimits(decode_workers=2)) as here:
        sizes = slowed(here, 0.2)
        found = ask_at_once(here.port, 64)
        assert {status for status, _, _ in found} == {200}
        assert sum(sizes) == 64 and len(sizes) <= 12 and max(sizes) >= 16
        assert max(seconds for _, seconds, _ in found) <= 0.2 * (len(sizes) + 1) + 5


@pytest.mark.wide
def test_e7_a_thousand_at_once_are_answered_or_told_when_to_come_again():
    """E7: the queue is bounded, one address cannot fill it, and nobody waits without end."""
    limits = ServerLimits(
        decode_workers=2, max_waiting_images=100, max_requests_per_client=80, max_batch_size=32, max_images=32
    )
    with serving_here(limits=limits) as here:
        slowed(here, 0.1)
        with ThreadPoolExecutor(5) as pool:
            groups = list(pool.map(lambda n: ask_at_once(here.port, 200, f"127.0.0.{n + 1}"), range(5)))
        found = [one for group in groups for one in group]
        statuses = [status for status, _, _ in found]
        assert set(statuses) <= {200, 429, 503} and statuses.count(200) >= 100
        assert 503 in statuses and 429 in statuses
        assert all(again.isdecimal() and int(again) >= 1 for status, _, again in found if status != 200)
        assert max(seconds for _, seconds, _ in found) < 60
        emptied(here)
        assert not here.service.admission._clients
        assert asked(here.port, "/predict", PICTURE).status == 200


def test_e8_what_takes_longer_than_the_deadline_is_told_so_and_makes_room():
    """E8."""
    with serving_here(limits=ServerLimits(decode_workers=1, deadline=0.4, max_waiting_images=2, max_images=1)) as here:
        sizes = slowed(here, 1.0)
        began = time.monotonic()
        said = asked(here.port, "/predict", PICTURE)
        assert said.status == 504 and said.headers["retry-after"] == "1" and time.monotonic() - began < 0.9
        emptied(here)
        late = [asked(here.port, "/predict", PICTURE).status for _ in range(2)]
        assert late[0] == 504
        time.sleep(1.5)
        assert sum(sizes) < 3  # one of them was given up before the model got to it


@pytest.mark.wide
def test_e9_who_leaves_the_queue_is_never_computed():
    """E9."""
    with serving_here() as here:
        sizes = slowed(here, 2.5)
        first = threading.Thread(target=asked, args=(here.port, "/predict", PICTURE))
        first.start()
        while not sizes:
            time.sleep(0.01)
        line = socket.create_connection(("127.0.0.1", here.port))
        line.sendall(HEAD + PICTURE)
        while here.service.admission.num_images < 2:
            time.sleep(0.01)
        time.sleep(0.2)  # decoded, in the queue
        line.close()
        first.join()
        assert asked(here.port, "/predict", PICTURE).status == 200
        emptied(here)
        assert sizes == [1, 1]
        left = {"path": "/predict", "status": "0"}
        assert here.service.metrics.registry.get_sample_value("vitrail_requests_total", left) == 1


def test_health_is_told_while_the_model_is_busy():
    with serving_here() as here:
        sizes = slowed(here, 1.0)
        busy = threading.Thread(target=asked, args=(here.port, "/predict", PICTURE))
        busy.start()
        while not sizes:
            time.sleep(0.01)
        for path in ("/v2/health/live", "/v2/health/ready", "/about", "/metrics"):
            began = time.monotonic()
            assert asked(here.port, path).status == 200 and time.monotonic() - began < 0.2
        busy.join()


def test_e10_a_decoder_that_is_killed_is_replaced_and_five_deaths_are_told():
    """E10."""
    with serving_here(limits=ServerLimits(decode_workers=1)) as here:
        for number in range(5):
            assert asked(here.port, "/v2/health/ready").status == 200, number
            before = here.service.decode_pool.process_ids
            os.kill(before[0], signal.SIGKILL)
            assert asked(here.port, "/predict", PICTURE).status == 503
            began = time.monotonic()
            while here.service.decode_pool.process_ids in (before, ()):
                time.sleep(0.01)
            assert asked(here.port, "/predict", PICTURE).status == 200 and time.monotonic() - began < 2
        said = asked(here.port, "/v2/health/ready")
        assert said.status == 503 and "keep dying" in said.json["error"]


def test_e20_a_model_that_produces_nan_is_not_ready_any_more():
    """E20."""
    with serving_here() as here:
        next(iter(here.opened.predictor.members[0].model.parameters())).data.fill_(float("nan"))
        said = asked(here.port, "/predict", PICTURE)
        assert said.status == 503 and "produced NaN" in said.json["error"]
        assert asked(here.port, "/v2/health/ready").status == 503
        assert asked(here.port, "/predict", PICTURE).status == 503 and asked(here.port, "/v2/health/live").status == 200


def test_an_error_that_nobody_foresaw_is_told_without_its_insides(caplog):
    with serving_here() as here:

        def broken(names, images, decisions=()):
            raise KeyError("/etc/passwd")

        true, here.opened.predict_batch = here.opened.predict_batch, broken
        said = asked(here.port, "/predict", PICTURE)
        assert said.status == 500 and said.json == {
            "error": "Something went wrong inside the server that nobody foresaw."
        }
        here.opened.predict_batch = true
        assert asked(here.port, "/predict", PICTURE).status == 200


def test_too_many_explanations_are_told_to_come_again():
    with serving_here(limits=ServerLimits(decode_workers=1, max_tasks=1)) as here:
        with here.service.admission.admit_task():
            said = asked(here.port, "/explain", PICTURE)
            assert said.status == 503 and said.headers["retry-after"]
        assert asked(here.port, "/explain", PICTURE).status == 200


@pytest.mark.wide
def test_e22_open_files_threads_and_memory_stay_as_they_are(tmp_path):
    """E22: a slice; `benchmarks/server_soak.py` runs 100,000 requests or 20 minutes."""
    with serving(saved(tmp_path / "tiny"), "--workers", 1) as server:

        def some(count: int) -> tuple[int, int, int, float]:
            for _ in range(count // 32):
                assert {status for status, _, _ in ask_at_once(server.port, 32)} == {200}
            time.sleep(0.3)
            own = Path(f"/proc/{server.child.pid}")
            threads = next(line for line in (own / "status").read_text().splitlines() if line.startswith("Threads"))
            files = len(list((own / "fd").iterdir()))
            return files, int(threads.split()[1]), len(tree(server.child.pid)), memory(server.child.pid)

        before, after = some(320), some(640)
        assert after[:3] == before[:3] and after[3] - before[3] < 20, (before, after)
