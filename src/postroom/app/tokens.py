"""Creates and checks tokens. A token is stored in a private file or as a hash, and shown only once.

A token has 256 random bits. Nobody can guess a token, so a plain SHA-256 is as secure as a slow password
hash. People, secret scanners and postroom's logs recognise a token by its prefix.
"""

import errno
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from postroom.contracts.errors import ConfigError, StoreFull
from postroom.contracts.tokens import PLATFORM_TOKENS, RUN_PREFIX, TOKEN_PREFIX
from postroom.rights import denied

SERVER_PREFIX: Final = "prm_"
AGENT_PREFIX: Final = "pra_"
_ID_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
_ID_LENGTH: Final = 12

_FORM: Final = re.compile(r"prm_[A-Za-z0-9_-]{43}")
_SECRETS: Final = re.compile(
    r"(pr[almrt]_|gh[a-z]_|sk-|eyJ)[A-Za-z0-9_.-]{8,}"  # postroom, GitHub, models, JWT
    r"|\b(bearer\s+)[^\s\"',]{8,}"
    r"|(://[^/\s:@]*:)[^/\s@]+(?=@)"  # the password in an address
    rf"|{PLATFORM_TOKENS.pattern}",
    re.IGNORECASE,
)
_PASSWORD: Final = re.compile(r"://[^/\s]*@")
_LARGEST_FILE: Final = 4096
_SHARED: Final = stat.S_IRWXG | stat.S_IRWXO


def load_or_make_token(path: Path) -> str:
    """Return the server's token; create the token file if the file is missing.

    All concurrent callers get the same token. The token file has mode 0600.

    Raises:
        ConfigError: Other users can read the file, another user owns it, it contains no token, or the folder
            is not writable.
        StoreFull: The disk is full.
    """
    try:
        text = _read(path)
        if text is None:
            _publish(path, SERVER_PREFIX + secrets.token_urlsafe(32))
            text = _read(path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(
                f"the disk is full: {path}: {error}",
                value=str(path),
                remedy=f"free space on the disk of {path.parent}, and try again",
            ) from error
        what = f"the token file {path} cannot be read or created"
        access = denied(path, os.R_OK) or denied(path, os.R_OK | os.W_OK)
        if access is None:
            raise ConfigError(
                f"{what}: {error.strerror}",
                value=str(path),
                remedy=(
                    "correct the permissions of the folder, or set POSTROOM_DATA_DIR to a folder of the "
                    "server's user"
                ),
            ) from error
        raise ConfigError(f"{what}: {access.why(path)}", value=str(path), remedy=access.remedy) from error
    if text is None:
        raise ConfigError(f"the token file {path} was removed while the server started", value=str(path))
    return text


def new_run_token(server: str) -> str:
    """Return a new token for a run; `server` is the tag of the server that issues the token."""
    return f"{RUN_PREFIX}{server}_{secrets.token_urlsafe(32)}"


def new_agent_token() -> str:
    """Return a new token for an agent; the caller must store only the hash of the token."""
    return AGENT_PREFIX + secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A new named token; only the field `token` is secret."""

    id: str
    token: str = field(repr=False)
    hash: str


def new_named_token() -> NewToken:
    """Return a new named token with a public id and 256 random bits."""
    token_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
    token = f"{TOKEN_PREFIX}{token_id}_{secrets.token_urlsafe(32)}"
    return NewToken(id=token_id, token=token, hash=_digest(token).hex())


def token_check(expected: str) -> Callable[[str], bool]:
    """Return a function that compares tokens with the expected token in constant time."""
    digest = _digest(expected)
    return lambda given: hmac.compare_digest(_digest(given), digest)


def derived_key(token: str, purpose: str) -> bytes:
    """Return a 32-byte key for a purpose that only a holder of the token can compute."""
    return hmac.digest(token.encode(), purpose.encode(), "sha256")


def redact(text: str) -> str:
    """Mask all tokens and bearer headers in a text."""
    return _SECRETS.sub(lambda match: f"{match[match.lastindex or 1] or ''}***", text)


def shown(value: object) -> str:
    """Return a value as text for error messages, with secrets masked and at most 200 characters long."""
    return _PASSWORD.sub("://***@", redact(str(value)))[:200]


def _digest(token: str) -> bytes:
    # An environment variable or a header can contain lone surrogates, which strict UTF-8 rejects.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _read(path: Path) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:  # noqa: PTH123 - the checks below need this very descriptor
        found = os.fstat(descriptor)
        if found.st_mode & _SHARED:
            raise ConfigError(
                f"other users can use the token file {path} (mode {stat.S_IMODE(found.st_mode):04o})",
                value=str(path),
                remedy=(
                    f"run chmod 600 {path}; if others may have read it, remove the file instead to get a new "
                    "token"
                ),
            )
        if found.st_uid != os.geteuid():
            raise ConfigError(
                f"the token file {path} belongs to user {found.st_uid}, not to the server's user "
                f"{os.geteuid()}",
                value=str(path),
                remedy=(
                    f"run `chown {os.geteuid()} {path}` as root, or run this command as user {found.st_uid}; "
                    "if others may have read the token, remove the file to get a new token"
                ),
            )
        text = file.read(_LARGEST_FILE).decode("ascii", "replace").strip()
    if not _FORM.fullmatch(text):
        raise ConfigError(
            f"the file {path} contains no token of this server",
            value=str(path),
            remedy="remove the file; the next start creates a new token, which clients then need",
        )
    return text


def _publish(path: Path, token: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a Path cannot open a descriptor
            file.write(token.encode() + b"\n")
            file.flush()
            os.fsync(descriptor)
        path.hardlink_to(draft)
    except FileExistsError:
        return  # another process was first: use its token
    finally:
        draft.unlink()
