"""Web Push subscriptions, with which browsers notify people while no page is open."""

import re
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from postroom.contracts.records import Record

PUSH: Final = "push"
"""The kind of the effects that send notifications, the topic of changed subscriptions, and the name of the
lease for storing these effects.
"""

MAX_ENDPOINT_LENGTH: Final = 2_000
"""Maximum number of characters in a browser's address at its push service."""
_HOST: Final = re.compile(r"(\*\.)?[a-z0-9-]+(\.[a-z0-9-]+)+")
_ORIGIN: Final = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")


def is_push_service(text: str) -> bool:
    """Return whether a text is a valid push service for the settings."""
    return bool(_HOST.fullmatch(text) or _ORIGIN.fullmatch(text))


def is_permitted(endpoint: str, services: Collection[str]) -> bool:
    """Return whether postroom may send requests to a push endpoint.

    A service is a host, a domain such as `*.example.com`, or an origin. Hosts and domains permit only https
    on port 443.
    """
    try:
        address = urlsplit(endpoint)
        host, port = address.hostname or "", address.port
    except ValueError:
        return False
    is_plain = (
        endpoint.isascii() and endpoint.isprintable() and " " not in endpoint and "@" not in address.netloc
    )
    if not is_plain or len(endpoint) > MAX_ENDPOINT_LENGTH:
        return False
    if f"{address.scheme}://{address.netloc}" in services:
        return True
    below = (f"*.{host[place + 1 :]}" for place, character in enumerate(host) if character == ".")
    return (
        address.scheme == "https"
        and port in (None, 443)
        and any(domain in services for domain in (host, *below))
    )


class PushSubscription(Record, frozen=True, kw_only=True):
    """A browser that receives notifications for a person."""

    id: str
    endpoint: str
    """The secret URL of the browser at its push service."""
    p256dh: str
    """The public key of the browser, as base64url."""
    auth: str
    """The secret that the browser shares with this server, as base64url."""
    person: str
    """The name under which the person answers questions."""
    form_token: str
    """The form token of the session in which the person turned notifications on."""
    server_key: str
    """The server's public key; the push service accepts only notifications that are signed with this key."""
    created_at: int
    ends_at: int
    """The time when the session ends."""
    seen_at: int
    """The time up to which questions and failures were checked for notifications."""
    delivered_at: int | None = None
    """The time when the push service last accepted a notification, or None before the first one."""
    error: str = ""
    """The reason why the last notification was not accepted; empty if it was accepted."""


class PushNotice(Record, frozen=True, kw_only=True):
    """A question or failure about which one browser was notified."""

    subscription_id: str
    item: str
    """`question/<run>/<number>`, `failed/<run>`, or `more` for everything that exceeds the maximum."""
    created_at: int
    closed_at: int | None = None
    """The time when the item no longer needed a person, or None while a person is needed."""
