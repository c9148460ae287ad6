"""A folder put on the Hugging Face Hub, `hub:OWNER/NAME`: a model repository with these files and no others.

huggingface_hub does the sending, in one commit: either all files are there afterwards, or what was there before.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ResourceError, UsageError, VitrailError
from .hub import ADDRESS, CARD, reason_of
from .hub_card import merged

PREFIX = "hub:"
HUBS_OWN = (".gitattributes",)
"""What the Hub itself puts into a repository."""
KEPT = f"{CARD} there has been edited and was left as it is; to have the new one, delete it on the Hub and push again"


class Sent(NamedTuple):
    """What is on the Hub now."""

    page: str
    """The address a person opens."""
    commit: str
    notes: tuple[str, ...]
    """What was left as it was, and what the Hub has to say about the card."""
    card: str = ""
    """The page that the Hub shows now; empty where nothing was sent or there is none."""


def parse(text: str) -> str:
    """OWNER/NAME of `hub:OWNER/NAME`.

    Raises:
        UsageError: it is not of that form.
    """
    found = re.fullmatch(r"hub:([\w.-]+/[\w.-]+)", text, re.ASCII)
    if not found or ".." in text or len(text) > 200:
        raise UsageError(f"A place for a model on the Hub is called hub:OWNER/NAME. Got {text[:200]!r}.")
    return found[1]


def listed(folder: Path) -> dict[str, int]:
    """The name and size in bytes of every file that `send` would send, in the order of names."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {name: (folder / name).stat().st_size for name in names}


def send(folder: Path, repository: str, private: bool, message: str) -> Sent:
    """Put the files of a folder into a model repository, which is made if need be.

    A card that a person has edited there is left as it is; whoever edits one meanwhile is not written over either.

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
            f"{ADDRESS}/settings/tokens, and log in with `hf auth login` or set HF_TOKEN."
        )
    api = hub.HfApi(token=token)
    names = listed(folder)
    with _in_words(repository), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        there = _there(api, repository)
        if there is None:
            api.create_repo(repository, private=private)
        else:
            _refuse_others(repository, [file.rfilename for file in there.siblings or []], names)
            _refuse_public(repository, private, bool(there.private))
        card, kept = _card(api, there, folder)
        contents: dict[str, Path | bytes] = {name: folder / name for name in names}
        if kept:
            del contents[CARD]
        elif card:
            contents[CARD] = card.encode()
        added = [hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=one) for name, one in contents.items()]
        since = None if there is None else there.sha
        done = api.create_commit(repository, added, commit_message=message, parent_commit=since)
    notes = tuple(" ".join(str(one.message).split()) for one in said if one.category is UserWarning)
    return Sent(f"{api.endpoint}/{repository}", done.oid, (*kept, *notes), card)


def _there(api: Any, repository: str) -> Any | None:
    """What the Hub knows of a repository; None if there is none, or none that this token may see."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        return api.model_info(repository)
    except RepositoryNotFoundError:
        return None


def _card(api: Any, there: Any | None, folder: Path) -> tuple[str, tuple[str, ...]]:
    """The page that the Hub shall show, empty if there is none, and what to say if it is the one that it shows now."""
    ours = (folder / CARD).read_text(encoding="utf-8") if (folder / CARD).is_file() else ""
    if there is None or not ours or CARD not in [file.rfilename for file in there.siblings or []]:
        return ours, ()
    with tempfile.TemporaryDirectory(prefix="vitrail-") as aside:
        path = api.hf_hub_download(there.id, CARD, revision=there.sha, local_dir=aside)
        theirs = Path(path).read_text(encoding="utf-8", errors="replace")
    card = merged(ours, theirs)
    return card, (KEPT,) if card == theirs != ours else ()


def _refuse_others(repository: str, there: Iterable[str], ours: Iterable[str]) -> None:
    others = sorted(set(there) - set(ours) - set(HUBS_OWN))
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
            f"private at {ADDRESS}/{repository}/settings, or choose another name."
        )


@contextmanager
def _in_words(repository: str) -> Iterator[None]:
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
                f"permission for it at {ADDRESS}/settings/tokens, and log in with `hf auth login` or set HF_TOKEN."
            ) from error
        raise ResourceError(
            f"The Hub did not take {repository} (status {status}: {reason_of(error)}). Try again later."
        ) from error
    except Exception as error:  # the network library differs from version to version
        raise ResourceError(
            f"The Hub cannot be reached ({reason_of(error)}), so nothing was sent. Try again with a network, or write "
            f"the same files with --out FOLDER --dry-run and send them from elsewhere: hf upload {repository} FOLDER."
        ) from error
