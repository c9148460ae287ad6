"""`vitrail predict --engine ray` on a local cluster of two: complete, equal, and indifferent to a death."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import partners

pytestmark = pytest.mark.wide

PROGRAM = str(Path(__file__).parents[1] / "on_ray.py")
PARTS = 24


@pytest.mark.needs_ray
@pytest.mark.slow
def test_two_workers_of_ray_write_the_bytes_of_one_process_though_one_is_killed(vitrail, run_folder, flowers, tmp_path):
    pictures = sorted(flowers.rglob("*.png"))
    named = [str(pictures[k % len(pictures)]) for k in range(64 * PARTS - 5)]
    (tmp_path / "list.txt").write_text("\n".join(named), encoding="utf-8")
    words = ["predict", str(run_folder), f"@{tmp_path / 'list.txt'}"]
    assert vitrail(*words, "--to", tmp_path / "alone.csv").code == 0
    more = ["--engine", "ray", "--part-size", "64", "--to", str(tmp_path / "ray.csv"), "--json"]
    victim = tmp_path / "victim.json"
    ((code, out, err),) = partners.ended(partners.start([PROGRAM, str(victim), *words, *more], world=1), 240)
    assert code == 0, err[-3000:]
    assert f" of {len(named):,} pictures, " in err  # as they are, not as many as whole parts would hold
    told, _ = json.JSONDecoder().raw_decode(out, out.index("{\n"))  # Ray says more, of the death
    assert (told["written"], told["missing"], told["rows"]) == (PARTS, 0, len(named))
    assert json.loads(victim.read_text())["parts"] < PARTS  # killed on the way
    assert (tmp_path / "ray.csv").read_bytes() == (tmp_path / "alone.csv").read_bytes()
