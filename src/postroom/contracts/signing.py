"""Signatures with which servers prove to each other that they know a shared secret.

The header `X-Postroom-Signature: v1=<hex>` contains the HMAC-SHA256 of `<timestamp>.<content>`. The header
`X-Postroom-Timestamp` contains the timestamp in seconds since the epoch. The content is the exact request
body.
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
MIN_SECRET_LENGTH: Final = 16
"""Minimum number of characters; a shorter secret could be guessed from its signatures by brute force."""
_TIME: Final = re.compile(r"[0-9]{1,12}")


class Proof(StrEnum):
    """The result of verifying a signature."""

    GOOD = "good"
    WRONG = "wrong"
    TOO_OLD = "too old"
    """The time of the signature differs from the current time by more than five minutes."""


def signature(secret: str, timestamp: str, content: bytes) -> str:
    """Return the `v1=` signature of a request body.

    `timestamp` is in seconds since 1970.
    """
    key = secret.encode("utf-8", "surrogateescape")
    return f"v1={hmac.digest(key, timestamp.encode() + b'.' + content, 'sha256').hex()}"


def signed(secret: str, content: bytes, *, now: int) -> dict[str, str]:
    """Return HTTP headers that sign a request body at the time `now`."""
    timestamp = str(now // 1000)
    return {TIMESTAMP: timestamp, SIGNATURE: signature(secret, timestamp, content)}


def verify_signature(secret: str, headers: Mapping[str, str], content: bytes, *, now: int) -> Proof:
    """Verify the signature of a request body."""
    timestamp = headers.get(TIMESTAMP, "")
    is_right = same_secret(headers.get(SIGNATURE, ""), signature(secret, timestamp, content))
    if not is_right or not _TIME.fullmatch(timestamp):
        return Proof.WRONG
    return Proof.TOO_OLD if abs(now // 1000 - int(timestamp)) > WINDOW_SECONDS else Proof.GOOD


def same_secret(given: str, expected: str) -> bool:
    """Compare two secrets in constant time."""
    hashes = (hashlib.sha256(value.encode("utf-8", "surrogatepass")).digest() for value in (given, expected))
    return hmac.compare_digest(*hashes)
