"""What W&B, MLflow and trackio are asked, with stand-ins for them; EXPERIMENTS.md has a run with the real ones."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from vitrail.train.trackers import MLflowTracker, TrackedRun, Tracker, TrackioTracker, WandbTracker

SETTINGS = {f"recipe.field{k}": k for k in range(130)}


class Asked(list[tuple[object, ...]]):
    """Every call, by its name, as it came."""

    def of(self, name: str) -> list[tuple[object, ...]]:
        return [call[1:] for call in self if call[0] == name]

    def taking(self, name: str, answer: object = None):
        def take(*words: object, **named: object) -> object:
            self.append((name, *words, named) if named else (name, *words))
            return answer

        return take


@pytest.fixture
def asked(monkeypatch) -> Asked:
    """Stand-ins of the three packages."""
    calls = Asked()
    run = SimpleNamespace(
        id="w1",
        define_metric=calls.taking("define"),
        log=calls.taking("log"),
        summary=SimpleNamespace(update=calls.taking("summary")),
        finish=calls.taking("finish"),
    )
    wandb = SimpleNamespace(init=calls.taking("init", run), Settings=lambda console: f"console {console}")
    client = SimpleNamespace(
        get_experiment_by_name=calls.taking("experiment"),
        create_experiment=calls.taking("new experiment", "e1"),
        create_run=calls.taking("run", SimpleNamespace(info=SimpleNamespace(run_id="m1"))),
        log_batch=calls.taking("batch"),
        update_run=calls.taking("update"),
        set_terminated=calls.taking("ended"),
    )
    status = SimpleNamespace(FINISHED=3, KILLED=5, RUNNING=1, to_string={3: "FINISHED", 5: "KILLED", 1: "RUNNING"}.get)
    entities = SimpleNamespace(
        Metric=lambda name, value, now, step: (name, value, step), Param=lambda *words: words, RunStatus=status
    )

    def speaking(**named: object) -> object:
        print("a word about the database")
        return calls.taking("init", run)(**named)

    for name, module in {
        "wandb": wandb,
        "mlflow": SimpleNamespace(MlflowClient=lambda: client),
        "mlflow.entities": entities,
        "trackio": SimpleNamespace(init=speaking),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return calls


def filed(folder, **more: str) -> TrackedRun:
    return TrackedRun(folder=folder, name="cells-fold-0", settings=SETTINGS, **{"project": "", **more})


def go_through(tracker: Tracker) -> None:
    tracker.record("masked_step", 2, {"masked_loss": 0.5})
    tracker.record("step", 1, {"loss": 2.0})
    tracker.record_final(9, {"final/test_accuracy": 0.75})
    tracker.close(completed=True)


def test_wandb_gets_one_run_whose_rows_name_their_step(asked, tmp_path):
    tracker = WandbTracker(filed(tmp_path))
    assert tracker.run_id == "w1"
    ((told,),) = asked.of("init")
    assert told == {
        "project": "vitrail", "name": "cells-fold-0", "id": None, "resume": "allow", "dir": str(tmp_path),
        "config": SETTINGS, "settings": "console off",
    }  # fmt: skip
    go_through(tracker)
    assert asked.of("define") == [
        ("masked_step", {"hidden": True}),
        ("masked_*", {"step_metric": "masked_step"}),
        ("step", {"hidden": True}),
        ("*", {"step_metric": "step"}),
    ]
    assert asked.of("log") == [({"masked_step": 2, "masked_loss": 0.5},), ({"step": 1, "loss": 2.0},)]
    assert asked.of("summary") == [({"final/test_accuracy": 0.75},)]
    assert asked.of("finish") == [({"exit_code": 0},)]


def test_wandb_goes_on_under_its_id_and_in_the_project_that_is_asked_for(asked, tmp_path, monkeypatch):
    WandbTracker(filed(tmp_path, run_id="w0", project="cells"))
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    WandbTracker(filed(tmp_path))
    (first,), (second,) = asked.of("init")
    assert (first["id"], first["project"], second["project"]) == ("w0", "cells", "theirs")


def test_mlflow_gets_parameters_in_portions_and_rows_with_their_step(asked, tmp_path):
    tracker = MLflowTracker(filed(tmp_path, project="cells"))
    assert tracker.run_id == "m1"
    assert asked.of("experiment") == [("cells",)] and asked.of("new experiment") == [("cells",)]
    assert asked.of("run") == [("e1", {"run_name": "cells-fold-0"})]
    portions = [call[1]["params"] for call in asked.of("batch")]
    assert [len(portion) for portion in portions] == [100, 30] and portions[0][1] == ("recipe.field1", "1")
    go_through(tracker)
    assert [call[1] for call in asked.of("batch")[2:]] == [
        [("masked_loss", 0.5, 2)], [("loss", 2.0, 1)], [("final/test_accuracy", 0.75, 9)],
    ]  # fmt: skip
    assert asked.of("ended") == [("m1", "FINISHED")]


def test_mlflow_goes_on_with_the_run_that_it_knows(asked, tmp_path):
    tracker = MLflowTracker(filed(tmp_path, run_id="m0"))
    tracker.close(completed=False)
    assert asked == [("update", "m0", "RUNNING"), ("ended", "m0", "KILLED")]


def test_trackio_is_kept_from_standard_output(asked, tmp_path, capsys):
    tracker = TrackioTracker(filed(tmp_path))
    out, err = capsys.readouterr()
    assert (out, err) == ("", "a word about the database\n") and tracker.run_id == "cells-fold-0"
    ((told,),) = asked.of("init")
    assert told == {"project": "vitrail", "name": "cells-fold-0", "config": SETTINGS, "resume": "allow"}
    go_through(tracker)
    assert asked.of("log") == [
        ({"masked_loss": 0.5}, {"step": 2}), ({"loss": 2.0}, {"step": 1}),
        ({"final/test_accuracy": 0.75}, {"step": 9}),
    ]  # fmt: skip
    assert asked.of("finish") == [()]
