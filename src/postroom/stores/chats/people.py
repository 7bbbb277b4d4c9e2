"""Storage of the people who may write in chats, and of requests for access."""

from dataclasses import replace

from postroom.contracts.chat import MAX_INBOUND
from postroom.contracts.chat_people import PairingRequest, PairingRules, Person, PersonRole
from postroom.contracts.errors import QueueFull
from postroom.stores.chats.rows import page, refuse_unfit
from postroom.stores.store import SqlStore, Transaction


class ChatPeople:
    """The people who may write in chats, and the requests for access."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def person(self, platform: str, user_id: str) -> Person | None:
        """Return the person with this platform and id, or None if the person has no access."""
        return await self._store.read(lambda tx: tx.chats.person(platform, user_id))

    async def people(
        self, *, platform: str | None = None, after: tuple[str, str] = ("", ""), limit: int = MAX_INBOUND
    ) -> tuple[Person, ...]:
        """Return up to `limit` people who have access, ordered by platform and id, after a position."""
        return tuple(
            await self._store.read(
                lambda tx: tx.chats.people(platform=platform, after=after, limit=page(limit))
            )
        )

    async def let_in(self, person: Person, *, now: int | None = None) -> Person:
        """Give a person access, or change the role and the name of a person who has access.

        Raises:
            InvalidRecord: The platform or the id is blank.
        """
        refuse_unfit(person.name, platform=person.platform, user_id=person.user_id)

        def change(tx: Transaction) -> Person:
            _lock(tx, person.platform)
            return tx.chats.put_person(replace(person, added_at=_at(tx, now)))

        return await self._store.write(change, key=person.platform)

    async def shut_out(self, platform: str, user_id: str) -> bool:
        """Take a person's access away; return False if the person had no access."""
        return await self._store.write(lambda tx: tx.chats.drop_person(platform, user_id), key=platform)

    async def ask(
        self, request: PairingRequest, rules: PairingRules, *, now: int | None = None
    ) -> PairingRequest:
        """Store a request for access that is valid for `rules.code_ms`, and return the stored request.

        An expired request of the person is replaced.

        Raises:
            InvalidRecord: The platform, the id or the hash is blank.
            QueueFull: The person sent a request less than `rules.ask_again_ms` ago, too many requests are
                open, or the platform is locked. Nothing was stored.
        """
        platform, user_id = request.platform, request.user_id
        refuse_unfit(request.name, platform=platform, user_id=user_id, code_hash=request.code_hash)

        def change(tx: Transaction) -> PairingRequest:
            _lock(tx, platform)
            at = _at(tx, now)
            _count_wrong_codes(tx, platform, at)
            former = tx.chats.request_of(platform, user_id)
            if former is not None and at - former.asked_at < rules.ask_again_ms:
                raise QueueFull(
                    f"{former.user_id!r} asked for access a short time ago",
                    value=former.user_id,
                    remedy="ask again later",
                    details={"again_at": former.asked_at + rules.ask_again_ms},
                )
            waiting = tx.chats.requests(platform=platform, now=at, limit=rules.most_open + 1)
            if (
                len([pairing_request for pairing_request in waiting if pairing_request.user_id != user_id])
                >= rules.most_open
            ):
                raise QueueFull(
                    f"too many people are waiting for access on {platform!r}",
                    value=platform,
                    remedy="try again after some of them have been admitted or rejected",
                )
            kept_pairing_request = replace(request, asked_at=at, expires_at=at + rules.code_ms)
            tx.chats.drop_ended_requests(platform, now=at, asked_until=at - rules.ask_again_ms)
            tx.chats.put_request(kept_pairing_request)
            return kept_pairing_request

        return await self._store.write(change, key=platform)

    async def redeem(
        self,
        platform: str,
        code_hash: str,
        rules: PairingRules,
        *,
        role: PersonRole = PersonRole.MEMBER,
        now: int | None = None,
    ) -> Person | None:
        """Give access to the person whose open request has a code hash, and delete the request.

        Return None if no open request has the code hash. After `rules.most_wrong` wrong codes, the platform
        is locked for `rules.locked_ms`. A correct code resets the number of wrong codes.

        Raises:
            QueueFull: The platform is locked, so the code was not checked.
        """

        def change(tx: Transaction) -> Person | None:
            _lock(tx, platform)
            at = _at(tx, now)
            failures = _count_wrong_codes(tx, platform, at)
            pairing_request = tx.chats.request_with_code(platform, code_hash, at)
            if pairing_request is None:
                if failures + 1 >= rules.most_wrong:
                    tx.chats.put_pairing_failures(platform, failures=0, locked_until=at + rules.locked_ms)
                else:
                    tx.chats.put_pairing_failures(platform, failures=failures + 1, locked_until=0)
                return None
            tx.chats.put_pairing_failures(platform, failures=0, locked_until=0)
            tx.chats.drop_request(platform, pairing_request.user_id)
            return tx.chats.put_person(
                Person(
                    platform=platform,
                    user_id=pairing_request.user_id,
                    role=role,
                    name=pairing_request.name,
                    added_at=at,
                )
            )

        return await self._store.write(change, key=platform)

    async def requests(
        self, *, platform: str | None = None, now: int | None = None
    ) -> tuple[PairingRequest, ...]:
        """Return the open requests for access, oldest first."""

        def look(tx: Transaction) -> tuple[PairingRequest, ...]:
            return tuple(tx.chats.requests(platform=platform, now=_at(tx, now), limit=MAX_INBOUND))

        return await self._store.read(look)

    async def forget_requests(self, platform: str) -> int:
        """Delete the requests and the lock of a platform; return the number of deleted requests."""

        def change(tx: Transaction) -> int:
            _lock(tx, platform)
            tx.chats.put_pairing_failures(platform, failures=0, locked_until=0)
            return tx.chats.drop_requests(platform)

        return await self._store.write(change, key=platform)


def _count_wrong_codes(tx: Transaction, platform: str, now: int) -> int:
    """Return the number of wrong codes on a platform since the last correct code.

    Raises:
        QueueFull: The platform is locked.
    """
    failures, locked_until = tx.chats.pairing_failures(platform)
    if now < locked_until:
        raise QueueFull(
            f"pairing on {platform!r} is locked after too many wrong codes",
            value=platform,
            remedy="try again later, or ask an owner to give the person access",
            details={"locked_until": locked_until},
        )
    return failures


def _lock(tx: Transaction, platform: str) -> None:
    tx.lock(f"pairing:{platform}")


def _at(tx: Transaction, now: int | None) -> int:
    return tx.now() if now is None else now
