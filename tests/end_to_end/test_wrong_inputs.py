"""What goes wrong by hand: each time one sentence, the right exit code, no traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from end_to_end.conftest import TINY

KINDS = ("disc", "stripes")


def sentence(answer, code: int) -> str:
    """The last line on standard error, after seeing that it is the only complaint and the code is right."""
    lines = answer.err.splitlines()
    assert answer.code == code, answer.err
    assert "Traceback" not in answer.err
    assert [line.startswith("vitrail: ") for line in lines].count(True) == 1
    return lines[-1].removeprefix("vitrail: ")


def test_an_image_size_that_the_patch_does_not_divide(vitrail, flowers, tmp_path):
    size = ("--image-size", "30x32")
    said = sentence(vitrail("train", flowers, *TINY, *size, "--steps", 2, "--out", tmp_path / "run"), 2)
    assert said == "The image height 30 is not a multiple of the patch height 8. Use 24 or 32, or pad=true."
    assert not (tmp_path / "run").exists()


def test_heads_that_do_not_divide_the_width(vitrail, flowers, tmp_path):
    heads = ("--model.heads", "5")
    said = sentence(vitrail("train", flowers, *TINY, *heads, "--steps", 2, "--out", tmp_path / "run"), 2)
    assert said.endswith("width must be a multiple of heads. Got width=32, heads=5.")


def test_a_folder_without_pictures(vitrail, tmp_path):
    said = sentence(vitrail("train", tmp_path, "--steps", 2), 3)
    assert said.startswith(f"no pictures found in {tmp_path}; expected one folder per class")


def test_a_folder_that_does_not_exist(vitrail):
    assert sentence(vitrail("train", "digist"), 3).endswith("Did you mean digits?")


def test_a_folder_whose_name_is_mistyped(vitrail, flowers):
    for typed in ("flowrs", "flowrs/"):
        said = sentence(vitrail("check", f"{flowers.parent}/{typed}"), 3)
        assert said.endswith(f"Did you mean {flowers.parent / flowers.name}?")
    assert "Did you mean" not in sentence(vitrail("check", flowers.parent / "nowhere/at/all"), 3)


@pytest.fixture
def damaged(flowers, tmp_path) -> Path:
    """The ten pictures and an eleventh that is cut short."""
    folder = tmp_path / "damaged"
    shutil.copytree(flowers, folder)
    (folder / "disc" / "9.png").write_bytes((folder / "disc" / "1.png").read_bytes()[:60])
    return folder


def test_one_class_only(vitrail, flowers, tmp_path):
    shutil.copytree(flowers / "disc", tmp_path / "flowers" / "disc")
    said = sentence(vitrail("train", tmp_path / "flowers", "--steps", 2), 3)
    assert said == (
        "flowers has only one class, 'disc'; telling apart takes two. Add pictures of another. To find what differs "
        f"from these alone: vitrail train {tmp_path / 'flowers'} --task anomaly"
    )


def test_a_class_folder_in_the_place_of_the_folder_of_classes(vitrail, flowers, tmp_path):
    said = sentence(vitrail("train", flowers / "disc", "--steps", 2), 3)
    assert said.startswith(f"{flowers / 'disc'} holds 5 pictures but no class folders.")
    assert said.endswith(f"If it is one class of several, give the folder above it: {flowers}")
    shutil.copytree(flowers / "disc", tmp_path / "alone" / "disc")
    said = sentence(vitrail("train", tmp_path / "alone" / "disc", "--steps", 2), 3)
    assert said.endswith("a CSV file with the columns path and label.")


def test_a_picture_in_the_place_of_a_source(vitrail, flowers):
    picture = flowers / "disc" / "1.png"
    said = sentence(vitrail("train", picture), 3)
    assert said.startswith(f"{picture} is one picture. A source is a folder with one folder per class")
    assert said.endswith(f"vitrail predict RUN {picture}")


def test_a_verb_with_a_typo(vitrail):
    assert sentence(vitrail("trian", "flowers"), 2) == "There is no verb 'trian'. Did you mean train?"


def test_one_unreadable_picture_stops_a_training_by_name(vitrail, damaged, tmp_path):
    said = sentence(vitrail("train", damaged, *TINY, "--steps", 2, "--out", tmp_path / "run"), 3)
    assert said.startswith("1 of 11 pictures cannot be read: disc/9.png (")
    assert said.endswith("Mend or remove them, or leave them out with --skip-bad.")
    assert not (tmp_path / "run").exists()


def test_one_unreadable_picture_is_left_out_on_request(vitrail, damaged, tmp_path):
    answer = vitrail("train", damaged, *TINY, "--steps", 2, "--skip-bad", "--out", tmp_path / "run")
    assert answer.code == 0, answer.err
    assert (tmp_path / "run" / "report.html").is_file()


def test_check_names_the_unreadable_picture_and_exits_with_three(vitrail, damaged):
    answer = vitrail("check", damaged)
    assert answer.code == 3 and "disc/9.png" in answer.out
    assert "Traceback" not in answer.err


def test_predict_names_the_unreadable_picture_or_leaves_it_out(vitrail, damaged, run_folder):
    bad = damaged / "disc" / "9.png"
    assert str(bad) in sentence(vitrail("predict", run_folder, bad), 3)
    answer = vitrail("predict", run_folder, damaged, "--skip-bad")
    assert answer.code == 0 and answer.out.count("\n") == 11
    assert f"left out {bad}: " in answer.err


def test_D19_a_group_in_two_splits_stops_a_training_and_a_check(vitrail, flowers, tmp_path):
    lines = [f"{kind}/{n}.png,{kind},{'test' if n == 4 else 'train'},{n % 4}" for kind in KINDS for n in range(5)]
    (tmp_path / "beds.csv").write_text("\n".join(["path,kind,split,bed", *lines]))
    for kind in KINDS:
        shutil.copytree(flowers / kind, tmp_path / kind)
    for verb in ("train", "check"):
        said = sentence(vitrail(verb, tmp_path / "beds.csv", "--group", "bed"), 3)
        assert said.startswith("Group 0 has pictures in train and in test of beds, so the result would be too good.")


def test_a_plan_field_with_a_typo(vitrail, flowers):
    said = sentence(vitrail("train", flowers, "--recipe.batch_sise", "4"), 2)
    assert said == "the command line: there is no setting recipe.batch_sise. Did you mean recipe.batch_size?"


def test_a_flag_with_a_typo(vitrail, flowers):
    assert sentence(vitrail("train", flowers, "--minuets", "4"), 2) == (
        "There is no flag --minuets here. Did you mean --minutes?"
    )


def test_a_plan_file_with_a_typo(vitrail, run_folder, tmp_path):
    text = (run_folder / "plan.toml").read_text().replace("muon_lr", "moun_lr")
    (tmp_path / "plan.toml").write_text(text)
    said = sentence(vitrail("train", "--plan", tmp_path / "plan.toml"), 2)
    assert said == f"{tmp_path / 'plan.toml'}: there is no setting recipe.moun_lr. Did you mean recipe.muon_lr?"


def test_a_run_folder_that_exists(vitrail, flowers, run_folder):
    before = {path: path.stat().st_mtime_ns for path in run_folder.rglob("*")}
    said = sentence(vitrail("train", flowers, *TINY, "--steps", 2, "--out", run_folder), 2)
    assert said.startswith(f"The run folder {run_folder} exists already") and f"--resume {run_folder}" in said
    assert before == {path: path.stat().st_mtime_ns for path in run_folder.rglob("*")}


def test_a_model_with_a_typo(vitrail, flowers):
    said = sentence(vitrail("train", flowers, "--model", "vit_tiny_pach16_224", "--steps", 2), 2)
    assert "There is no model named 'vit_tiny_pach16_224'" in said and "Did you mean vit_tiny_patch16_224" in said


def test_two_budgets(vitrail, flowers):
    said = sentence(vitrail("train", flowers, "--minutes", 1, "--steps", 2), 2)
    assert said == "Give one budget. Got --minutes and --steps."


def test_resuming_takes_nothing_else(vitrail, run_folder):
    said = sentence(vitrail("train", "--resume", run_folder, "--seed", 3), 2)
    assert "so --seed cannot be given with it" in said


def test_zero_beside_a_resumed_run_is_refused_too(vitrail, run_folder):
    said = sentence(vitrail("train", "--resume", run_folder, "--seed", 0, "--steps", 0), 2)
    assert "so --steps and --seed cannot be given with it" in said


def test_resuming_what_is_no_run(vitrail, flowers):
    assert "is not a run folder: it has no plan.toml" in sentence(vitrail("train", "--resume", flowers), 2)


def test_a_plan_settles_the_model(vitrail, run_folder):
    said = sentence(vitrail("train", "--plan", run_folder / "plan.toml", "--recipe.progressive_size", 0.5), 2)
    assert "--recipe.progressive_size has no effect here without a --recipe.progressive_until" in said
    said = sentence(vitrail("train", "--plan", run_folder / "plan.toml", "--minutes", 1), 2)
    assert said.startswith("A plan has settled --minutes already.")


def test_a_setting_given_twice(vitrail, flowers):
    said = sentence(vitrail("train", flowers, "--steps", 3, "--recipe.steps", 4), 2)
    assert said == "--steps and --recipe.steps are the same setting. Give one of them."


def test_a_device_that_is_none(vitrail, flowers):
    assert "device must be auto, cpu, cuda" in sentence(vitrail("train", flowers, "--device", "gpu"), 2)


def test_an_ending_that_answers_are_not_written_to(vitrail, run_folder, flowers, tmp_path):
    to = tmp_path / "rows.xlsx"
    said = sentence(vitrail("predict", run_folder, flowers, "--to", to), 2)
    assert said == f"Answers go into a file whose name ends in .csv, .jsonl or .parquet. Got {to}."


def test_predicting_with_something_untrained(vitrail, flowers):
    said = sentence(vitrail("predict", "vit_tiny_patch16_224", flowers), 2)
    assert said == (
        "There is no model at vit_tiny_patch16_224. Answers need one that is trained and knows its classes: "
        "a run folder, a bundle, or a published classifier."
    )


def test_a_bundle_away_from_its_run_has_held_nothing_out(vitrail, run_folder, tmp_path):
    assert vitrail("evaluate", run_folder / "model").code == 0
    shutil.copytree(run_folder / "model", tmp_path / "alone")
    assert "Give a source: vitrail evaluate" in sentence(vitrail("evaluate", tmp_path / "alone"), 2)


def test_a_source_with_a_class_that_the_model_lacks(vitrail, run_folder, flowers, tmp_path):
    folder = tmp_path / "more"
    shutil.copytree(flowers, folder)
    (folder / "stripes").rename(folder / "waves")
    said = sentence(vitrail("evaluate", run_folder, folder), 3)
    assert said == (
        "more has classes that the model does not know: 'waves'. It knows disc, stripes; "
        "rename the source's or leave them out."
    )


def test_a_damaged_bundle(vitrail, run_folder, flowers, tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(run_folder / "model", folder)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    assert sentence(vitrail("predict", folder, flowers), 4).startswith("Checksum mismatch in")


def test_inspecting_what_is_nothing(vitrail):
    said = sentence(vitrail("inspect", "nothing-at-all"), 2)
    assert said.startswith("There is no run folder, bundle, weights file or named size nothing-at-all.")


def test_a_token_beyond_the_grid(vitrail, run_folder, tmp_path):
    said = sentence(vitrail("inspect", run_folder, "--figures", tmp_path, "--token", 5), 2)
    assert said == "token must lie in 1..4 for 2 x 2 patches. Got 5."


def test_rebuilding_the_report_of_what_is_no_run(vitrail, flowers):
    assert "report.json" in sentence(vitrail("report", flowers), 2)
