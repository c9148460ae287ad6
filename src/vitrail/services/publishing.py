"""Publishing a model on the Hugging Face Hub: files, model card and commit (`vitrail export --to hub:OWNER/NAME`)."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ..checkpoints import bundle, model_card
from ..errors import UsageError
from ..files import atomic, hub
from ..files.checksums import MANIFEST, write_manifest
from ..version import __version__
from . import conversion
from .open_model import ModelInfo, find_model, parse_choice

HubLayout = Literal["native", "timm", "transformers"]
HUB_LAYOUTS: tuple[HubLayout, ...] = get_args(HubLayout)
USAGE_SNIPPETS: Mapping[HubLayout, str] = {
    "native": """```
pip install vitrail
vitrail predict hf:{name} picture.jpg
```

```python
import vitrail
model = vitrail.load("hf:{name}")
```

`config.json` holds everything that a prediction needs, `manifest.json` the size and SHA-256 of every file but this
page: change none of them by hand.""",
    "timm": """```python
import timm
model = timm.create_model("hf_hub:{name}", pretrained=True)
```""",
    "transformers": """```python
from transformers import pipeline
answers = pipeline("{pipeline}", model="{name}")("picture.jpg")
```""",
}
"""Usage section of the model card by layout."""
HUB_LIBRARIES: Mapping[HubLayout, str] = {"native": "vitrail", "timm": "timm", "transformers": "transformers"}
USAGE_SECTION = re.compile(r"^## Use\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """What was pushed to the Hub, or would be with `dry_run`."""

    repository: str
    """OWNER/NAME."""
    layout: HubLayout
    files: Mapping[str, int]
    """Every file and its size in bytes."""
    card: str
    """README.md, the model's page on the Hub; one that was edited there is kept."""
    page: str
    """URL of the page; empty if nothing was sent."""
    commit: str
    notes: tuple[str, ...]
    """Notes for the user."""


def is_hub_target(to: str) -> bool:
    """Whether a target of `export` is on the Hub."""
    return to.startswith(hub.PUSH_PREFIX)


def publish_model(
    model_name: str,
    to: str,
    layout: str | None = None,
    private: bool = False,
    dry_run: bool = False,
    out: Path | None = None,
) -> PublishedModel:
    """Write a model's files and card, and push them to the Hub as one commit.

    Args:
        model_name: a run folder, a bundle, or any model that `convert` reads.
        to: "hub:OWNER/NAME".
        layout: "native" (a bundle, the default), "timm" or "transformers".
        private: create a private repository.
        dry_run: send nothing and do not use the network.
        out: a folder to keep a copy of the files.

    Raises:
        UsageError: no such layout, `out` exists, the layout cannot express the model, or see `hub.push_folder`.
        DamagedFileError: the model's files are damaged or malicious, or the written files give other predictions.
        ResourceError: the Hub cannot be reached; nothing was sent.
    """
    repository = hub.parse_push_target(to)
    chosen = parse_choice("native" if layout is None else layout, HUB_LAYOUTS, "--layout is")
    if out is not None:
        atomic.check_new_path(out)
    model_info = find_model(model_name)
    with tempfile.TemporaryDirectory(prefix="vitrail-") as parent:
        folder = Path(parent) / "model"
        notes: tuple[str, ...] = ()
        if chosen == "native" and model_info.bundle is not None:
            atomic.copy_folder(model_info.bundle, folder, without=MANIFEST)  # its hashes were compared
        else:
            notes = conversion.convert_model(model_info, "bundle" if chosen == "native" else chosen, folder).notes
        text = _make_hub_card(model_info, repository, chosen, notes)
        (folder / bundle.CARD_FILE).write_text(text, encoding="utf-8")
        if chosen == "native":
            write_manifest(folder, with_page=False)  # people edit it where the Hub shows it
        else:
            (folder / MANIFEST).unlink()  # other libraries do not look at it, and people may edit their files
        files = hub.list_files(folder)
        sent = hub.PushResult("", "", (), text)
        if not dry_run:
            sent = hub.push_folder(folder, repository, private, f"Written by Vitrail {__version__}")
        if out is not None:
            atomic.copy_folder(folder, out)
    if not hub.has_licence(sent.card):
        notes += ("the card states no licence; say on its page under which one others may use the model",)
    return PublishedModel(
        repository=repository, layout=chosen, files=files, card=sent.card, page=sent.page, commit=sent.commit,
        notes=(*notes, *sent.notes),
    )  # fmt: skip


def reject_hub_options(to: str, layout: str | None, private: bool, dry_run: bool) -> None:
    """Refuse options that only apply to the Hub.

    Raises:
        UsageError: one of them is set.
    """
    options = {"--layout": layout, "--private": private, "--dry-run": dry_run}
    if flags := [flag for flag, value in options.items() if value]:
        raise UsageError(f"{' and '.join(flags)} can be said with --to hub:OWNER/NAME alone. Got --to {to}.")


def _make_hub_card(model_info: ModelInfo, repository: str, layout: HubLayout, notes: tuple[str, ...]) -> str:
    """The model's card with front matter and usage section for the Hub."""
    pipeline = model_card.PIPELINE_TAGS.get(model_info.task, "image-feature-extraction")
    front_matter = [
        "---",
        f"library_name: {HUB_LIBRARIES[layout]}",
        f"pipeline_tag: {pipeline}",
        "tags: [vision-transformer, vitrail]",
    ]
    if re.fullmatch(r"[a-z][a-z0-9.-]{1,40}", model_info.licence):  # the form of a Hub identifier
        front_matter.append(f"license: {model_info.licence}")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", model_info.repository, re.ASCII):
        front_matter.append(f"base_model: {model_info.repository}")
    usage = USAGE_SNIPPETS[layout].replace("{name}", repository).replace("{pipeline}", pipeline)
    listed = ["", *(f"- {note}" for note in notes)] if notes else []
    section = "\n".join(["## Use", "", usage, *listed, "", ""])
    if model_info.bundle is not None and (model_info.bundle / bundle.CARD_FILE).is_file():
        text = (model_info.bundle / bundle.CARD_FILE).read_text(encoding="utf-8")
    else:
        parameters = sum(parameter.numel() for parameter in model_info.model.parameters())
        text = model_card.format_model_card(
            model_info.config, parameters, model_info.spec, model_info.task, model_info.classes, {}
        )
    text = hub.FRONT_MATTER_PATTERN.sub(lambda _: "\n".join([*front_matter, "---", ""]), text, count=1)
    return hub.seal_card(USAGE_SECTION.sub(lambda _: section, text, count=1))
