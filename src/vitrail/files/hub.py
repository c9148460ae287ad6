"""Download models from the Hugging Face Hub, `hf:OWNER/NAME[@REVISION]`, and push folders to it.

huggingface_hub downloads: it resumes interrupted downloads and has a cache that later runs use offline. It does not
verify hashes, which is done here. Code is never downloaded.
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
"""Suffixes of weights that are downloaded only if there is no safetensors file."""
CARD_FILE = "README.md"
FEATURE_STATS_FILE = "familiar.safetensors"
"""A bundle's file beside its weights; downloaded if the repository has a bundle's manifest."""


class HubName(NamedTuple):
    """The parts of `hf:OWNER/NAME@REVISION`."""

    repository: str
    """OWNER/NAME."""
    revision: str
    """A commit, branch or tag; main unless given."""

    @property
    def page(self) -> str:
        """The web page of the revision."""
        return f"{HUB_URL}/{self.repository}/tree/{self.revision}"


@dataclass(frozen=True, kw_only=True)
class HubDownload:
    """A downloaded model."""

    folder: Path
    weights: tuple[str, ...]
    """Names of the weights files in that folder; several if they are sharded."""
    revision: str
    """The commit, 40 hexadecimal digits."""
    licence: str
    """From the model card; print it before the first use and keep it with derived weights."""
    notes: tuple[str, ...]
    """What was left out or could not be checked, as sentences without a full stop."""


def is_hub_name(text: str) -> bool:
    """Whether a name begins with `hf:`."""
    return text.startswith(HUB_PREFIX)


def parse_hub_name(text: str) -> HubName:
    """Parse `hf:OWNER/NAME[@REVISION]`.

    Raises:
        UsageError: it is not of that form.
    """
    match = re.fullmatch(r"hf:([\w.-]+/[\w.-]+)(?:@(\w[\w./-]*))?", text, re.ASCII)
    if not match or ".." in text or len(text) > 200:
        raise UsageError(f"A model of the Hub is called hf:OWNER/NAME or hf:OWNER/NAME@REVISION. Got {text[:200]!r}.")
    return HubName(match[1], match[2] or "main")


def download_model(text: str) -> HubDownload:
    """Download a model, or find it in the cache, and verify its hashes.

    Only safetensors files at the top of the repository are downloaded, with their descriptions (.json, .md, .txt and
    the licence); pickled weights or .npz only if there is nothing else, for the restricted readers.

    Raises:
        UsageError: the name is malformed, or the Hub has no such model, revision, or weights; or it is gated.
        ResourceError: the Hub cannot be reached and the model is not cached; the message says which files to
            download by hand and where to put them.
        DamagedFileError: a file's content does not match its hash. The file is removed, so that a retry can work.
    """
    name = parse_hub_name(text)
    folder, notes = _download_snapshot(name)
    names = [file.name for file in folder.iterdir() if file.is_file()]
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
    """The cached folder of a model with its weights, without network access; None if it is not cached.

    Raises:
        UsageError: the name is malformed.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    return _find_snapshot(parse_hub_name(text), Path(HF_HUB_CACHE))


def read_licence(card: Path) -> str:
    """The licence in the front matter of a model card; empty if there is none."""
    if not card.is_file():
        return ""
    text = card.read_bytes()[: 2**20].decode("utf-8", "replace")
    fields = dict(
        re.findall(r"^(license|license_name|license_link):[ \t]*([^\n#]+)", _front_matter(text), re.MULTILINE)
    )
    for field, value in fields.items():  # without terminal escape sequences
        fields[field] = "".join(letter for letter in value.strip().strip("\"'")[:200] if letter.isprintable())
    licence = fields.get("license", "")
    if licence in ("other", "unknown", "") and "license_name" in fields:
        licence = fields["license_name"]
    link = fields.get("license_link")
    return f"{licence} ({link})" if licence and link else licence


def _front_matter(text: str) -> str:
    """The text between the first two lines of dashes, or an empty string."""
    lines = [line.rstrip() for line in text.lstrip().split("\n")]
    if lines[0] != "---" or "---" not in lines[1:]:
        return ""
    return "\n".join(lines[1 : lines.index("---", 1)])


