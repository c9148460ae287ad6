"""Many threads, one order."""

from __future__ import annotations

import threading
import time

import pytest

from vitrail.data.parallel import AHEAD, in_order, usable_cores


def test_results_come_in_the_order_of_the_work():
    def late(number: int) -> int:
        time.sleep(0.001 * (number % 3))
        return number * number

    assert list(in_order(late, range(50), threads=4)) == [number * number for number in range(50)]
    assert list(in_order(late, [])) == []


def test_an_error_comes_in_its_place_and_ends_the_work():
    begun = []

    def work(number: int) -> int:
        begun.append(number)
        return 1 // (number - 3)

    results = in_order(work, range(1000), threads=2)
    assert [next(results) for _ in range(3)] == [-1, -1, -1]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert len(begun) < 3 * AHEAD * 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ThreadPoolExecutor")]


def test_there_is_at_least_one_core():
    assert usable_cores() >= 1
