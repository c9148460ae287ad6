"""What the probe of the attack charges to a server: all that it does or leaves undone, and nothing that others do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from attacking import PROBE

pytestmark = pytest.mark.serial

SERVER = """
import http.server, os, sys, time
work, rest, alone = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "alone"
if not alone:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        began = time.process_time()
        while time.process_time() - began < work:
            pass
        time.sleep(rest)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Health)
print(server.server_port, flush=True)
server.serve_forever()
"""
BUSY = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"


@contextmanager
def running(*programs: list[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Python programs, ended afterwards."""
    there = [subprocess.Popen([sys.executable, "-c", *words], stdout=subprocess.PIPE, text=True) for words in programs]
    try:
        yield there
    finally:
        for process in there:
            process.kill()
            process.communicate()


def probed(server: subprocess.Popen[str], seconds: float) -> dict[str, dict[str, float]]:
    """What the probe says of a server."""
    assert server.stdout is not None
    words = [server.stdout.readline().strip(), str(seconds), str(server.pid)]
    done = subprocess.run([sys.executable, "-c", PROBE, *words], capture_output=True, text=True, check=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("work", "rest"), [(0.0, 0.3), (0.3, 0.0)], ids=["it sleeps", "it computes"])
def test_what_a_server_takes_it_owes_however_busy_the_machine_is(work, rest):
    with running([SERVER, str(work), str(rest), "alone"]) as (server,):
        found = probed(server, 1.5)
    assert found["bad"] == 0 and found["owed"]["median"] > 0.27


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processors are shared out on Linux only")
def test_what_others_take_of_its_processor_it_does_not_owe():
    with running([SERVER, "0.05", "0", "shared"], [BUSY], [BUSY], [BUSY]) as (server, *_):
        found = probed(server, 3)
    assert found["bad"] == 0 and found["median"] > 0.1
    assert 0.045 < found["owed"]["median"] < 0.6 * found["median"], found
