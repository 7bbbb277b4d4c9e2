"""Checks tokens: named tokens, which the operator creates, and tokens of active runs.

A named token is checked at each call. When a token is replaced, the old and the new token are both valid for
a while. The client generates a token, and sends only its hash. So a client that did not get the result can
repeat the call without creating a second token. Each check reads the store, so a token is invalid as soon as
the call that revoked it has returned.

The token of a run gives the run access to the server while its program is active. Tokens of runs exist only
in memory, so the tokens of a killed server are invalid after its restart.
"""

import hmac
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final, Literal, TypedDict

from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts.clock import Clock, Timer, duration_text, iso, milliseconds
from postroom.contracts.dispatch import Claim
from postroom.contracts.errors import (
    IdempotencyConflict,
    InvalidArgument,
    InvalidName,
    NameTaken,
    StoreError,
    UnknownToken,
    WrongToken,
)
from postroom.contracts.tokens import RUN_PREFIX, SCOPES, TOKEN_FORM, TOKEN_ID, Grant, KeptToken, Scope
from postroom.log import get_logger
from postroom.mail.context import token_hash
from postroom.mail.names import shown
from postroom.mail.projects import find_project
from postroom.stores.changes import SharedChanges
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.mail.store import MailStore

WRITTEN_EVERY: Final = timedelta(minutes=1)
"""The interval at which the times of last use are stored.

A crash loses the times of use since the last interval.
"""
MAX_LIFE: Final = timedelta(days=3650)
MAX_OVERLAP: Final = timedelta(days=90)

_LOG = get_logger(__name__)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_NOBODYS: Final = "0" * 64
_PAGE: Final = 500
_TOKENS: Final = "tokens"
"""The topic under which servers tell each other that a token was revoked or replaced."""
_MAX_RECOGNISED: Final = 1_000


class TokenView(TypedDict):
    """The public fields of a named token, without the secret."""

    name: str
    id: str
    scopes: list[str]
    project: str | None
    state: Literal["valid", "replaced", "expired", "revoked"]
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None


