"""Who may write in chats, and who asks to, on PostgreSQL."""

from typing import Any

from postroom.contracts.chat import MAX_INBOUND
from postroom.contracts.chat_people import PairingRequest, PairingRules, Person, PersonRole
from postroom.contracts.errors import InvalidRecord, QueueFull, StoreCorrupt
from postroom.stores.postgres.driver import Connection, Row
from postroom.stores.postgres.place import Place
from postroom.stores.postgres.rows import kept, told
from postroom.stores.postgres.statements import load_statements

_SQL = load_statements("chat")


class PostgresChatPeople:
    """Who may write, and who asks to, in one schema, for many processes."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._database = place.database

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._place.identity

    async def person(self, platform: str, user_id: str) -> Person | None:
        """Return somebody who was let in."""
        found = await self._database.first(_SQL["person"], platform, user_id)
        return None if found is None else _person(found)

    async def people(
        self, *, platform: str | None = None, after: tuple[str, str] = ("", ""), limit: int = MAX_INBOUND
    ) -> tuple[Person, ...]:
        """Return those who were let in, by platform and id."""
        values = *after, page(limit)
        while True:
            if platform is None:
                found = await self._database.read(_SQL["people"], *values)
            else:
                found = await self._database.read(_SQL["people_of_platform"], *values, platform)
            people = await self._place.readable("person", found, lambda row: _person(row[1:]))
            if len(people) == len(found):
                return tuple(people)

    async def let_in(self, person: Person, *, now: int | None = None) -> Person:
        """Store a person, or a known one's new role and name; `added_at` stays what it was."""
        refuse_blank(platform=person.platform, user_id=person.user_id)
        [stored] = await self._database.write(_SQL["let_in"], *_columns(person), self._place.at(now))
        return _person(stored)

    async def shut_out(self, platform: str, user_id: str) -> bool:
        """Forget a person; False when there was none."""
        return bool(await self._database.write(_SQL["shut_out"], platform, user_id))

    async def ask(
        self, request: PairingRequest, rules: PairingRules, *, now: int | None = None
    ) -> PairingRequest:
        """Keep a request until `rules.code_ms` from now, in place of a former one of the same person."""
        platform, user_id = request.platform, request.user_id
        refuse_blank(platform=platform, user_id=user_id, code_hash=request.code_hash)
        at = self._place.at(now)

        async def ask(session: Connection) -> PairingRequest:
            asked_at, _ = await _locked(session, platform, at)
            [[before, others]] = await session.rows(_SQL["who_asks"], platform, user_id, asked_at)
            _refuse_too_many(request, rules, asked_at, before=before, others=others)
            expires_at = asked_at + rules.code_ms
            values = platform, user_id, request.code_hash, kept(request.name), asked_at, expires_at
            await session.rows(_SQL["put_request"], *values, asked_at - rules.ask_again_ms)
            return _request((*values[:3], values[3], asked_at, expires_at))

        return await self._database.transact(ask)

    async def redeem(
        self,
        platform: str,
        code_hash: str,
        rules: PairingRules,
        *,
        role: PersonRole = PersonRole.MEMBER,
        now: int | None = None,
    ) -> Person | None:
        """Let the person in whose open request has this hash, and forget the request; None when none has."""
        at = self._place.at(now)

        async def redeem(session: Connection) -> Person | None:
            guessed_at, wrong = await _locked(session, platform, at)
            taken = await session.rows(_SQL["take_request"], platform, code_hash, guessed_at)
            if not taken:
                locks = wrong + 1 >= rules.most_wrong
                guesses = (0, guessed_at + rules.locked_ms) if locks else (wrong + 1, 0)
                await session.rows(_SQL["put_guesses"], platform, *guesses)
                return None
            await session.rows(_SQL["put_guesses"], platform, 0, 0)
            [[user_id, name]] = taken
            person = Person(platform=platform, user_id=user_id, role=role, name=told(name))
            [stored] = await session.rows(_SQL["let_in"], *_columns(person), guessed_at)
            return _person(stored)

        return await self._database.transact(redeem)

    async def requests(
        self, *, platform: str | None = None, now: int | None = None
    ) -> tuple[PairingRequest, ...]:
        """Return the open requests, the oldest first."""
        found = await self._database.read(_SQL["requests"], platform, self._place.at(now), MAX_INBOUND)
        return tuple(map(_request, found))

    async def forget_requests(self, platform: str) -> int:
        """Remove all requests of a platform, wrong guesses and its lock; return how many requests."""
        [[gone]] = await self._database.write(_SQL["forget_requests"], platform)
        return int(gone)


async def _locked(session: Connection, platform: str, now: int | None) -> tuple[int, int]:
    """Let nobody else ask or guess on a platform meanwhile; return the instant and the wrong guesses.

    Raises:
        QueueFull: too many of them have locked it for everybody.
    """
    [[at, wrong, locked_until]] = await session.rows(_SQL["lock_platform"], platform, now)
    if at < locked_until:
        raise QueueFull(
            f"pairing on {platform!r} is locked after too many wrong codes",
            value=platform,
            remedy="try again later, or have an owner let the person in",
            details={"locked_until": locked_until},
        )
    return at, wrong


def _refuse_too_many(
    request: PairingRequest, rules: PairingRules, now: int, *, before: int | None, others: int
) -> None:
    if before is not None and now - before < rules.ask_again_ms:
        raise QueueFull(
            f"{request.user_id!r} asked a short while ago",
            value=request.user_id,
            remedy="ask again later",
            details={"again_at": before + rules.ask_again_ms},
        )
    if others >= rules.most_open:
        raise QueueFull(
            f"as many wait to be let in on {request.platform!r} as may",
            value=request.platform,
            remedy="ask again when some were answered",
        )


def page(limit: int) -> int:
    """Return how much a listing holds that was asked for so much."""
    return max(0, min(limit, MAX_INBOUND))


def refuse_blank(**texts: str) -> None:
    """Refuse texts that are blank.

    Raises:
        InvalidRecord: as said.
    """
    for name, text in texts.items():
        if not text.strip():
            raise InvalidRecord(f"{name} is blank", value=text)


def _columns(person: Person) -> tuple[Any, ...]:
    return person.platform, person.user_id, person.role.value, kept(person.name)


def _person(row: Row) -> Person:
    platform, user_id, role, name, added_at = row
    try:
        known = PersonRole(role)
    except ValueError as error:
        raise StoreCorrupt(
            f"person {user_id!r} of {platform!r} does not read back: {error}", value=user_id
        ) from error
    return Person(platform=platform, user_id=user_id, role=known, name=told(name), added_at=added_at)


def _request(row: Row) -> PairingRequest:
    platform, user_id, code_hash, name, asked_at, expires_at = row
    return PairingRequest(
        platform=platform,
        user_id=user_id,
        code_hash=code_hash,
        name=told(name),
        asked_at=asked_at,
        expires_at=expires_at,
    )
