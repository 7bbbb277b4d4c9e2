"""Codes that open the pages once, at any server, and sessions of the pages that were logged out."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from postroom.contracts.clock import Clock, milliseconds
from postroom.stores.mail.store import MailStore

FORM_TOKEN: Final = "form_token"  # noqa: S105 - the name of a field
"""In each form of a page: it holds what only a form that was made for the session can hold."""
_TYPED: Final = ("subject", "body", "why")
"""Fields of the pages' forms in which people write."""
CODE_LIFE: Final = timedelta(minutes=10)
MOST_CODES: Final = 20


def typed_in(fields: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what somebody wrote into a form that is not taken, so that it can be shown and is not lost."""
    return [text for name in _TYPED for text in fields.get(name, ()) if text.strip()]


class LoginCodes:
    """Codes that open the pages once, within ten minutes; of more than twenty the oldest are dropped.

    They are in the store, so that each server takes what another has made.
    """

    def __init__(self, store: MailStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def make(self) -> str:
        """Return a new code.

        Raises:
            StoreError: it could not be kept.
        """
        code = f"prl_{secrets.token_urlsafe(32)}"
        hashed, ends_at = _hidden(code), self._clock.now() + milliseconds(CODE_LIFE)
        await self._store.write(lambda tx: tx.put_login_code(hashed, ends_at=ends_at, most=MOST_CODES))
        return code

    async def use(self, code: str) -> bool:
        """Return whether the code is open, and close it.

        Raises:
            StoreError: it could not be closed, and is open still.
        """
        hashed = _hidden(code)
        ends_at = await self._store.write(lambda tx: tx.take_login_code(hashed))
        return (ends_at or 0) > self._clock.now()


class EndedSessions:
    """Sessions that were logged out before their end: no server takes one again."""

    def __init__(self, store: MailStore) -> None:
        self._store = store

    async def holds(self, session: str) -> bool:
        """Return whether a session was logged out.

        Raises:
            StoreError: it cannot be known.
        """
        hashed = _hidden(session)
        return await self._store.read(lambda tx: tx.is_session_ended(hashed))

    async def add(self, session: str, *, ends_at: int) -> None:
        """End a session, which would have ended at an instant by itself.

        Raises:
            StoreError: it could not be ended, and is taken still.
        """
        hashed = _hidden(session)
        await self._store.write(lambda tx: tx.end_session(hashed, ends_at=ends_at))


def _hidden(code: str) -> str:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
