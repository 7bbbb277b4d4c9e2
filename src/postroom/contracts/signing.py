"""Signatures with which postroom and other servers prove that they know a shared secret.

`X-Postroom-Signature: v1=<hex>` is the HMAC-SHA256 of `<timestamp>.<content>`, and `X-Postroom-Timestamp` is
that time in seconds since the epoch. The content is the request body exactly as it was sent.
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
"""Minimum number of characters; a shorter secret could be found by brute force from its signatures."""
_TIME: Final = re.compile(r"[0-9]{1,12}")


class Proof(StrEnum):
    """The result of verifying a signature."""

    GOOD = "good"
    WRONG = "wrong"
    TOO_OLD = "too old"
    """The signature was made more than five minutes before or after now."""


def signature(secret: str, timestamp: str, content: bytes) -> str:
    """Return the `v1=` signature of content at a time in seconds since the epoch."""
    key = secret.encode("utf-8", "surrogateescape")
    return f"v1={hmac.digest(key, timestamp.encode() + b'.' + content, 'sha256').hex()}"


def signed(secret: str, content: bytes, *, now: int) -> dict[str, str]:
    """Return headers with a signature of the content at this time."""
    timestamp = str(now // 1000)
    return {TIMESTAMP: timestamp, SIGNATURE: signature(secret, timestamp, content)}


def proof_of(secret: str, headers: Mapping[str, str], content: bytes, *, now: int) -> Proof:
    """Verify the signature of the content in the headers."""
    timestamp = headers.get(TIMESTAMP, "")
    is_right = same_secret(headers.get(SIGNATURE, ""), signature(secret, timestamp, content))
    if not is_right or not _TIME.fullmatch(timestamp):
        return Proof.WRONG
    return Proof.TOO_OLD if abs(now // 1000 - int(timestamp)) > WINDOW_SECONDS else Proof.GOOD


def same_secret(given: str, expected: str) -> bool:
    """Compare secrets in a time that does not depend on their lengths or on the first difference."""
    hashes = (hashlib.sha256(value.encode("utf-8", "surrogatepass")).digest() for value in (given, expected))
    return hmac.compare_digest(*hashes)
