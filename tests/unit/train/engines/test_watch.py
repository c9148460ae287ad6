"""Who waits for a dead partner is ended, unless it saves meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from vitrail.train.engines import partners
from vitrail.train.engines.partners import Partner, Watch

pytestmark = pytest.mark.serial


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_H4_who_saves_when_a_partner_dies_is_ended_only_afterwards(monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(partners, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(partners, "GRACE", 0.1)
    monkeypatch.setattr(partners, "end_now", lambda message: ended.set())
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    own = Partner.this(0)
    watch = Watch(own, [Partner(1, child.pid, own.host, partners._started(child.pid))], launched=False)
    try:
        with watch.saving():
            child.kill()
            child.wait()
            until = time.monotonic() + 5
            while watch.death() is None and time.monotonic() < until:
                time.sleep(0.02)
            assert watch.death() == f"Rank 1 (pid {child.pid} on {own.host}) died"
            assert not ended.wait(0.5), "five times as long as the grace"
        assert ended.wait(5)
    finally:
        watch.end()
