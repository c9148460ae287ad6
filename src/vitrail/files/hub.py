"""Models of the Hugging Face Hub by name, `hf:OWNER/NAME[@REVISION]`: one commit, no code, every hash compared.

huggingface_hub does the downloading: it goes on where a download was cut, and keeps what it has in its own cache,
where a later run finds it without a network. What it does not do, comparing the content with its hash, is done here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import DamagedFileError, ResourceError, UsageError, VitrailError
from .disk import resource_errors
from .manifest import MANIFEST, sha256

PREFIX = "hf:"
ADDRESS = "https://huggingface.co"
PICKLED = (".bin", ".pth", ".pt", ".ckpt", ".npz")
"""Endings of weights that are taken only where there is no safetensors file."""
CARD = "README.md"
BESIDE = "familiar.safetensors"
"""What a bundle keeps beside its weights; taken along where the manifest of one is."""


class HubName(NamedTuple):
    """`hf:OWNER/NAME@REVISION` in its parts."""

    repository: str
    """OWNER/NAME."""
    revision: str
    """A commit, branch or tag; main unless given."""

    @property
    def page(self) -> str:
        """The address a person opens."""
        return f"{ADDRESS}/{self.repository}/tree/{self.revision}"


@dataclass(frozen=True, kw_only=True)
class Downloaded:
    """A model of the Hub on this machine."""

    folder: Path
    """Where its files lie."""
    weights: tuple[str, ...]
    """Names of its weights files in that folder; one, unless they are cut into parts."""
    revision: str
    """The commit that these files are, 40 hexadecimal digits."""
    licence: str
    """As its model card states it; print it before the first use and keep it with what is made of the weights."""
    notes: tuple[str, ...]
    """What was left out or could not be checked, as sentences without a full stop."""


def is_hub_name(text: str) -> bool:
    """Whether a person means the Hub."""
    return text.startswith(PREFIX)


def parse(text: str) -> HubName:
    """Take `hf:OWNER/NAME[@REVISION]` apart.

    Raises:
        UsageError: it is not of that form.
    """
    found = re.fullmatch(r"hf:([\w.-]+/[\w.-]+)(?:@(\w[\w./-]*))?", text, re.ASCII)
    if not found or ".." in text or len(text) > 200:
        raise UsageError(f"A model of the Hub is called hf:OWNER/NAME or hf:OWNER/NAME@REVISION. Got {text[:200]!r}.")
    return HubName(found[1], found[2] or "main")


def fetch(text: str) -> Downloaded:
    """Download a model, or find it where an earlier run put it.

    Of a repository only the safetensors files at its top are taken, with what describes them (.json, .md, .txt and
    the licence); pickled weights or .npz only if there is nothing else, for the restricted readers. Code never.

    Raises:
        UsageError: the name is malformed, or the Hub has no such model, revision, or weights; or it is gated.
        ResourceError: the Hub cannot be reached and the model is not here yet; the message says which files to
            download by hand and where to put them.
        DamagedFileError: a file's content does not match its hash. It has been removed, so that trying again helps.
    """
    name = parse(text)
    folder, skipped = _from_hub(name)
    names = [file.name for file in folder.iterdir() if file.is_file()]
    notes = [*skipped]
    for file in sorted(names):
        if not _matches_its_hash(folder / file):
            notes.append(f"{file} has no hash to compare with; it was loaded unverified")
    return Downloaded(
        folder=folder,
        weights=tuple(_weights(names)),
        revision=folder.name,
        licence=licence_of(folder / CARD) or f"not stated; see {name.page}",
        notes=tuple(notes),
    )


def cached(text: str) -> Path | None:
    """The folder in which an earlier download left a model with its weights; nothing is asked of the network.

    Raises:
        UsageError: the name is malformed.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    return _cached(parse(text), Path(HF_HUB_CACHE))


def licence_of(card: Path) -> str:
    """The licence that a model card states between its first two lines of dashes; empty if it states none."""
    if not card.is_file():
        return ""
    text = card.read_bytes()[: 2**20].decode("utf-8", "replace")
    fields = dict(re.findall(r"^(license|license_name|license_link):[ \t]*([^\n#]+)", _front(text), re.MULTILINE))
    said = {field: _printable(value.strip().strip("\"'")[:200]) for field, value in fields.items()}
    words = said.get("license", "")
    if words in ("other", "unknown", "") and "license_name" in said:
        words = said["license_name"]
    link = said.get("license_link")
    return f"{words} ({link})" if words and link else words


def _front(text: str) -> str:
    """What stands between the first two lines of dashes, or nothing."""
    lines = [line.rstrip() for line in text.lstrip().split("\n")]
    if lines[0] != "---" or "---" not in lines[1:]:
        return ""
    return "\n".join(lines[1 : lines.index("---", 1)])


def _printable(text: str) -> str:
    """The text without what would move a terminal's cursor or colours."""
    return "".join(letter for letter in text if letter.isprintable())


