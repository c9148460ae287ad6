"""Many threads, one order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail import runtime
from vitrail.data.parallel import MAX_QUEUED_PER_THREAD, NAME, Workers, find_id_folder, make_id, map_in_order


@pytest.fixture
def alive() -> Callable[[], list[str]]:
    """Workers that this test has started and that still live."""
    before = set(threading.enumerate())
    return lambda: [each.name for each in set(threading.enumerate()) - before if each.name.startswith(NAME)]


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_results_come_in_the_order_of_the_work(threads, alive):
    def late(number: int) -> int:
        time.sleep(0.001 * (number % 3))
        return number * number

    assert list(map_in_order(late, range(50), threads=threads)) == [number * number for number in range(50)]
    assert list(map_in_order(late, [], threads=threads)) == []
    assert not alive()


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_comes_in_its_place_and_ends_the_work(threads, alive):
    begun = []

    def work(number: int) -> int:
        begun.append(number)
        return 1 // (number - 3)

    results = map_in_order(work, range(1000), threads=threads)
    assert [next(results) for _ in range(3)] == [-1, -1, -1]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert len(begun) < 3 * MAX_QUEUED_PER_THREAD * 2
    assert not alive()


def test_without_threads_work_is_done_when_its_result_is_asked_for(alive):
    done = []
    begun = Workers(0).begin(done.append, 1)
    assert done == []
    begun()
    assert done == [1]
    assert not alive()


def test_closing_drops_what_was_not_begun_and_new_work_starts_new_threads(alive):
    workers, begun, gate, done = Workers(1), threading.Event(), threading.Event(), []

    def wait() -> bool:
        begun.set()
        return gate.wait(10)

    first = workers.begin(wait)
    waiting = [workers.begin(done.append, number) for number in range(100)]
    assert begun.wait(10)
    threading.Timer(0.05, gate.set).start()
    workers.close()
    assert first() is True
    assert len(done) < len(waiting)
    assert not alive()
    assert workers.begin(abs, -3)() == 3
    workers.close()


def test_a_worker_is_one_thread_to_torch_and_nobody_else_is_changed():
    torch.set_num_threads(2)
    workers, barrier = Workers(3), threading.Barrier(3)

    def ask() -> int:
        barrier.wait(10)
        big = torch.zeros(2**20, dtype=torch.uint8)
        return torch.get_num_threads() if (big + 1).sum() else 0

    assert [begun() for begun in [workers.begin(ask) for _ in range(3)]] == [1, 1, 1]
    assert torch.get_num_threads() == 2
    other: list[int] = []
    thread = threading.Thread(target=lambda: other.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert other == [2]
    workers.close()


def test_a_container_that_may_use_two_cores_gets_two_threads(monkeypatch):
    monkeypatch.setattr(runtime, "_count_cores", lambda: 64)
    monkeypatch.setattr(runtime, "_read_cgroup_cores", lambda: 2)
    assert Workers().threads == 2


def test_ids_are_file_names_or_paths_below_the_common_folder_where_two_names_are_equal():
    def ids(*names: str) -> list[str]:
        paths = [Path(name) for name in names]
        folder = find_id_folder(paths)
        return [make_id(path, folder) for path in paths]

    assert ids("a/1.png", "b/2.png") == ["1.png", "2.png"]
    assert ids("a/1.png", "b/1.png", "b/2.png") == ["a/1.png", "b/1.png", "b/2.png"]
    assert ids("/x/y/a/1.png", "/x/y/b/1.png") == ["a/1.png", "b/1.png"]
    assert ids("/x/a/1.png", "b/1.png") == ["/x/a/1.png", "b/1.png"]
    assert ids("a/1.png", "a/1.png") == ["1.png", "1.png"], "named twice"
    assert find_id_folder([np.zeros((2, 2), np.uint8), b"x"]) is None
