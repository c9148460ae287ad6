"""Bearer token authentication: tokens from a file or the environment, compared in constant time."""

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
    """The tokens of a server, of which only SHA-256 hashes are kept; without tokens every request is allowed.

    Raises:
        UsageError: a token that is too short, or that no header can carry.
    """

    def __init__(self, tokens: tuple[str, ...] = ()):
        for number, token in enumerate(tokens, 1):
            if len(token) < MIN_TOKEN_LENGTH:
                raise UsageError(
                    f"Token {number} has {len(token)} characters, and one of fewer than {MIN_TOKEN_LENGTH} can be "
                    f"guessed. Make one with: {TOKEN_COMMAND}"
                )
            if not all("!" <= letter <= "~" for letter in token):
                raise UsageError(
                    f"Token {number} holds spaces or letters that a header cannot carry. Make one with: {TOKEN_COMMAND}"
                )
        self._hashes = tuple(hashlib.sha256(token.encode()).digest() for token in tokens)

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def is_allowed(self, authorization: bytes) -> bool:
        """Whether the header `Authorization` carries a valid token.

        Every token is compared, so that the time does not depend on which one matches.
        """
        scheme, _, token = authorization.partition(b" ")
        digest = hashlib.sha256(token.strip()).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._hashes]
        return not self._hashes or (any(matches) and scheme.lower() == b"bearer")


def read_tokens(path: Path | None, environment: Mapping[str, str]) -> BearerTokens:
    """Read tokens from a file with one token a line (# begins a comment), else from the variable VITRAIL_TOKEN.

    Raises:
        UsageError: the file cannot be read, holds no token, or holds one that is too short.
    """
    if path is None:
        token = environment.get(TOKEN_VARIABLE, "")
        return BearerTokens((token,) if token else ())
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"--token-file must be a text file with one token a line. {path}: {problem}.") from problem
    tokens = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not tokens:
        raise UsageError(f"--token-file holds no token: {path}. Write one a line, made with: {TOKEN_COMMAND}")
    return BearerTokens(tokens)