class NamedTokens:
    """Stores, checks and revokes the named tokens of an installation."""

    def __init__(
        self,
        store: MailStore,
        clock: Clock,
        *,
        timer: Timer | None = None,
        shared: SharedChanges | None = None,
    ) -> None:
        """Create the service for the tokens in a store.

        `shared` announces revoked and replaced tokens to other servers of the database.
        """
        self._store = store
        self._clock = clock
        self._timer = timer or SystemTimer()
        self._used: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._recognised: OrderedDict[str, None] = OrderedDict()
        """The ids of the most recently used tokens, which open streams may still use."""
        self._shared = shared
        self._tasks = Tasks("tokens")
        self.runs = RunTokens()
        """The tokens of the runs that are active on this server."""

    async def recognise(self, token: str) -> Grant:
        """Return the permissions of a token, and record the time of use.

        Every call reads the store.

        Raises:
            WrongToken: The token is unknown or revoked, or has expired.
        """
        if token.startswith(RUN_PREFIX):
            return self.runs.recognise(token)
        form = TOKEN_FORM.fullmatch(token)
        stored_token, slug = await self._store.read(lambda tx: _found(tx, form[1])) if form else (None, None)
        # Compare hashes even if there is no such id, so that the response time reveals nothing.
        same = hmac.compare_digest(
            token_hash(token) if form else "", _NOBODYS if stored_token is None else stored_token.hash
        )
        if stored_token is None or not same:
            raise WrongToken("this server does not know this token")
        now = self._clock.now()
        if not stored_token.lives(now):
            how = (
                "was revoked"
                if stored_token.revoked_at is not None
                else f"expired at {iso(stored_token.expires_at or 0)}"
            )
            raise WrongToken(
                f"the token `{stored_token.name}` {how}", remedy="ask the operator for a new token"
            )
        self._used[stored_token.id] = now
        self._recognised[stored_token.id] = None
        self._recognised.move_to_end(stored_token.id)
        while len(self._recognised) > _MAX_RECOGNISED:
            self._recognised.popitem(last=False)
        return Grant(
            token_id=stored_token.id,
            name=stored_token.name,
            scopes=stored_token.scopes,
            project_id=stored_token.project_id,
            project_slug=slug,
            expires_at=stored_token.expires_at,
        )

    def holds(self, grant: Grant) -> bool:
        """Return whether a token that was recognised earlier is still valid, without reading the store."""
        if grant.run_id is not None:
            return self.runs.holds(grant)
        ends = (grant.expires_at, self._ends.get(grant.token_id))
        return all(end is None or self._clock.now() < end for end in ends)

    async def create(
        self,
        name: str,
        token_id: str,
        hashed: str,
        scopes: Sequence[str],
        *,
        project: str | None = None,
        life: timedelta | None = None,
    ) -> TokenView:
        """Store the hash of a new token.

        A repeated call creates no second token.

        Raises:
            InvalidArgument, InvalidName: The token is malformed, or permits nothing or too much.
            NameTaken: There is a valid token with this name.
            UnknownProject: The project does not exist.
            IdempotencyConflict: The id was used for another token.
        """
        _check_new(name, token_id, hashed)
        chosen = _scopes(scopes, bound=project is not None)
        _check_length("life_seconds", life, MAX_LIFE)

        def change(tx: MailWrites) -> TokenView:
            now = self._clock.now()
            wanted = KeptToken(
                id=token_id,
                name=name,
                hash=hashed,
                scopes=chosen,
                project_id=None if project is None else find_project(tx, project).id,
                created_at=now,
                expires_at=None if life is None else now + milliseconds(life),
            )
            if (before := _by_id(tx, token_id, name, hashed)) is not None:
                if (before.scopes, before.project_id) != (wanted.scopes, wanted.project_id):
                    raise _used_before(token_id)
                return _view(tx, before, now)
            current = next((token for token in tx.tokens_named(name) if token.is_current), None)
            if current is not None:
                if current.lives(now):
                    raise NameTaken(
                        f"a valid token named {shown(name)} already exists",
                        value=name,
                        remedy="choose another name, or replace the token with `postroom tokens rotate` or "
                        "`postroom tokens revoke`",
                    )
                tx.put_token(replace(current, replaced_at=now))  # the name is free for the new token
            tx.put_token(wanted)
            return _view(tx, wanted, now)

        return await self._store.write(change)

    async def rotate(self, name: str, token_id: str, hashed: str, *, overlap: timedelta) -> TokenView:
        """Replace a named token by a new token with the same scopes, project and lifetime.

        Earlier tokens stay valid for at most `overlap`. A repeated call changes nothing.

        Raises:
            InvalidArgument, InvalidName: The token is malformed, or the overlap is too long.
            UnknownToken: No valid token has this name.
            IdempotencyConflict: The id was used for another token.
        """
        _check_new(name, token_id, hashed)
        _check_length("overlap_seconds", overlap, MAX_OVERLAP, least=timedelta(0))

        def change(tx: MailWrites) -> tuple[TokenView, dict[str, int]]:
            now = self._clock.now()
            if (done := _by_id(tx, token_id, name, hashed)) is not None:
                return _view(tx, done, now), {}
            living = sorted(
                (token for token in tx.tokens_named(name) if token.lives(now)), key=lambda one: one.is_current
            )
            if not living or not living[-1].is_current:
                raise _unknown(name)
            last = living[-1]  # the current token
            end = now + milliseconds(overlap)
            ends = {
                token.id: end if token.expires_at is None else min(token.expires_at, end) for token in living
            }
            for living_token in living:
                replaced = now if living_token.replaced_at is None else living_token.replaced_at
                tx.put_token(replace(living_token, expires_at=ends[living_token.id], replaced_at=replaced))
            life = None if last.expires_at is None else last.expires_at - last.created_at
            fresh = replace(
                last,
                id=token_id,
                hash=hashed,
                created_at=now,
                expires_at=None if life is None else now + life,
                replaced_at=None,
                last_used_at=None,
            )
            tx.put_token(fresh)
            return _view(tx, fresh, now), ends

        answer, ends = await self._store.write(change)
        self._end_tokens(ends)
        return answer

    async def revoke(self, name: str) -> int:
        """Revoke all tokens with a name, and return the number of tokens that were still valid.

        Raises:
            UnknownToken: No token has ever had this name.
        """

        def change(tx: MailWrites) -> tuple[list[str], int]:
            named, now = tx.tokens_named(name), self._clock.now()
            if not named:
                raise _unknown(name)
            for token in named:
                if token.revoked_at is None:
                    tx.put_token(replace(token, revoked_at=now))
            return [token.id for token in named], sum(token.lives(now) for token in named)

        ended, living = await self._store.write(change)
        self._end_tokens(dict.fromkeys(ended, 0))
        return living

    def _end_tokens(self, ends: Mapping[str, int]) -> None:
        self._ends.update(ends)
        if self._shared is not None:
            self._shared.share((_TOKENS,))

    async def listed(self, *, ended: bool = False) -> Sequence[TokenView]:
        """Return the valid tokens, ordered by name, oldest first.

        With `ended`, invalid tokens are included.
        """

        def look(tx: MailReads) -> list[TokenView]:
            now = self._clock.now()
            tokens: list[KeptToken] = []
            while page := tx.tokens(limit=_PAGE, after=tokens[-1].id if tokens else ""):
                tokens += page
            tokens = [token for token in tokens if ended or token.lives(now)]
            tokens.sort(key=lambda one: (one.name, one.created_at, one.is_current, one.id))
            return [_view(tx, token, now, used=self._used.get(token.id)) for token in tokens]

        return await self._store.read(look)

    def start(self) -> None:
        """Start the background task that stores the times of last use."""
        self._tasks.start(self._serve(), name="last uses")
        if self._shared is not None:
            self._tasks.start(self._follow(self._shared), name="ended tokens")

    async def stop(self) -> None:
        """Store the remaining times of last use, and stop the background tasks."""
        await self._tasks.close()
        await self.write_uses()

    async def write_uses(self) -> None:
        """Store when tokens were last used.

        After a failure, the next call stores the times.
        """
        used, self._used = self._used, {}
        if not used:
            return
        try:
            await self._store.write(lambda tx: tx.note_token_uses(used))
        except StoreError as error:
            self._used = {**used, **self._used}
            _LOG.warning("tokens.uses_not_written", code=error.code, reason=error.message)

    async def _follow(self, shared: SharedChanges) -> None:
        """Read tokens again whenever another server announces a revoked or replaced token."""
        with shared.changes.listen(_TOKENS) as news:
            while True:
                await news.wait(WRITTEN_EVERY)
                try:
                    await self.look_again()
                except StoreError as error:
                    _LOG.warning("tokens.not_looked_at", code=error.code, reason=error.message)

    async def look_again(self) -> None:
        """Update the expiry of each recently used token from the store.

        Raises:
            StoreError: The tokens could not be read.
        """
        ids = list(self._recognised)
        tokens = await self._store.read(lambda tx: {token_id: tx.token(token_id) for token_id in ids})
        for token_id, token in tokens.items():
            if token is None or token.revoked_at is not None:
                self._ends[token_id] = 0
            elif token.expires_at is not None:
                self._ends[token_id] = token.expires_at

    async def _serve(self) -> None:
        while True:
            await self._timer.sleep(milliseconds(WRITTEN_EVERY))
            await self.write_uses()


