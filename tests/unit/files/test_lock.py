"""One living process holds a folder."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from vitrail.errors import ResourceError, UsageError
from vitrail.files import lock
from vitrail.files.lock import Lock

pytestmark = pytest.mark.serial


def test_the_lock_is_gone_after_leaving_even_by_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), Lock(tmp_path):
        assert (tmp_path / Lock.FILE).exists()
        raise ZeroDivisionError
    assert not (tmp_path / Lock.FILE).exists()


def test_a_second_holder_is_told_who_holds_it(tmp_path):
    words = (
        rf"{tmp_path} is in use by process {os.getpid()} on {socket.gethostname()} since \d{{4}}-\d\d-\d\d \d\d:\d\d\."
    )
    with Lock(tmp_path):
        with pytest.raises(UsageError, match=words), Lock(tmp_path):
            pass
        assert (tmp_path / Lock.FILE).exists()


def test_the_lock_of_a_dead_process_is_ignored(tmp_path):
    take_and_die = "import os, sys; from vitrail.files.lock import Lock; Lock(sys.argv[1]).__enter__(); os._exit(9)"
    subprocess.run([sys.executable, "-c", take_and_die, str(tmp_path)], check=False)
    assert (tmp_path / Lock.FILE).exists()
    with Lock(tmp_path):
        assert json.loads((tmp_path / Lock.FILE).read_text())["pid"] == os.getpid()


def test_a_process_that_ended_unnoticed_by_its_parent_is_dead(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = lock._describe_process() | {"pid": child.pid, "started": lock._process_start_time(child.pid)}
    (tmp_path / Lock.FILE).write_text(json.dumps(holder))
    with pytest.raises(UsageError, match=f"process {child.pid}"), Lock(tmp_path):
        pass
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and still a zombie
    with Lock(tmp_path):
        pass
    child.wait()


def test_a_dead_lock_that_another_process_just_replaced_is_put_back(tmp_path, monkeypatch):
    dead = lock._describe_process() | {"started": "1"}
    quicker = lock._describe_process() | {"since": "2026-01-01 09:12"}
    path = tmp_path / Lock.FILE
    path.write_text(json.dumps(dead))
    seen = iter([dead])
    real = lock._read_holder
    monkeypatch.setattr(lock, "_read_holder", lambda at: next(seen, None) or real(at))
    path.write_text(json.dumps(quicker))
    with pytest.raises(UsageError, match="since 2026-01-01 09:12"), Lock(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [Lock.FILE]


def test_a_reused_process_number_is_not_taken_for_the_old_process(tmp_path, monkeypatch):
    holder = lock._describe_process() | {"started": "1"}
    (tmp_path / Lock.FILE).write_text(json.dumps(holder))
    with Lock(tmp_path):
        pass


ELSEWHERE = {"pid": 1, "host": "elsewhere", "started": None, "since": "2026-01-01 09:12"}


def test_a_process_of_another_machine_lives_as_long_as_it_gives_signs(tmp_path):
    path = tmp_path / Lock.FILE
    path.write_text(json.dumps(ELSEWHERE))
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 100))
    words = r"process 1 on elsewhere since 2026-01-01 09:12.*try again in (79|80) s, .*or delete .*\.lock"
    with pytest.raises(UsageError, match=words), Lock(tmp_path):
        pass
    assert [file.name for file in tmp_path.iterdir()] == [Lock.FILE]
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 100))
    with Lock(tmp_path):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("own_system", ["other-boot pid:[7]", None], ids=["container", "older"])
def test_a_process_of_another_container_with_this_host_name_lives_as_long_as_it_gives_signs(tmp_path, own_system):
    holder = lock._describe_process() | {"pid": 2**22 + 1, "started": "1"}  # in its own namespace a living one
    holder |= {"system": own_system}
    path = tmp_path / Lock.FILE
    path.write_text(json.dumps(holder if own_system else {key: holder[key] for key in ELSEWHERE}))
    words = rf"process 4194305 on another container of {socket.gethostname()} since .*try again in (179|180) s"
    with pytest.raises(UsageError, match=words), Lock(tmp_path):
        pass
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 200))
    with Lock(tmp_path):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_living_process_of_another_user_that_proc_hides_holds_its_folder(tmp_path, monkeypatch):
    (tmp_path / Lock.FILE).write_text(json.dumps(lock._describe_process() | {"pid": os.getppid()}))
    own = lock._process_start_time(os.getpid())
    monkeypatch.setattr(lock, "_process_start_time", lambda pid: own if pid == os.getpid() else None)
    with pytest.raises(UsageError, match=f"in use by process {os.getppid()} on "), Lock(tmp_path):
        pass


def test_who_holds_a_folder_gives_signs_of_life_until_it_leaves(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.02)
    path = tmp_path / Lock.FILE
    with Lock(tmp_path) as held:
        since = held.since
        os.utime(path, (1.0, 1.0))
        until = time.monotonic() + 5
        while path.stat().st_mtime < since and time.monotonic() < until:
            time.sleep(0.02)
        assert path.stat().st_mtime >= since and held.since == since
        path.write_text(json.dumps(ELSEWHERE))
        os.utime(path, (1.0, 1.0))
        time.sleep(0.2)
        assert path.stat().st_mtime == 1.0, "that of another holder is left alone"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_damaged_lock_is_ignored(tmp_path, text):
    (tmp_path / Lock.FILE).write_text(text)
    with Lock(tmp_path):
        pass


def test_a_lock_that_somebody_else_took_meanwhile_is_left_alone(tmp_path):
    other = lock._describe_process() | {"pid": 1}
    with Lock(tmp_path):
        (tmp_path / Lock.FILE).write_text(json.dumps(other))
    assert json.loads((tmp_path / Lock.FILE).read_text()) == other


def test_a_folder_that_cannot_hold_a_lock_is_said_in_words(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="a file stands where a folder is expected"), Lock(tmp_path / "file"):
        pass