def _from_hub(name: HubName) -> tuple[Path, list[str]]:
    """The folder of one commit with the wanted files, and notes on those that were left out."""
    import huggingface_hub as hub
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    try:
        with _in_words(name, cache):
            info = hub.HfApi().model_info(name.repository, revision=name.revision)
            wanted, notes = _wanted(name, [file.rfilename for file in info.siblings or []])
            folder = Path(hub.snapshot_download(name.repository, revision=name.revision, allow_patterns=wanted))
    except _UnreachableError as error:
        cached = _cached(name, cache)
        if cached is None:
            raise ResourceError(_by_hand(name, str(error))) from error
        return cached, [f"The Hub cannot be reached; {name.repository} was taken from this machine's cache"]
    if info.sha and folder.name != info.sha:
        raise ResourceError(f"{name.repository} was changed while it was downloaded. Run the same command again.")
    return folder, notes


def _cached(name: HubName, cache: Path) -> Path | None:
    """The folder in which an earlier run left this revision with its weights, as every tool of the Hub lays it out."""
    model = cache / f"models--{name.repository.replace('/', '--')}"
    branch = model / "refs" / name.revision
    commit = branch.read_text(encoding="utf-8", errors="replace").strip() if branch.is_file() else name.revision
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        return None
    folder = model / "snapshots" / commit
    return folder if folder.is_dir() and _weights([file.name for file in folder.iterdir()]) else None


def _wanted(name: HubName, files: Collection[str]) -> tuple[list[str], list[str]]:
    """Names of the files to take, and sentences about those left."""
    top = [file for file in files if re.fullmatch(r"[\w.-]+", file, re.ASCII)]
    weights = _weights(top)
    if not weights:
        raise UsageError(
            f"{name.repository} has no weights that can be read here: its top folder holds no .safetensors file and "
            f"none of {', '.join(PICKLED)}. Look at {name.page}."
        )
    described = [
        file
        for file in top
        if (file.endswith((".json", ".md", ".txt")) or file.upper().startswith("LICEN"))
        and not file.startswith(("tokenizer", "vocab", "merges"))
    ]
    code = [file for file in files if file.endswith(".py")]
    notes = [f"{name.repository} also holds code ({code[0]}); it was not downloaded"] if code else []
    beside = [BESIDE] if {BESIDE, MANIFEST} <= set(top) else []
    return [*weights, *beside, *described], notes


def _weights(names: Collection[str]) -> list[str]:
    """The weights among a folder's files: model.safetensors, else its parts, else any safetensors, else pickles."""
    safe = sorted(file for file in names if file.endswith(".safetensors"))
    if "model.safetensors" in safe:
        return ["model.safetensors"]
    if parts := [file for file in safe if re.fullmatch(r"model-\d+-of-\d+\.safetensors", file)]:
        return parts
    if safe:
        return safe
    pickled = sorted(file for file in names if file.endswith(PICKLED) and file != "training_args.bin")
    return ["pytorch_model.bin"] if "pytorch_model.bin" in pickled else pickled


def _matches_its_hash(file: Path) -> bool:
    """Compare a cached file with its name in the cache, which is its hash; False if there is no such name.

    Raises:
        DamagedFileError: it differs. The file is removed first.
    """
    content = file.resolve()
    if re.fullmatch(r"[0-9a-f]{64}", content.name):
        found = sha256(content)
    elif re.fullmatch(r"[0-9a-f]{40}", content.name):  # small files: as git hashes them
        data = content.read_bytes()
        found = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    else:
        return False
    if found == content.name:
        return True
    content.unlink()
    file.unlink(missing_ok=True)
    raise DamagedFileError(
        f"Checksum mismatch in the downloaded {file.name}: expected {content.name[:8]}, got {found[:8]}. "
        "The file was removed; run the same command again to download it anew."
    )


class _UnreachableError(Exception):
    """No answer from the Hub; the words say why."""


@contextmanager
def _in_words(name: HubName, cache: Path) -> Iterator[None]:
    """What huggingface_hub and its network library raise, sorted into what a person can do."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        with resource_errors(cache / name.repository):
            yield
    except VitrailError:
        raise
    except GatedRepoError as error:
        raise UsageError(
            f"{name.repository} is given out only to people who have accepted its licence. Open {name.page}, accept "
            "it there, log in with `hf auth login`, and run the same command again."
        ) from error
    except RevisionNotFoundError as error:
        raise UsageError(f"{name.repository} has no revision {name.revision}. Look at {name.page}.") from error
    except RepositoryNotFoundError as error:
        raise UsageError(
            f"The Hub has no public model {name.repository}. Check the name at {ADDRESS}; for a private model log in "
            "with `hf auth login` first."
        ) from error
    except Exception as error:  # the network library differs from version to version
        raise _UnreachableError(reason_of(error)) from error


def reason_of(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    return (
        f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
        if str(error).strip()
        else type(error).__name__
    )


def _by_hand(name: HubName, reason: str) -> str:
    return (
        f"The Hub cannot be reached ({reason}) and {name.repository} is not on this machine. On a machine with a "
        f"network open {name.page}, download model.safetensors (or the weights file that is there), config.json, "
        "preprocessor_config.json and README.md into one folder, copy the folder here, and give its path instead of "
        f"hf:{name.repository}."
    )
