"""Who may chat on our own page: tokens that stand for people, and the sessions of browsers that showed one.

Sessions live in this process only: after a restart everybody signs in again.
"""

import hashlib
import secrets
from collections import OrderedDict, deque
from collections.abc import Mapping
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from postroom.contracts.clock import Clock, milliseconds
from postroom.contracts.errors import ConfigError
from postroom.contracts.messages import Json
from postroom.contracts.signing import same_secret
from postroom.gateway.platforms.http_adapter import Refused

SESSION_LIFE: Final = timedelta(hours=12)
MOST_SESSIONS: Final = 1_000
MOST_FAILURES: Final = 10
FAILURE_WINDOW: Final = timedelta(minutes=1)
LEAST_TOKEN: Final = 16
_MOST_ADDRESSES: Final = 1_024


def read_people(token: str | None, name: Json, others: Json) -> dict[str, str]:
    """Return who may chat, and the token of each.

    Raises:
        ConfigError: a name or a token cannot be one, two are the same, or there is nobody.
    """
    if not isinstance(others, Mapping):
        raise ConfigError("web's people is no table", value="people", remedy="give {name: token}")
    people = [*([] if token is None else [(name, token)]), *others.items()]
    if not people:
        raise ConfigError("web has no token", value="token", remedy="set a token to sign in with")
    for known, secret in people:
        if not isinstance(known, str) or not 1 <= len(known) <= 64 or not known.isprintable():
            raise ConfigError("a name of web's people is none", remedy="give a line of 1 to 64 characters")
        if not isinstance(secret, str) or len(secret) < LEAST_TOKEN:
            raise ConfigError(
                f"the token of {known!r} on web is too short",
                value=known,
                remedy=f"give {LEAST_TOKEN} random characters or more",
            )
    if len({known for known, _ in people}) < len(people) or len({one for _, one in people}) < len(people):
        raise ConfigError("two of web's people have one name or one token", remedy="give each their own")
    return dict(people)


class Visitors:
    """Signs people in and knows them again."""

    def __init__(self, people: Mapping[str, str], clock: Clock) -> None:
        self._people = people
        self._clock = clock
        self._sessions: OrderedDict[bytes, tuple[str, int]] = OrderedDict()
        self._failures: OrderedDict[str, deque[int]] = OrderedDict()

    def sign_in(self, token: str, address: str) -> str:
        """Return the id of a new session for whom the token stands for.

        Raises:
            Refused: it stands for nobody, or too many others came from this address before.
        """
        wait = self._wait(address)
        if wait:
            raise Refused(429, "wait", f"Too many attempts. Try again in {wait} seconds.", retry_after=wait)
        # All are compared, so that the time says nothing of whose token is near.
        found = [name for name, known in self._people.items() if same_secret(token, known)]
        if not found:
            self._failed(address)
            raise Refused(401, "wrong_token", "This token is not known.")
        session = secrets.token_urlsafe(32)
        self._sessions[_hidden(session)] = (found[0], self._clock.now() + milliseconds(SESSION_LIFE))
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def who(self, session: str | None) -> str | None:
        """Return whose session this is; None when it is none, or has ended."""
        name, until = self._sessions.get(_hidden(session or ""), ("", 0))
        return name if until > self._clock.now() else None

    def sign_out(self, session: str) -> None:
        """End a session."""
        self._sessions.pop(_hidden(session), None)

    def _failed(self, address: str) -> None:
        self._failures.setdefault(address, deque(maxlen=MOST_FAILURES)).append(self._clock.now())
        self._failures.move_to_end(address)
        while len(self._failures) > _MOST_ADDRESSES:
            self._failures.popitem(last=False)

    def _wait(self, address: str) -> int:
        failures = self._failures.get(address, deque())
        if len(failures) < MOST_FAILURES:
            return 0
        left = failures[0] + milliseconds(FAILURE_WINDOW) - self._clock.now()
        return max(0, -(-left // 1000))


def require_own_page(request: Request, *, is_form: bool = False) -> None:
    """Look whether a request that changes something was sent by our own page, and not by another site's.

    A page's script sends a header that no form of another site can; a form must say where it comes from.

    Raises:
        Refused: it was not.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    foreign = Refused(403, "foreign_page", "this was not sent by the chat's own page")
    if request.headers.get("x-postroom") != "1" and not (is_form and (site or origin)):
        raise foreign
    if site not in (None, "same-origin"):
        raise foreign
    if origin is not None and not _is_own(origin, request.headers.get("host", "")):
        raise foreign


def _is_own(origin: str, host: str) -> bool:
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _hidden(session: str) -> bytes:
    return hashlib.sha256(session.encode("utf-8", "surrogatepass")).digest()
