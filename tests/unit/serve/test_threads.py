"""The number of threads is measured, and kept in the thread that asked."""

from __future__ import annotations

import time

import pytest
import torch

from vitrail.serve.served_model import choose_threads

pytestmark = pytest.mark.serial


@pytest.mark.parametrize(("gain", "chosen"), [(1.0, 1), (1.1, 1), (2.0, 2)])
def test_all_threads_are_taken_only_where_they_are_worth_it(gain, chosen):
    before = torch.get_num_threads()
    try:
        found = choose_threads(lambda: time.sleep(0.06 if torch.get_num_threads() == 1 else 0.06 / gain), 4, 2)
        assert found == chosen == torch.get_num_threads()
        assert choose_threads(lambda: None, 4, 1) == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("pictures", "chosen"), [(4, 2), (64, 1)])
def test_a_model_that_costs_less_than_http_leaves_the_other_cores_to_http(pictures, chosen):
    before = torch.get_num_threads()
    try:
        work = 0.06  # of one core: 15 ms for each of 4 pictures, 0.9 ms for each of 64
        assert choose_threads(lambda: time.sleep(work / torch.get_num_threads()), pictures, 2) == chosen
    finally:
        torch.set_num_threads(before)
