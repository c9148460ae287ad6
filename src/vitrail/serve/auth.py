"""Who may ask the model: bearer tokens from a file or the environment, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from ..errors import UsageError

TOKEN_VARIABLE = "VITRAIL_TOKEN"
MIN_TOKEN_LENGTH = 16
TOKEN_COMMAND = 'python -c "import secrets; print(secrets.token_urlsafe())"'


class BearerTokens:
    """The tokens of a server, of which only hashes are kept; without any, everybody may ask.

    Raises:
        UsageError: a token that is easily guessed, or that no header can carry.
    """

    def __init__(self, tokens: tuple[str, ...] = ()):
        for number, token in enumerate(tokens, 1):
            if len(token) < MIN_TOKEN_LENGTH:
                raise UsageError(
                    f"Token {number} has {len(token)} characters, and one of fewer than {MIN_TOKEN_LENGTH} can be "
                    f"guessed. "
                    f"Make one with: {TOKEN_COMMAND}"
                )
            if not all("!" <= letter <= "~" for letter in token):
                raise UsageError(
                    f"Token {number} holds spaces or letters that a header cannot carry. Make one with: {TOKEN_COMMAND}"
                )
        self._hashes = tuple(_hash_token(token.encode()) for token in tokens)

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def is_allowed(self, authorization: bytes) -> bool:
        """Whether the header `Authorization` carries one of them; every token is compared, whichever fits."""
        kind, _, token = authorization.partition(b" ")
        given = _hash_token(token.strip())
        fits = [hmac.compare_digest(given, known) for known in self._hashes]
        return not self._hashes or (any(fits) and kind.lower() == b"bearer")


def read_tokens(path: Path | None, environment: Mapping[str, str]) -> BearerTokens:
    """From a file with one token a line (# begins a comment), else from the variable VITRAIL_TOKEN.

    Raises:
        UsageError: the file cannot be read, holds none, or holds one that is easily guessed.
    """
    if path is None:
        found = environment.get(TOKEN_VARIABLE, "")
        return BearerTokens((found,) if found else ())
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"--token-file must be a text file with one token a line. {path}: {problem}.") from problem
    tokens = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not tokens:
        raise UsageError(f"--token-file holds no token: {path}. Write one a line, made with: {TOKEN_COMMAND}")
    return BearerTokens(tokens)


def _hash_token(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