def _found(tx: MailReads, token_id: str) -> tuple[KeptToken | None, str | None]:
    token = tx.token(token_id)
    bound = None if token is None or token.project_id is None else tx.project_by_id(token.project_id)
    return token, None if bound is None else bound.slug


def _check_new(name: str, token_id: str, hashed: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f"{shown(name)} is not a valid name for a token",
            value=name[:200],
            remedy="use 1 to 64 letters, digits, `.`, `_` or `-`, beginning with a letter or digit",
        )
    if not TOKEN_ID.fullmatch(token_id) or not _HASH.fullmatch(hashed):
        raise InvalidArgument(
            "the id or the hash of the token is not valid", remedy="let `postroom tokens` create the token"
        )


def _scopes(given: Sequence[str], *, bound: bool) -> frozenset[Scope]:
    scopes: dict[str, Scope] = {scope: scope for scope in SCOPES}
    wrong = next((name for name in given if name not in scopes), None)
    if wrong is not None or not given:
        raise InvalidArgument(
            "a token needs at least one scope" if wrong is None else f"{shown(wrong)} is not a scope",
            value=None if wrong is None else wrong[:200],
            remedy=f"choose from the scopes {', '.join(SCOPES)}",
        )
    chosen = frozenset(scopes[name] for name in given)
    if bound and "admin" in chosen:
        raise InvalidArgument(
            "the scope `admin` covers the whole server, so a token for one project cannot have it",
            value="admin",
            remedy="leave out either the project or the scope",
        )
    return chosen


