"""Models of the Hugging Face Hub by name, `hf:OWNER/NAME[@REVISION]`: one commit, no code, every hash compared.

huggingface_hub does the downloading: it goes on where a download was cut, and keeps what it has in its own cache,
where a later run finds it without a network. What it does not do, comparing the content with its hash, is done here.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DamagedFileError, ResourceError, UsageError, VitrailError
from .checksums import MANIFEST, sha256
from .disk import resource_errors

HUB_PREFIX = "hf:"
HUB_URL = "https://huggingface.co"
PICKLE_SUFFIXES = (".bin", ".pth", ".pt", ".ckpt", ".npz")
"""Endings of weights that are taken only where there is no safetensors file."""
CARD_FILE = "README.md"
FEATURE_STATS_FILE = "familiar.safetensors"
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
        return f"{HUB_URL}/{self.repository}/tree/{self.revision}"


@dataclass(frozen=True, kw_only=True)
class HubDownload:
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
    return text.startswith(HUB_PREFIX)


def parse_hub_name(text: str) -> HubName:
    """Take `hf:OWNER/NAME[@REVISION]` apart.

    Raises:
        UsageError: it is not of that form.
    """
    found = re.fullmatch(r"hf:([\w.-]+/[\w.-]+)(?:@(\w[\w./-]*))?", text, re.ASCII)
    if not found or ".." in text or len(text) > 200:
        raise UsageError(f"A model of the Hub is called hf:OWNER/NAME or hf:OWNER/NAME@REVISION. Got {text[:200]!r}.")
    return HubName(found[1], found[2] or "main")


def download_model(text: str) -> HubDownload:
    """Download a model, or find it where an earlier run put it.

    Of a repository only the safetensors files at its top are taken, with what describes them (.json, .md, .txt and
    the licence); pickled weights or .npz only if there is nothing else, for the restricted readers. Code never.

    Raises:
        UsageError: the name is malformed, or the Hub has no such model, revision, or weights; or it is gated.
        ResourceError: the Hub cannot be reached and the model is not here yet; the message says which files to
            download by hand and where to put them.
        DamagedFileError: a file's content does not match its hash. It has been removed, so that trying again helps.
    """
    name = parse_hub_name(text)
    folder, skipped = _download_snapshot(name)
    names = [file.name for file in folder.iterdir() if file.is_file()]
    notes = [*skipped]
    for file in sorted(names):
        if not _verify_hash(folder / file):
            notes.append(f"{file} has no hash to compare with; it was loaded unverified")
    return HubDownload(
        folder=folder,
        weights=tuple(_select_weights(names)),
        revision=folder.name,
        licence=read_licence(folder / CARD_FILE) or f"not stated; see {name.page}",
        notes=tuple(notes),
    )


def find_cached_model(text: str) -> Path | None:
    """The folder in which an earlier download left a model with its weights; nothing is asked of the network.

    Raises:
        UsageError: the name is malformed.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    return _find_snapshot(parse_hub_name(text), Path(HF_HUB_CACHE))


def read_licence(card: Path) -> str:
    """The licence that a model card states between its first two lines of dashes; empty if it states none."""
    if not card.is_file():
        return ""
    text = card.read_bytes()[: 2**20].decode("utf-8", "replace")
    fields = dict(
        re.findall(r"^(license|license_name|license_link):[ \t]*([^\n#]+)", _front_matter(text), re.MULTILINE)
    )
    said = {field: _strip_unprintable(value.strip().strip("\"'")[:200]) for field, value in fields.items()}
    words = said.get("license", "")
    if words in ("other", "unknown", "") and "license_name" in said:
        words = said["license_name"]
    link = said.get("license_link")
    return f"{words} ({link})" if words and link else words


def _front_matter(text: str) -> str:
    """What stands between the first two lines of dashes, or nothing."""
    lines = [line.rstrip() for line in text.lstrip().split("\n")]
    if lines[0] != "---" or "---" not in lines[1:]:
        return ""
    return "\n".join(lines[1 : lines.index("---", 1)])


def _strip_unprintable(text: str) -> str:
    """The text without what would move a terminal's cursor or colours."""
    return "".join(letter for letter in text if letter.isprintable())


