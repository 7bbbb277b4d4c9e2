"""Encrypts notifications for one browser, and proves to its push service which server sends them.

RFC 8291 defines the encryption, in one record of RFC 8188: only the browser can read a notification, and its
push service sees at most the size. RFC 8292 defines the proof (VAPID). This module should be imported only
when it is needed, because its libraries load slowly.
"""

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDH,
    SECP256R1,
    EllipticCurvePublicKey,
    derive_private_key,
    generate_private_key,
)
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

MAX_BYTES: Final = 3_993
"""Maximum number of bytes in a notification: every push service accepts 4,096 encrypted bytes."""
_RECORD: Final = 4_096
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of the curve P-256."""
_AUTH_BYTES: Final = 16
_PROOF_SECONDS: Final = 12 * 3600
"""The time for which a proof is valid; push services accept at most 24 hours."""


class ServerKey:
    """The key that identifies the server to push services."""

    def __init__(self, secret: bytes) -> None:
        """Derive the key from 32 secret bytes."""
        self._key = derive_private_key(int.from_bytes(secret, "big") % (_ORDER - 1) + 1, SECP256R1())
        self.public = encoded(_point(self._key.public_key()))
        """The public key as base64url."""

    def proof(self, endpoint: str, *, contact: str, now: int) -> str:
        """Return the `Authorization` header for a request to a push endpoint.

        `now` is in milliseconds since 1970.
        """
        parts = urlsplit(endpoint)
        claims = {
            "aud": f"{parts.scheme}://{parts.netloc}",
            "exp": now // 1000 + _PROOF_SECONDS,
            "sub": contact,
        }
        return f"vapid t={jwt.encode(claims, self._key, algorithm='ES256')}, k={self.public}"


def encrypted(text: bytes, p256dh: str, auth: str) -> bytes:
    """Encrypt a text for the browser that has the given keys.

    Raises:
        ValueError: The keys are not a point of the curve and 16 bytes, or the text is too long.
    """
    theirs, secret = decoded(p256dh), decoded(auth)
    if len(secret) != _AUTH_BYTES or len(text) > MAX_BYTES:
        raise ValueError("the secret must have exactly 16 bytes and the text at most 3,993 bytes")
    browser = EllipticCurvePublicKey.from_encoded_point(SECP256R1(), theirs)
    own = generate_private_key(SECP256R1())
    ours, salt = _point(own.public_key()), os.urandom(16)
    shared = _derive(own.exchange(ECDH(), browser), secret, b"WebPush: info\x00" + theirs + ours, length=32)
    key = _derive(shared, salt, b"Content-Encoding: aes128gcm\x00", length=16)
    nonce = _derive(shared, salt, b"Content-Encoding: nonce\x00", length=12)
    head = salt + _RECORD.to_bytes(4, "big") + bytes([len(ours)]) + ours
    return head + AESGCM(key).encrypt(nonce, text + b"\x02", None)


def encoded(content: bytes) -> str:
    """Return bytes as base64url without padding."""
    return urlsafe_b64encode(content).decode().rstrip("=")


def decoded(text: str) -> bytes:
    """Return the bytes of a base64url text, with or without padding.

    Raises:
        ValueError: The text is not base64url.
    """
    return urlsafe_b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4))


def _point(key: EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def _derive(material: bytes, salt: bytes, about: bytes, *, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=about).derive(material)
