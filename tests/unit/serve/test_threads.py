"""The number of threads is measured, and kept in the thread that asked."""

from __future__ import annotations

import time

import pytest
import torch

from vitrail.serve.threads import choose_threads


@pytest.mark.parametrize(("gain", "chosen"), [(1.0, 1), (1.1, 1), (2.0, 2)])
def test_all_threads_are_taken_only_where_they_are_worth_it(gain, chosen):
    before = torch.get_num_threads()
    try:
        found = choose_threads(lambda: time.sleep(0.06 if torch.get_num_threads() == 1 else 0.06 / gain), 2)
        assert found == chosen == torch.get_num_threads()
        assert choose_threads(lambda: None, 1) == 1
    finally:
        torch.set_num_threads(before)