def _download_snapshot(name: HubName) -> tuple[Path, list[str]]:
    """The folder of one commit with the selected files, and notes on those that were left out."""
    import huggingface_hub as hub
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    cache = Path(HF_HUB_CACHE)
    try:
        with resource_errors(cache / name.repository):
            info = hub.HfApi().model_info(name.repository, revision=name.revision)
            wanted, notes = _select_files(name, [file.rfilename for file in info.siblings or []])
            folder = Path(hub.snapshot_download(name.repository, revision=name.revision, allow_patterns=wanted))
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
    except Exception as error:  # no network; its exceptions differ between versions of the network library
        cached = _find_snapshot(name, cache)
        if cached is None:
            raise ResourceError(
                f"The Hub cannot be reached ({summarize_error(error)}) and {name.repository} is not on this machine. "
                f"On a machine with a network open {name.page}, download model.safetensors (or the weights file that "
                "is there), config.json, preprocessor_config.json and README.md into one folder, copy the folder "
                f"here, and give its path instead of hf:{name.repository}."
            ) from error
        return cached, [f"The Hub cannot be reached; {name.repository} was taken from this machine's cache"]
    if info.sha and folder.name != info.sha:
        raise ResourceError(f"{name.repository} was changed while it was downloaded. Run the same command again.")
    return folder, notes


def _find_snapshot(name: HubName, cache: Path) -> Path | None:
    """The folder of this revision in the Hub's cache, if it has weights."""
    model = cache / f"models--{name.repository.replace('/', '--')}"
    branch = model / "refs" / name.revision
    commit = branch.read_text(encoding="utf-8", errors="replace").strip() if branch.is_file() else name.revision
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        return None
    folder = model / "snapshots" / commit
    return folder if folder.is_dir() and _select_weights([file.name for file in folder.iterdir()]) else None


def _select_files(name: HubName, files: Collection[str]) -> tuple[list[str], list[str]]:
    """Names of the files to download, and notes on those left out."""
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
    """The weights among a folder's files: model.safetensors, else its shards, else any safetensors, else pickles."""
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
    """Compare a cached file with the hash that is its name, and remove it if it differs; False if there is no hash."""
    content = file.resolve()
    if re.fullmatch(r"[0-9a-f]{64}", content.name):
        digest = sha256(content)
    elif re.fullmatch(r"[0-9a-f]{40}", content.name):  # small files: Git's hash of a blob
        data = content.read_bytes()
        digest = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    else:
        return False
    if digest == content.name:
        return True
    content.unlink()
    file.unlink(missing_ok=True)
    raise DamagedFileError(
        f"Checksum mismatch in the downloaded {file.name}: expected {content.name[:8]}, got {digest[:8]}. "
        "The file was removed; run the same command again to download it anew."
    )


def summarize_error(error: Exception) -> str:
    """An error's type and the first line of its message."""
    kind, lines = type(error).__name__, str(error).strip().splitlines()
    return f"{kind}: {lines[0][:120]}" if lines else kind


# -- Push a folder to `hub:OWNER/NAME`, a model repository with these files and no others, in one atomic commit.

PUSH_PREFIX = "hub:"


class PushResult(NamedTuple):
    """The state of the repository after a push."""

    page: str
    """Address of its web page."""
    commit: str
    notes: tuple[str, ...]
    """A card that was kept, and the Hub's warnings about the card."""
    card: str = ""
    """The model card on the Hub; empty if nothing was pushed or there is none."""


def parse_push_target(text: str) -> str:
    """OWNER/NAME of `hub:OWNER/NAME`.

    Raises:
        UsageError: it is not of that form.
    """
    match = re.fullmatch(r"hub:([\w.-]+/[\w.-]+)", text, re.ASCII)
    if not match or ".." in text or len(text) > 200:
        raise UsageError(f"A place for a model on the Hub is called hub:OWNER/NAME. Got {text[:200]!r}.")
    return match[1]


def list_files(folder: Path) -> dict[str, int]:
    """Name and size in bytes of every file that `push_folder` sends, sorted by name."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {name: (folder / name).stat().st_size for name in names}


def push_folder(folder: Path, repository: str, private: bool, message: str) -> PushResult:
    """Push the files of a folder to a model repository, which is created if needed.

    A card that was edited on the Hub is kept.

    Args:
        private: create a private repository; the visibility of an existing one is not changed.
        message: of the commit.

    Raises:
        UsageError: no token or one without write permission; the repository has other files, which a reader would
            take for parts of this model; or it is public and `private` is set.
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
    with _translate_push_errors(repository), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        existing = _find_repository(api, repository)
        if existing is None:
            api.create_repo(repository, private=private)
        else:
            _refuse_foreign_files(repository, [file.rfilename for file in existing.siblings or []], names)
            if private and not existing.private:
                raise UsageError(
                    f"{repository} is on the Hub already and everybody can see it, so --private cannot be kept. Make "
                    f"it private at {HUB_URL}/{repository}/settings, or choose another name."
                )
        card, kept = _choose_card(api, existing, folder)
        contents: dict[str, Path | bytes] = {name: folder / name for name in names}
        if kept:
            del contents[CARD_FILE]
        elif card:
            contents[CARD_FILE] = card.encode()
        added = [hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=one) for name, one in contents.items()]
        parent = None if existing is None else existing.sha
        commit = api.create_commit(repository, added, commit_message=message, parent_commit=parent)
    notes = tuple(" ".join(str(one.message).split()) for one in caught if one.category is UserWarning)
    return PushResult(f"{api.endpoint}/{repository}", commit.oid, (*kept, *notes), card)