def _check_length(
    name: str, given: timedelta | None, longest: timedelta, *, least: timedelta = timedelta(seconds=1)
) -> None:
    if given is not None and not least <= given <= longest:
        raise InvalidArgument(
            f"`{name}` must be from {duration_text(least)} to {duration_text(longest)}, "
            f"not {duration_text(given)}",
            value=given.total_seconds(),
            remedy=f"pass another duration for `{name}`",
        )


def _by_id(tx: MailReads, token_id: str, name: str, hashed: str) -> KeptToken | None:
    """Return the token that an earlier call with the same arguments created, or None.

    Raises:
        IdempotencyConflict: The id is that of another token.
    """
    token = tx.token(token_id)
    if token is not None and not (token.name == name and hmac.compare_digest(token.hash, hashed)):
        raise _used_before(token_id)
    return token


def _used_before(token_id: str) -> IdempotencyConflict:
    return IdempotencyConflict("the id belongs to another token", value=token_id, remedy="create a new token")


def _unknown(name: str) -> UnknownToken:
    return UnknownToken(f"there is no valid token of the name {shown(name)}", value=name[:200])


def _view(tx: MailReads, token: KeptToken, now: int, *, used: int | None = None) -> TokenView:
    bound = None if token.project_id is None else tx.project_by_id(token.project_id)
    last = max((at for at in (token.last_used_at, used) if at is not None), default=None)
    return {
        "name": token.name,
        "id": token.id,
        "scopes": [scope for scope in SCOPES if scope in token.scopes],
        "project": None if bound is None else bound.slug,
        "state": _state(token, now),
        "created_at": iso(token.created_at),
        "expires_at": None if token.expires_at is None else iso(token.expires_at),
        "revoked_at": None if token.revoked_at is None else iso(token.revoked_at),
        "last_used_at": None if last is None else iso(last),
    }


def _state(token: KeptToken, now: int) -> Literal["valid", "replaced", "expired", "revoked"]:
    if token.revoked_at is not None:
        return "revoked"
    if not token.lives(now):
        return "expired"
    return "valid" if token.replaced_at is None else "replaced"


_SCOPES = frozenset(SCOPES) - {"admin"}


class RunTokens:
    """The tokens of active runs, in memory."""

    def __init__(self) -> None:
        self._grants: dict[str, Grant] = {}

    def issue(
        self, token: str, *, agent_id: int, agent: str, run_id: str, claim: Claim | None = None
    ) -> None:
        """Register a token with which one execution of a run can act as the run's agent."""
        hashed = token_hash(token)
        self._grants[hashed] = Grant(
            token_id=hashed,
            name=f"run of {agent}",
            scopes=_SCOPES,
            agent_id=agent_id,
            run_id=run_id,
            claim=claim,
        )

    def revoke(self, token: str) -> None:
        """Invalidate a token."""
        self._grants.pop(token_hash(token), None)

    def recognise(self, token: str) -> Grant:
        """Return the permissions of a run's token.

        Raises:
            WrongToken: The token is unknown, or its run has ended.
        """
        grant = self._grants.get(token_hash(token))
        if grant is None:
            raise WrongToken(
                "the run of this token has ended",
                remedy="use the token of an active run: a run's token expires when the run ends",
            )
        return grant

    def holds(self, grant: Grant) -> bool:
        """Return whether the run that received the token is still active."""
        return grant.token_id in self._grants
