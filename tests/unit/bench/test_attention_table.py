"""From measured pairs to the rows of the table that should change."""

from __future__ import annotations

from vitrail.bench import attention_table
from vitrail.bench.attention_table import AttentionTiming, TableProposal
from vitrail.bench.measure import Timing
from vitrail.model.attention import device_capability


def row(tokens: int, ratio: float, gradients: bool = True, number_format: str = "float32") -> AttentionTiming:
    fused, open_ = (Timing(seconds, seconds, seconds, 1, 1) for seconds in (ratio, 1.0))
    return AttentionTiming(number_format, gradients, tokens, fused, open_)


def test_the_open_path_is_proposed_up_to_where_it_first_loses():
    found = [row(16, 2.0), row(25, 1.5), row(49, 0.9), row(65, 1.2)]
    key = (device_capability("cpu"), "float32", True)
    assert attention_table.propose_changes(found, "cpu", {}) == [TableProposal(key, 0, 25)]
    assert attention_table.propose_changes(found, "cpu", {key: 25}) == []
    assert attention_table.propose_changes(found, "cpu", {key: 257}) == [TableProposal(key, 257, 25)]


def test_where_the_fused_kernel_always_wins_nothing_is_proposed_unless_the_table_says_otherwise():
    found = [row(16, 0.5, gradients=False), row(25, 3.0, gradients=False)]
    key = (device_capability("cpu"), "float32", False)
    assert attention_table.propose_changes(found, "cpu", {}) == []
    assert attention_table.propose_changes(found, "cpu", {key: 101}) == [TableProposal(key, 101, 0)]


def test_both_paths_are_measured_with_and_without_gradients():
    found = list(attention_table.compare_paths("cpu", ["float32"], token_counts=(4, 9), num_rounds=1))
    assert [(one.gradients, one.tokens) for one in found] == [(True, 4), (True, 9), (False, 4), (False, 9)]
    assert all(one.fused.median > 0 and one.open.median > 0 and one.fused.rounds == 1 for one in found)
