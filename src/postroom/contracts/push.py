"""Web Push: the browsers in which people are notified while no page is open."""

from typing import Final

from postroom.contracts.records import Record

PUSH: Final = "push"
"""The kind of the effects that send notifications, the topic of changed subscriptions, and the name of the
lease for storing these effects.
"""


class PushSubscription(Record, frozen=True, kw_only=True):
    """A browser that a person has asked to be notified in, as its push service identifies it."""

    id: str
    endpoint: str
    """The secret address of the browser at its push service."""
    p256dh: str
    """The browser's public key, as base64url."""
    auth: str
    """The secret that the browser shares with this server, as base64url."""
    person: str
    """The name under which the person answers."""
    form_token: str
    """The token for forms of the session in which the person switched notifications on."""
    server_key: str
    """The public key of the server to which the browser's push service limits this subscription."""
    created_at: int
    ends_at: int
    """The time when the session ends."""
    seen_at: int
    """The time up to which questions and failures have been considered."""
    delivered_at: int | None = None
    """The last time when the push service accepted a notification; None before the first."""
    error: str = ""
    """The reason why the last notification was not accepted; empty if it was."""


class PushNotice(Record, frozen=True, kw_only=True):
    """A question or failure that one browser was notified of."""

    subscription_id: str
    item: str
    """`question/<run>/<number>`, `failed/<run>`, or `more` for everything beyond the maximum number."""
    created_at: int
    closed_at: int | None = None
    """The time when it no longer needed a person; None while it does."""
