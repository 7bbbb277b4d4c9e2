"""One-time login codes for the pages, which every server accepts, and the sessions of logged-in people."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from postroom.contracts.clock import Clock, milliseconds
from postroom.stores.mail.access import MailWrites
from postroom.stores.mail.store import MailStore

FORM_TOKEN: Final = "form_token"  # noqa: S105 - the name of a field
"""The form field with the token that binds a form to its session."""
_TYPED: Final = ("subject", "body", "why")
"""The fields of the pages' forms into which people type text."""
CODE_LIFE: Final = timedelta(minutes=10)
MAX_CODES: Final = 20
SESSION_LIFE: Final = timedelta(days=30)
_SEAL_LIFE: Final = timedelta(minutes=10)
_SEAL: Final = re.compile(r"([0-9]{13,15})\.([0-9a-f]{64})")
_COOKIE: Final = re.compile(r"([0-9]{13,15})\.([A-Za-z0-9_-]{22})\.([0-9a-f]{64})")


def typed_in(fields: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the texts that a person typed into a rejected form."""
    return [text for name in _TYPED for text in fields.get(name, ()) if text.strip()]


class LoginCodes:
    """One-time login codes that are valid for ten minutes.

    The database keeps at most 20 codes.
    """

    def __init__(self, store: MailStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def make(self) -> str:
        """Return a new login code.

        Raises:
            StoreError: The code could not be stored.
        """
        code = f"prl_{secrets.token_urlsafe(32)}"
        hashed, ends_at = _hidden(code), self._clock.now() + milliseconds(CODE_LIFE)
        await self._store.write(lambda tx: tx.put_login_code(hashed, ends_at=ends_at, most=MAX_CODES))
        return code

    async def use(self, code: str) -> bool:
        """Use up a login code, and return whether the code was valid.

        Raises:
            StoreError: The code could not be used up, and is still valid.
        """
        hashed = _hidden(code)
        ends_at = await self._store.write(lambda tx: tx.take_login_code(hashed))
        return (ends_at or 0) > self._clock.now()


class EndedSessions:
    """Sessions from which people logged out, and which no server accepts any longer."""

    def __init__(self, store: MailStore) -> None:
        self._store = store

    async def holds(self, session: str) -> bool:
        """Return whether a person has logged out of a session.

        Raises:
            StoreError: The logout state could not be read.
        """
        hashed = _hidden(session)
        return await self._store.read(lambda tx: tx.is_session_ended(hashed))

    async def add(self, session: str, *, ends_at: int, form_token: str) -> None:
        """Log out of a session that would expire at `ends_at`.

        The browser of the session gets no further notifications.

        Raises:
            StoreError: The logout could not be stored, and the session is still valid.
        """
        hashed = _hidden(session)

        def change(tx: MailWrites) -> None:
            tx.end_session(hashed, ends_at=ends_at)
            tx.drop_push_of_session(form_token)

        await self._store.write(change)


class Sessions:
    """Issues and verifies the cookies of people who are logged in."""

    def __init__(self, key: bytes, clock: Clock, ended: EndedSessions) -> None:
        """Create the sessions of a server.

        `key` is derived from the server's token.
        """
        self._key = key
        self._clock = clock
        self._ended = ended
        # Cookies are not bound to a port, and two servers on one machine must not overwrite each other's.
        self.cookie_name = f"postroom_{hashlib.sha256(key).hexdigest()[:8]}"

    def issue(self) -> str:
        """Return the value of the cookie for a new session."""
        ends_at = self._clock.now() + milliseconds(SESSION_LIFE)
        payload = f"{ends_at}.{secrets.token_urlsafe(16)}"
        return f"{payload}.{self._signature(payload)}"

    async def recognises(self, cookies: str) -> bool:
        """Return whether a Cookie header contains a valid session of the server.

        Raises:
            StoreError: The logout state could not be read.
        """
        session = self._session_in(cookies)
        return session is not None and not await self._ended.holds(session)

    async def end(self, cookies: str) -> None:
        """Log out of the session in a Cookie header on every server.

        Do nothing without a session.

        Raises:
            StoreError: The logout could not be stored, and the session is still valid.
        """
        session = self._session_in(cookies)
        if session is not None:
            token = self._signature(f"form.{session}")
            await self._ended.add(session, ends_at=self.ends_at(cookies) or 0, form_token=token)

    def ends_at(self, cookies: str) -> int | None:
        """Return when the session in a Cookie header ends, in milliseconds, or None without a session."""
        session = self._session_in(cookies)
        return None if session is None else int(session.partition(".")[0])

    def form_token(self, cookies: str) -> str | None:
        """Return the token for the forms of the session in a Cookie header, or None without a session."""
        session = self._session_in(cookies)
        return None if session is None else self._signature(f"form.{session}")

    def takes_form(self, cookies: str, token: str) -> bool:
        """Return whether the token of a form belongs to the session in a Cookie header."""
        expected = self.form_token(cookies)
        return expected is not None and hmac.compare_digest(
            expected.encode(), token.encode("utf-8", "replace")
        )

    def seal(self, cookies: str, text: str) -> str:
        """Return a seal for a text, which is valid for 10 minutes in the session."""
        at = self._clock.now()
        return f"{at}.{self._signature(f'seal.{self._session_in(cookies)}.{at}.{text}')}"

    def is_sealed(self, cookies: str, text: str, seal: str) -> bool:
        """Return whether a text has a valid seal of the session in a Cookie header."""
        session, match = self._session_in(cookies), _SEAL.fullmatch(seal)
        if session is None or match is None:
            return False
        is_fresh = 0 <= self._clock.now() - int(match[1]) <= milliseconds(_SEAL_LIFE)
        signature = self._signature(f"seal.{session}.{match[1]}.{text}")
        return is_fresh and hmac.compare_digest(signature, match[2])

    def _session_in(self, cookies: str) -> str | None:
        for part in cookies.split(";"):
            name, _, value = part.strip().partition("=")
            match = _COOKIE.fullmatch(value) if name == self.cookie_name else None
            if match is None or int(match[1]) <= self._clock.now():
                continue
            if hmac.compare_digest(self._signature(f"{match[1]}.{match[2]}"), match[3]):
                return value
        return None

    def _signature(self, payload: str) -> str:
        return hmac.digest(self._key, payload.encode(), "sha256").hex()


def _hidden(code: str) -> str:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
