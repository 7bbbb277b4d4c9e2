"""The one way in which we and other servers prove to one another that both know a secret.

`X-Postroom-Signature: v1=<hex>` is the HMAC-SHA256 of `<timestamp>.<content>`, and `X-Postroom-Timestamp` is
that time in seconds since the epoch. The content is the body as it was sent.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

SIGNATURE: Final = "X-Postroom-Signature"
TIMESTAMP: Final = "X-Postroom-Timestamp"
WINDOW_SECONDS: Final = 300
LEAST_SECRET: Final = 16
"""Characters; a shorter one could be guessed from what it has signed."""
_TIME: Final = re.compile(r"[0-9]{1,12}")


class Proof(StrEnum):
    """What a signature proves."""

    GOOD = "good"
    WRONG = "wrong"
    TOO_OLD = "too old"
    """It was made more than five minutes before or after now."""


def signature(secret: str, timestamp: str, content: bytes) -> str:
    """Return the `v1=` signature of a content at a time in seconds since the epoch."""
    key = secret.encode("utf-8", "surrogateescape")
    return f"v1={hmac.digest(key, timestamp.encode() + b'.' + content, 'sha256').hex()}"


def signed(secret: str, content: bytes, *, now: int) -> dict[str, str]:
    """Return the headers that prove a content, signed at this instant."""
    timestamp = str(now // 1000)
    return {TIMESTAMP: timestamp, SIGNATURE: signature(secret, timestamp, content)}


def proof_of(secret: str, headers: Mapping[str, str], content: bytes, *, now: int) -> Proof:
    """Say what the headers that came with a content prove."""
    timestamp = headers.get(TIMESTAMP, "")
    is_right = same_secret(headers.get(SIGNATURE, ""), signature(secret, timestamp, content))
    if not is_right or not _TIME.fullmatch(timestamp):
        return Proof.WRONG
    return Proof.TOO_OLD if abs(now // 1000 - int(timestamp)) > WINDOW_SECONDS else Proof.GOOD


def same_secret(given: str, expected: str) -> bool:
    """Compare in a time that says nothing of where they differ, nor of their lengths."""
    hashes = (hashlib.sha256(one.encode("utf-8", "surrogatepass")).digest() for one in (given, expected))
    return hmac.compare_digest(*hashes)