def _download_snapshot(name: HubName) -> tuple[Path, list[str]]:
    """The folder of one commit with the wanted files, and notes on those that were left out."""
    import huggingface_hub as hub
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    try:
        with _translate_download_errors(name, cache):
            info = hub.HfApi().model_info(name.repository, revision=name.revision)
            wanted, notes = _select_files(name, [file.rfilename for file in info.siblings or []])
            folder = Path(hub.snapshot_download(name.repository, revision=name.revision, allow_patterns=wanted))
    except _HubUnreachableError as error:
        cached = _find_snapshot(name, cache)
        if cached is None:
            raise ResourceError(_manual_download_hint(name, str(error))) from error
        return cached, [f"The Hub cannot be reached; {name.repository} was taken from this machine's cache"]
    if info.sha and folder.name != info.sha:
        raise ResourceError(f"{name.repository} was changed while it was downloaded. Run the same command again.")
    return folder, notes


def _find_snapshot(name: HubName, cache: Path) -> Path | None:
    """The folder in which an earlier run left this revision with its weights, as every tool of the Hub lays it out."""
    model = cache / f"models--{name.repository.replace('/', '--')}"
    branch = model / "refs" / name.revision
    commit = branch.read_text(encoding="utf-8", errors="replace").strip() if branch.is_file() else name.revision
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        return None
    folder = model / "snapshots" / commit
    return folder if folder.is_dir() and _select_weights([file.name for file in folder.iterdir()]) else None


def _select_files(name: HubName, files: Collection[str]) -> tuple[list[str], list[str]]:
    """Names of the files to take, and sentences about those left."""
    top = [file for file in files if re.fullmatch(r"[\w.-]+", file, re.ASCII)]
    weights = _select_weights(top)
    if not weights:
        raise UsageError(
            f"{name.repository} has no weights that can be read here: its top folder holds no .safetensors file and "
            f"none of {', '.join(PICKLE_SUFFIXES)}. Look at {name.page}."
        )
    described = [
        file
        for file in top
        if (file.endswith((".json", ".md", ".txt")) or file.upper().startswith("LICEN"))
        and not file.startswith(("tokenizer", "vocab", "merges"))
    ]
    code = [file for file in files if file.endswith(".py")]
    notes = [f"{name.repository} also holds code ({code[0]}); it was not downloaded"] if code else []
    beside = [FEATURE_STATS_FILE] if {FEATURE_STATS_FILE, MANIFEST} <= set(top) else []
    return [*weights, *beside, *described], notes


def _select_weights(names: Collection[str]) -> list[str]:
    """The weights among a folder's files: model.safetensors, else its parts, else any safetensors, else pickles."""
    safe = sorted(file for file in names if file.endswith(".safetensors"))
    if "model.safetensors" in safe:
        return ["model.safetensors"]
    if parts := [file for file in safe if re.fullmatch(r"model-\d+-of-\d+\.safetensors", file)]:
        return parts
    if safe:
        return safe
    pickled = sorted(file for file in names if file.endswith(PICKLE_SUFFIXES) and file != "training_args.bin")
    return ["pytorch_model.bin"] if "pytorch_model.bin" in pickled else pickled


def _verify_hash(file: Path) -> bool:
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


class _HubUnreachableError(Exception):
    """No answer from the Hub; the words say why."""


@contextmanager
def _translate_download_errors(name: HubName, cache: Path) -> Iterator[None]:
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
            f"The Hub has no public model {name.repository}. Check the name at {HUB_URL}; for a private model log in "
            "with `hf auth login` first."
        ) from error
    except Exception as error:  # the network library differs from version to version
        raise _HubUnreachableError(summarize_error(error)) from error


