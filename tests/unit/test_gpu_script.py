"""benchmarks/gpu.py: which of its rows decide about a goal."""

from __future__ import annotations

from scripts import script

gpu = script("gpu")


def test_a_goal_is_met_by_the_best_of_its_rows_and_silent_ones_are_said_to_be_unmeasured():
    rows = [
        {"row": "train vit_base_patch16_224", "images/s": 2800.0},
        {"row": "train vit_base_patch16_224", "images/s": 3100.0},
        {
            "row": "answers beside timm, batch 256, bfloat16, compiled",
            "vitrail images/s": 11000.0,
            "times as fast": 1.2,
        },
    ]
    assert list(gpu.verdicts(rows)) == [
        "goal train vit_base_patch16_224, images/s 3,000: 3,100: met",
        "goal train vit_base_patch16_224, images/s 4,200: 3,100: missed",
        "goal answers beside timm, batch 256, vitrail images/s 12,000: 11,000: missed",
        "goal answers beside timm, batch 1, vitrail images/s 1,000: not measured",
        "goal training beside timm, times as fast 1.15: not measured",
        "goal answers beside timm, batch 256, times as fast 1.15: 1.20: met",
    ]
