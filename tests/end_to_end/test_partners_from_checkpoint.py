"""Several processes begin from a checkpoint: the plan chooses what they can do; else what was asked for is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import partners
from vitrail.checkpoints.save import save_model
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.spec import ImageSpec

pytestmark = pytest.mark.wide

SHAPE = ViTConfig(image_size=(16, 16), patch=(8, 8), width=16, depth=2, heads=2, mlp_width=32, outputs=5)


def line(folder: Path, *more: str) -> list[str]:
    """A training of `run` on noise, for fewer minutes than any feature takes."""
    pictures = np.random.default_rng(0).integers(0, 90, (96, 16, 16, 3)).astype(np.uint8)
    np.savez(folder / "noise.npz", train_images=pictures, train_labels=np.arange(96) % 2)
    save_model(folder / "theirs", create_model(SHAPE, 3), ImageSpec(height=16, width=16), (), "timm")
    words = ["train", str(folder / "noise.npz"), "--weights", str(folder / "theirs"), "--out", str(folder / "run")]
    return ["-m", "vitrail", *words, "--minutes", "1e-6", *more]


def test_the_plan_chooses_by_itself_what_several_processes_can_do(tmp_path):
    answers = partners.ended(partners.start(line(tmp_path)))
    assert [code for code, _, _ in answers] == [0, 0], answers
    plan = (tmp_path / "run" / "plan.toml").read_text()
    assert re.search(r"\nfreeze_blocks = 0 +# 2 processes cannot leave blocks as they are yet", plan), plan
    assert re.search(r"\nsteps = 10 +# at least, for 2 processes cannot end with the probe yet: ", plan), plan
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(("field", "value"), [("method", "probe"), ("freeze_blocks", "1")])
def test_what_was_asked_for_and_several_cannot_do_is_refused(field, value, tmp_path):
    answers = partners.ended(partners.start(line(tmp_path, f"--finetune.{field}", value)))
    for code, out, err in answers:
        assert code == 2 and not out, err
        said = err.splitlines()[-1]
        assert said.startswith(f"vitrail: finetune.{field} {value} leaves weights as they are, which several processes")
    assert not (tmp_path / "run").exists()