def summarize_error(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    return (
        f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
        if str(error).strip()
        else type(error).__name__
    )


def _manual_download_hint(name: HubName, reason: str) -> str:
    return (
        f"The Hub cannot be reached ({reason}) and {name.repository} is not on this machine. On a machine with a "
        f"network open {name.page}, download model.safetensors (or the weights file that is there), config.json, "
        "preprocessor_config.json and README.md into one folder, copy the folder here, and give its path instead of "
        f"hf:{name.repository}."
    )


# A folder put on the Hugging Face Hub, `hub:OWNER/NAME`: a model repository with these files and no others.
#
# huggingface_hub does the sending, in one commit: either all files are there afterwards, or what was there before.

PUSH_PREFIX = "hub:"
HUB_OWN_FILES = (".gitattributes",)
"""What the Hub itself puts into a repository."""
EDITED_CARD_NOTE = (
    f"{CARD_FILE} there has been edited and was left as it is; to have the new one, delete it on the Hub and push again"
)


class PushResult(NamedTuple):
    """What is on the Hub now."""

    page: str
    """The address a person opens."""
    commit: str
    notes: tuple[str, ...]
    """What was left as it was, and what the Hub has to say about the card."""
    card: str = ""
    """The page that the Hub shows now; empty where nothing was sent or there is none."""


def parse_push_target(text: str) -> str:
    """OWNER/NAME of `hub:OWNER/NAME`.

    Raises:
        UsageError: it is not of that form.
    """
    found = re.fullmatch(r"hub:([\w.-]+/[\w.-]+)", text, re.ASCII)
    if not found or ".." in text or len(text) > 200:
        raise UsageError(f"A place for a model on the Hub is called hub:OWNER/NAME. Got {text[:200]!r}.")
    return found[1]


def list_files(folder: Path) -> dict[str, int]:
    """The name and size in bytes of every file that `send` would send, in the order of names."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {name: (folder / name).stat().st_size for name in names}


def push_folder(folder: Path, repository: str, private: bool, message: str) -> PushResult:
    """Put the files of a folder into a model repository, which is made if need be.

    A card edited on the Hub is left as it is, also one that is edited meanwhile.

    Args:
        private: make it for its owner alone; one that is there keeps who may see it.
        message: of the commit.

    Raises:
        UsageError: no token or one that may not write there; the repository holds other files, which a reader would
            take for parts of this model; or it is public and a private one was asked for.
        ResourceError: the Hub cannot be reached, and nothing was sent.
    """
    import huggingface_hub as hub

    token = hub.get_token()
    if not token:
        raise UsageError(
            "To put a model on the Hub one needs a token that may write, and none is here. Make one at "
            f"{HUB_URL}/settings/tokens, and log in with `hf auth login` or set HF_TOKEN."
        )
    api = hub.HfApi(token=token)
    names = list_files(folder)
    with _translate_push_errors(repository), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        there = _find_repository(api, repository)
        if there is None:
            api.create_repo(repository, private=private)
        else:
            _refuse_foreign_files(repository, [file.rfilename for file in there.siblings or []], names)
            _refuse_public(repository, private, bool(there.private))
        card, kept = _choose_card(api, there, folder)
        contents: dict[str, Path | bytes] = {name: folder / name for name in names}
        if kept:
            del contents[CARD_FILE]
        elif card:
            contents[CARD_FILE] = card.encode()
        added = [hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=one) for name, one in contents.items()]
        since = None if there is None else there.sha
        done = api.create_commit(repository, added, commit_message=message, parent_commit=since)
    notes = tuple(" ".join(str(one.message).split()) for one in said if one.category is UserWarning)
    return PushResult(f"{api.endpoint}/{repository}", done.oid, (*kept, *notes), card)


def _find_repository(api: Any, repository: str) -> Any | None:
    """What the Hub knows of a repository; None if there is none, or none that this token may see."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        return api.model_info(repository)
    except RepositoryNotFoundError:
        return None


def _choose_card(api: Any, repository_info: Any | None, folder: Path) -> tuple[str, tuple[str, ...]]:
    """The page that the Hub shall show, empty if there is none, and what to say if it is the one that it shows now."""
    ours = (folder / CARD_FILE).read_text(encoding="utf-8") if (folder / CARD_FILE).is_file() else ""
    if (
        repository_info is None
        or not ours
        or CARD_FILE not in [file.rfilename for file in repository_info.siblings or []]
    ):
        return ours, ()
    with tempfile.TemporaryDirectory(prefix="vitrail-") as aside:
        path = api.hf_hub_download(repository_info.id, CARD_FILE, revision=repository_info.sha, local_dir=aside)
        theirs = Path(path).read_text(encoding="utf-8", errors="replace")
    card = merge_cards(ours, theirs)
    return card, (EDITED_CARD_NOTE,) if card == theirs != ours else ()


def _refuse_foreign_files(repository: str, remote_names: Iterable[str], ours: Iterable[str]) -> None:
    others = sorted(set(remote_names) - set(ours) - set(HUB_OWN_FILES))
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise UsageError(
            f"{repository} on the Hub holds other files already ({', '.join(others[:3])}{more}), which a reader would "
            "take for parts of this model. Choose another name, or remove them there first."
        )


def _refuse_public(repository: str, private: bool, is_private: bool) -> None:
    if private and not is_private:
        raise UsageError(
            f"{repository} is on the Hub already and everybody can see it, so --private cannot be kept. Make it "
            f"private at {HUB_URL}/{repository}/settings, or choose another name."
        )


@contextmanager
def _translate_push_errors(repository: str) -> Iterator[None]:
    """What huggingface_hub and its network library raise, sorted into what a person can do."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except VitrailError:
        raise
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise UsageError(
                f"The Hub does not let this token write to {repository} (status {status}). Make one with write "
                f"permission for it at {HUB_URL}/settings/tokens, and log in with `hf auth login` or set HF_TOKEN."
            ) from error
        raise ResourceError(
            f"The Hub did not take {repository} (status {status}: {summarize_error(error)}). Try again later."
        ) from error
    except Exception as error:  # the network library differs from version to version
        raise ResourceError(
            f"The Hub cannot be reached ({summarize_error(error)}), so nothing was sent. Try again with a network, "
            f"or write "
            f"the same files with --out FOLDER --dry-run and send them from elsewhere: hf upload {repository} FOLDER."
        ) from error


# The card of a model on the Hub, README.md: ours is sealed, so that one that a person has edited is known and kept.

SEAL_PATTERN = re.compile(r"\n<!-- Written by Vitrail, ([0-9a-f]{64}): [^\n]*-->\n?\Z")
FRONT_MATTER_PATTERN = re.compile(r"\A---\n(.*?)^---\n", re.MULTILINE | re.DOTALL)
FIELD_PATTERN = re.compile(r"^([\w-]+):.*\n(?:[ \t-].*\n)*", re.MULTILINE)
"""One line of the head, with the lines that belong to it."""


def seal_card(card: str) -> str:
    """The card with a last line, which no reader sees, that says what it was when it was written."""
    text = _strip_seal(card)
    told = "edit this card as you like, later pushes keep what you wrote."
    return f"{text}\n<!-- Written by Vitrail, {_digest(text)}: {told} -->\n"


def is_unedited(card: str) -> bool:
    """Whether a card is ours and unchanged."""
    text = card.replace("\r\n", "\n")
    seal = SEAL_PATTERN.search(text)
    return seal is not None and seal[1] == _digest(_strip_seal(text))


def merge_cards(ours: str, theirs: str) -> str:
    """The card that the Hub shall show where it shows `theirs` already: ours, or theirs if a person wrote it.

    Of a card that is a head alone, as the Hub's own form for a new model makes it, the fields that ours lacks are
    taken over, such as the licence.
    """
    text = theirs.replace("\r\n", "\n")
    if is_unedited(text) or not text.strip():
        return ours
    head = FRONT_MATTER_PATTERN.match(text)
    if text[head.end() if head else 0 :].strip():
        return theirs
    known = FRONT_MATTER_PATTERN.match(ours)
    assert head is not None and known is not None
    said = {field[1] for field in FIELD_PATTERN.finditer(known[1])}
    more = [field[0] for field in FIELD_PATTERN.finditer(head[1]) if field[1] not in said]
    return seal_card(f"---\n{known[1]}{''.join(more)}---\n{ours[known.end() :]}")


def has_licence(card: str) -> bool:
    """Whether the head of a card names a licence."""
    head = FRONT_MATTER_PATTERN.match(card.replace("\r\n", "\n"))
    return head is not None and any(field[1] == "license" for field in FIELD_PATTERN.finditer(head[1]))


def _strip_seal(card: str) -> str:
    return SEAL_PATTERN.sub("", card)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
