from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

import vitrail
from vitrail.cli.main import COMMANDS, OTHER_VERBS, main
from vitrail.errors import MachineWarning


def test_nothing_typed_shows_every_verb(capsys):
    assert main([]) == 0
    page = capsys.readouterr().out
    assert all(f"\n  {verb} " in page for verb in COMMANDS)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vitrail {vitrail.__version__}\n"


@pytest.mark.parametrize("words", [["-V"], ["version"], ["train", "--version"], ["predict", "-V"]])
def test_the_version_is_said_wherever_it_is_asked_for(words, capsys):
    assert main(words) == 0
    assert capsys.readouterr().out == f"vitrail {vitrail.__version__}\n"
    main(["--help"])
    assert "vitrail --version" in capsys.readouterr().out


def test_help_is_a_word_too(capsys):
    assert main(["help", "train"]) == 0 and capsys.readouterr().out.startswith("usage: vitrail train")
    assert main(["help"]) == 0 and "usage: vitrail VERB" in capsys.readouterr().out


@pytest.mark.parametrize("verb", OTHER_VERBS)
def test_a_verb_of_other_programs_names_ours(verb, capsys):
    assert verb not in COMMANDS and OTHER_VERBS[verb] in COMMANDS
    assert main([verb, "x"]) == 2
    said = f"vitrail: There is no verb {verb!r}. It is called {OTHER_VERBS[verb]} here.\n"
    assert capsys.readouterr().err == said


def test_an_unknown_verb_names_the_nearest_one(capsys):
    assert main(["trian"]) == 2
    assert capsys.readouterr() == ("", "vitrail: There is no verb 'trian'. Did you mean train?\n")


def test_a_verb_like_no_other_lists_all(capsys):
    assert main(["zzz"]) == 2
    assert "The verbs are train, tune, evaluate, decide, teach, predict" in capsys.readouterr().err


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_shows_every_flag_with_its_line(verb, capsys):
    assert main([verb, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"usage: vitrail {verb}")
    flags = [line for line in lines if line.startswith("  --")]
    assert {"--json", "--debug"} <= {line.split()[0] for line in flags}
    bare = [line for place, line in enumerate(lines) if line.startswith("  --") and not _told(line, lines, place)]
    assert not bare, "a flag without its line"


def _told(line: str, lines: list[str], place: int) -> bool:
    """The text stands from column 26, on the flag's own line or the next."""
    return bool(line[26:].strip()) or lines[place + 1].startswith(" " * 26)


def test_train_has_at_most_thirty_flags(capsys):
    main(["train", "--help"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  --")]
    assert len([row for row in rows if not row.startswith("  --NAME.OF.FIELD")]) <= 30  # that row is of no single flag


def test_help_asked_for_after_two_hyphens_is_a_picture(capsys):
    assert main(["predict", "nowhere", "--", "--help"]) == 3
    assert capsys.readouterr().err == (
        "vitrail: There is no picture, folder, pattern or @list at --help. Check the path.\n"
    )


def test_debug_shows_the_traceback_and_keeps_the_sentence(capsys):
    assert main(["train", "--debug"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("Traceback") and error.splitlines()[-1].startswith("vitrail: A training needs a SOURCE")


def test_a_warning_about_the_machine_is_one_line_of_the_command(capsys, monkeypatch):
    def warn(words):
        warnings.warn("This machine cannot.", MachineWarning, stacklevel=1)
        return 0

    monkeypatch.setattr("vitrail.cli.main._run_command", warn)
    assert main([]) == 0
    assert capsys.readouterr() == ("", "vitrail: This machine cannot.\n")


def test_without_debug_there_is_one_sentence_only(capsys):
    assert main(["train"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_reader_who_leaves_early_causes_no_traceback():
    script = "import sys; from vitrail.cli.main import main; sys.exit(main(['train', '--help-plan'] ))"
    writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None and writer.stderr is not None
    writer.stdout.close()
    assert (writer.stderr.read(), writer.wait()) == (b"", 0)
    writer.stderr.close()


def test_a_working_folder_that_is_gone_is_said_before_anything_is_read(capsys, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["check", "/somewhere/films.csv"]) == 5
    assert capsys.readouterr().err == (
        "vitrail: The folder in which this command was started is gone. Change to one that exists.\n"
    )
