"""Who may write in chats, and who asks to, on SQLite."""

import sqlite3
from dataclasses import asdict, replace

from postroom.contracts.chat import MAX_INBOUND
from postroom.contracts.chat_people import PairingRequest, PairingRules, Person, PersonRole
from postroom.contracts.errors import QueueFull
from postroom.stores.sqlite.chat import rows
from postroom.stores.sqlite.runs.desk import Desk
from postroom.stores.sqlite.statements import load_statements

SQL = load_statements("chat")


def find(db: sqlite3.Connection, platform: str, user_id: str) -> Person | None:
    """Return somebody who was let in."""
    row = db.execute(SQL["person"], (platform, user_id)).fetchone()
    return rows.person(row) if row else None


def let_in(db: sqlite3.Connection, person: Person, now: int) -> Person:
    """Store a person, or a known one's new role and name."""
    values = {
        "platform": person.platform,
        "user_id": person.user_id,
        "role": person.role.value,
        "name": person.name,
        "now": now,
    }
    return rows.person(db.execute(SQL["let_in"], values).fetchone())


def ask(db: sqlite3.Connection, request: PairingRequest, rules: PairingRules) -> PairingRequest:
    """Keep a request in place of a former one of the same person.

    Raises:
        QueueFull: as the port says.
    """
    platform, now = request.platform, request.asked_at
    _refuse_locked(db, platform, now)
    former = db.execute(SQL["asked_before"], (platform, request.user_id)).fetchone()
    if former and now - former[0] < rules.ask_again_ms:
        raise QueueFull(
            f"{request.user_id!r} asked a short while ago",
            value=request.user_id,
            remedy="ask again later",
            details={"again_at": former[0] + rules.ask_again_ms},
        )
    facts = {
        "platform": platform,
        "user_id": request.user_id,
        "now": now,
        "asked_until": now - rules.ask_again_ms,
    }
    if db.execute(SQL["others_who_ask"], facts).fetchone()[0] >= rules.most_open:
        raise QueueFull(
            f"as many wait to be let in on {platform!r} as may",
            value=platform,
            remedy="ask again when some were answered",
        )
    db.execute(SQL["drop_ended_requests"], facts)
    db.execute(SQL["put_request"], asdict(request))
    return request


def redeem(
    db: sqlite3.Connection, asked: dict[str, object], rules: PairingRules, role: PersonRole, now: int
) -> Person | None:
    """Let the person in whose open request has the hash; None, and one more wrong guess, when none has.

    Raises:
        QueueFull: the platform is locked.
    """
    platform = str(asked["platform"])
    wrong = _refuse_locked(db, platform, now)
    row = db.execute(SQL["request_with_code"], {**asked, "now": now}).fetchone()
    if row is None:
        locks = wrong + 1 >= rules.most_wrong
        guesses = (0, now + rules.locked_ms) if locks else (wrong + 1, 0)
        db.execute(SQL["put_guesses"], (platform, *guesses))
        return None
    found = rows.request(row)
    db.execute(SQL["forget_guesses"], (platform,))
    db.execute(SQL["forget_request"], (platform, found.user_id))
    return let_in(db, Person(platform=platform, user_id=found.user_id, role=role, name=found.name), now)


def forget_requests(db: sqlite3.Connection, platform: str) -> int:
    """Remove all requests of a platform, wrong guesses and its lock; return how many requests."""
    db.execute(SQL["forget_guesses"], (platform,))
    return db.execute(SQL["forget_requests"], (platform,)).rowcount


def _refuse_locked(db: sqlite3.Connection, platform: str, now: int) -> int:
    """Return the wrong guesses on a platform.

    Raises:
        QueueFull: they have locked it.
    """
    wrong, locked_until = db.execute(SQL["guesses"], (platform,)).fetchone() or (0, 0)
    if now < locked_until:
        raise QueueFull(
            f"pairing on {platform!r} is locked after too many wrong codes",
            value=platform,
            remedy="try again later, or have an owner let the person in",
            details={"locked_until": locked_until},
        )
    return int(wrong)


class SqliteChatPeople:
    """Who may write, and who asks to, in the file; every promise is that of the port."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._desk.identity

    async def person(self, platform: str, user_id: str) -> Person | None:
        """Return somebody who was let in."""
        return await self._desk.look(lambda db: find(db, platform, user_id))

    async def people(
        self, *, platform: str | None = None, after: tuple[str, str] = ("", ""), limit: int = MAX_INBOUND
    ) -> tuple[Person, ...]:
        """Return those who were let in, by platform and id."""
        statement = SQL["people" if platform is None else "people_of_platform"]
        values = {
            "platform": platform,
            "after_platform": after[0],
            "after_id": after[1],
            "limit": rows.page(limit),
        }
        return await self._desk.look(
            lambda db: tuple(map(rows.person, db.execute(statement, values).fetchall()))
        )

    async def let_in(self, person: Person, *, now: int | None = None) -> Person:
        """Store a person, or a known one's new role and name; `added_at` stays what it was."""
        rows.refuse_unfit(person.name, platform=person.platform, user_id=person.user_id)
        at = self._desk.at(now)
        return await self._desk.write(lambda db: let_in(db, person, at))

    async def shut_out(self, platform: str, user_id: str) -> bool:
        """Forget a person; False when there was none."""
        who = platform, user_id
        return await self._desk.write(lambda db: db.execute(SQL["shut_out"], who).rowcount > 0)

    async def ask(
        self, request: PairingRequest, rules: PairingRules, *, now: int | None = None
    ) -> PairingRequest:
        """Keep a request until `rules.code_ms` from now, in place of a former one of the same person."""
        rows.refuse_unfit(
            request.name, platform=request.platform, user_id=request.user_id, code_hash=request.code_hash
        )
        at = self._desk.at(now)
        kept = replace(request, asked_at=at, expires_at=at + rules.code_ms)
        return await self._desk.write(lambda db: ask(db, kept, rules))

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
        at = self._desk.at(now)
        asked: dict[str, object] = {"platform": platform, "code_hash": code_hash}
        return await self._desk.write(lambda db: redeem(db, asked, rules, role, at))

    async def requests(
        self, *, platform: str | None = None, now: int | None = None
    ) -> tuple[PairingRequest, ...]:
        """Return the open requests, the oldest first."""
        values = {"platform": platform, "now": self._desk.at(now), "limit": MAX_INBOUND}
        found = await self._desk.look(lambda db: db.execute(SQL["requests"], values).fetchall())
        return tuple(map(rows.request, found))

    async def forget_requests(self, platform: str) -> int:
        """Remove all requests of a platform, wrong guesses and its lock; return how many requests."""
        return await self._desk.write(lambda db: forget_requests(db, platform))