def _find_repository(api: Any, repository: str) -> Any | None:
    """The Hub's description of a repository; None if there is none that this token may see."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        return api.model_info(repository)
    except RepositoryNotFoundError:
        return None


def _choose_card(api: Any, repository_info: Any | None, folder: Path) -> tuple[str, tuple[str, ...]]:
    """The card to push, empty if there is none, and a note if it is the edited one on the Hub."""
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
    if card != theirs or theirs == ours:
        return card, ()
    note = (
        f"{CARD_FILE} there has been edited and was left as it is; to have the new one, delete it on the Hub and push "
        "again"
    )
    return card, (note,)


def _refuse_foreign_files(repository: str, remote_names: Iterable[str], ours: Iterable[str]) -> None:
    others = sorted(set(remote_names) - set(ours) - {".gitattributes"})  # which the Hub itself adds
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise UsageError(
            f"{repository} on the Hub holds other files already ({', '.join(others[:3])}{more}), which a reader would "
            "take for parts of this model. Choose another name, or remove them there first."
        )


@contextmanager
def _translate_push_errors(repository: str) -> Iterator[None]:
    """Translate the exceptions of huggingface_hub and its network library into our own."""
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
            f"The Hub cannot be reached ({summarize_error(error)}), so nothing was sent. Try again with a network, or "
            "write the same files with --out FOLDER --dry-run and send them from elsewhere: hf upload "
            f"{repository} FOLDER."
        ) from error


# -- The model card, README.md. Ours ends with a seal (its hash in a comment), so that edited cards are recognised.

SEAL_PATTERN = re.compile(r"\n<!-- Written by Vitrail, ([0-9a-f]{64}): [^\n]*-->\n?\Z")
FRONT_MATTER_PATTERN = re.compile(r"\A---\n(.*?)^---\n", re.MULTILINE | re.DOTALL)
FIELD_PATTERN = re.compile(r"^([\w-]+):.*\n(?:[ \t-].*\n)*", re.MULTILINE)
"""A field of the front matter, with its continuation lines."""


def seal_card(card: str) -> str:
    """Append the card's hash in a comment, in place of an older one."""
    text = SEAL_PATTERN.sub("", card)
    hint = "edit this card as you like, later pushes keep what you wrote."
    return f"{text}\n<!-- Written by Vitrail, {_digest(text)}: {hint} -->\n"


def is_unedited(card: str) -> bool:
    """Whether a card has a seal that matches its text."""
    text = card.replace("\r\n", "\n")
    seal = SEAL_PATTERN.search(text)
    return seal is not None and seal[1] == _digest(text[: seal.start()])


def merge_cards(ours: str, theirs: str) -> str:
    """The card to show: ours, or theirs (on the Hub) if a person wrote it.

    A card of front matter alone, as the Hub's form for a new model writes it, only adds the fields that ours lacks,
    such as the licence.
    """
    text = theirs.replace("\r\n", "\n")
    if is_unedited(text) or not text.strip():
        return ours
    head = FRONT_MATTER_PATTERN.match(text)
    if text[head.end() if head else 0 :].strip():
        return theirs
    our_head = FRONT_MATTER_PATTERN.match(ours)
    assert head is not None and our_head is not None
    known = {field[1] for field in FIELD_PATTERN.finditer(our_head[1])}
    more = [field[0] for field in FIELD_PATTERN.finditer(head[1]) if field[1] not in known]
    return seal_card(f"---\n{our_head[1]}{''.join(more)}---\n{ours[our_head.end() :]}")


def has_licence(card: str) -> bool:
    """Whether the front matter of a card names a licence."""
    head = FRONT_MATTER_PATTERN.match(card.replace("\r\n", "\n"))
    return head is not None and any(field[1] == "license" for field in FIELD_PATTERN.finditer(head[1]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
