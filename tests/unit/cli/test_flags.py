"""The flags are a promise: this list changes only on purpose."""

from __future__ import annotations

import pytest

from vitrail.cli.arguments import flag_names
from vitrail.cli.main import COMMANDS

FLAGS = {
    "train": """--val --test --model --weights --minutes --epochs --steps --image-size --channels --seed --device
                --data-root --skip-bad --task --group --case --exclude --folds --alpha --pretrain --plan --resume
                --extend --out --dry-run --full --devices --help-plan --json --debug""",
    "tune": """--trials --val --test --model --weights --minutes --steps --image-size --channels --seed --device
               --data-root --skip-bad --task --group --exclude --resume --out --json --debug""",
    "evaluate": """--against --suspects --by --shortcuts --corruptions --most --keep --unlike --plan-test --positive
                   --out --split --data-root --skip-bad --device --precision --json --debug""",
    "decide": """--rule --positive --at --abstain --alpha --prevalence --band --estimate --keep --by --use --into
                 --json --debug""",
    "teach": "--forget --group --alpha --keep --by --use --device --json --debug",
    "predict": "--to --group --sets --maps --masks --engine --part-size --skip-bad --device --precision --json --debug",
    "embed": "--to --features --nearest --of --skip-bad --device --precision --json --debug",
    "explain": """--method --class --layer --heads --patch --window --steps --fill --figure --image-size
                  --faithfulness --to --opacity --skip-bad --device --precision
                  --json --debug""",
    "inspect": """--walk --figures --picture --token --cmap --cost --on --devices --batch --pictures --epochs
                  --number-format --optimizer --reached --layout --match --heads --image-size --channels
                  --channels-policy --pool --network --allow-nonfinite --json --debug""",
    "export": """--formats --to --out --layout --private --dry-run --resize --precision --calibrate --force
                 --runtime --fetch --prove --json --debug""",
    "serve": """--host --port --name --token-file --proxy --max-bytes --max-pictures --batch --waiting --per-client
                --deadline --slow --workers --threads --device --precision --log --score-log --json --debug""",
    "watch": "--since --date --group --alarms --labels --normal-until --out --skip-bad --device --json --debug",
    "convert": """--to --out --layout --match --heads --image-size --channels --channels-policy --pool --outputs
                  --network --json --debug""",
    "report": "--for --positive --prevalence --parts-per-minute --hours --plots --verify --json --debug",
    "check": "--data-root --group --task --exclude --image-size --out --json --debug",
    "bench": """--only --batches --device --number-format --threads --optimizer --compile --rounds --attention --to
                --json --debug""",
    "doctor": "--device --json --debug",
}
WORDS = {
    "train": ("source",),
    "tune": ("source",),
    "evaluate": ("model", "source"),
    "decide": ("run_folder",),
    "teach": ("run_folder", "paths"),
    "predict": ("model", "paths"),
    "embed": ("model", "paths"),
    "explain": ("model", "paths"),
    "inspect": ("model",),
    "export": ("model",),
    "serve": ("model",),
    "watch": ("run_folder", "paths"),
    "convert": ("model",),
    "report": ("run_folder",),
    "check": ("source",),
    "bench": ("model",),
    "doctor": (),
}


def test_only_verbs_that_work_are_listed():
    assert list(COMMANDS) == list(FLAGS)


@pytest.mark.parametrize("verb", FLAGS)
def test_flags_and_words_are_these(verb):
    assert list(flag_names(COMMANDS[verb])) == FLAGS[verb].split()
    words = COMMANDS[verb].POSITIONAL
    assert words == WORDS[verb]
