"""Who waits for a dead partner is ended, unless it saves meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from vitrail.train.distributed import liveness
from vitrail.train.distributed.liveness import PeerProcess, PeerWatchdog

pytestmark = pytest.mark.serial


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_H4_who_saves_when_a_partner_dies_is_ended_only_afterwards(monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(liveness, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(liveness, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(liveness, "exit_now", lambda message: ended.set())
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    own = PeerProcess.from_current_process(0)
    watch = PeerWatchdog(
        own, [PeerProcess(1, child.pid, own.host, liveness._process_start_time(child.pid))], has_launcher=False
    )
    try:
        with watch.pause_for_saving():
            child.kill()
            child.wait()
            until = time.monotonic() + 5
            while watch.find_death() is None and time.monotonic() < until:
                time.sleep(0.02)
            assert watch.find_death() == f"Rank 1 (pid {child.pid} on {own.host}) died"
            assert not ended.wait(0.5), "five times as long as the grace"
        assert ended.wait(5)
    finally:
        watch.stop()
