"""People of chats in memory, and strangers who ask to be let in."""

from dataclasses import dataclass, replace
from itertools import islice

from postroom.contracts.chat import MAX_INBOUND
from postroom.contracts.chat_people import PairingRequest, PairingRules, Person, PersonRole
from postroom.contracts.errors import InvalidRecord, QueueFull
from postroom.stores.memory.run_tables import Key, Ordered, Place


@dataclass(slots=True)
class _Guard:
    """Wrong guesses on one platform since the last right one, and until when it is locked."""

    wrong: int = 0
    locked_until: int = 0

    def refuse(self, platform: str, now: int) -> None:
        if now < self.locked_until:
            raise QueueFull(
                f"pairing on {platform!r} is locked after too many wrong codes",
                value=platform,
                remedy="try again later, or have an owner let the person in",
                details={"locked_until": self.locked_until},
            )


class MemoryChatPeople:
    """Who may write, and who asks to, in this process's memory."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._people: dict[tuple[str, str], Person] = {}
        self._order: Ordered[Key] = Ordered()
        self._requests: dict[tuple[str, str], PairingRequest] = {}
        self._guards: dict[str, _Guard] = {}

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._place.identity

    async def person(self, platform: str, user_id: str) -> Person | None:
        """Return somebody who was let in."""
        await self._place.turn()
        return self._people.get((platform, user_id))

    async def people(
        self, *, platform: str | None = None, after: tuple[str, str] = ("", ""), limit: int = MAX_INBOUND
    ) -> tuple[Person, ...]:
        """Return those who were let in, by platform and id."""
        await self._place.turn()
        wanted = (key for key in self._order.behind(after) if platform is None or key[0] == platform)
        return tuple(self._people[key[0], key[1]] for key in islice(wanted, page(limit)))

    async def let_in(self, person: Person, *, now: int | None = None) -> Person:
        """Store a person, or a known one's new role and name; `added_at` stays what it was."""
        refuse_unfit(person.name, platform=person.platform, user_id=person.user_id)
        return self._let_in(person, await self._place.turn(now))

    async def shut_out(self, platform: str, user_id: str) -> bool:
        """Forget a person; False when there was none."""
        await self._place.turn()
        self._order.discard((platform, user_id))
        return self._people.pop((platform, user_id), None) is not None

    async def ask(
        self, request: PairingRequest, rules: PairingRules, *, now: int | None = None
    ) -> PairingRequest:
        """Keep a request until `rules.code_ms` from now, in place of a former one of the same person."""
        refuse_unfit(
            request.name, platform=request.platform, user_id=request.user_id, code_hash=request.code_hash
        )
        at = await self._place.turn(now)
        platform, who = request.platform, (request.platform, request.user_id)
        self._guards.get(platform, _Guard()).refuse(platform, at)
        former = self._requests.get(who)
        if former is not None and at - former.asked_at < rules.ask_again_ms:
            raise _asked_too_soon(former, rules)
        others = [one for one in self._requests.values() if one.platform == platform and one is not former]
        if sum(at < one.expires_at for one in others) >= rules.most_open:
            raise _too_many_ask(platform)
        for one in others:
            if one.expires_at <= at and at - one.asked_at >= rules.ask_again_ms:
                del self._requests[one.platform, one.user_id]
        self._requests[who] = replace(request, asked_at=at, expires_at=at + rules.code_ms)
        return self._requests[who]

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
        at = await self._place.turn(now)
        guard = self._guards.setdefault(platform, _Guard())
        guard.refuse(platform, at)
        asked = [one for one in self._requests.values() if one.platform == platform and at < one.expires_at]
        right = [one for one in asked if one.code_hash == code_hash]
        if not right:
            guard.wrong += 1
            if guard.wrong >= rules.most_wrong:
                guard.wrong, guard.locked_until = 0, at + rules.locked_ms
            return None
        one = min(right, key=lambda one: (one.asked_at, one.user_id))
        del self._guards[platform], self._requests[platform, one.user_id]
        return self._let_in(Person(platform=platform, user_id=one.user_id, role=role, name=one.name), at)

    async def requests(
        self, *, platform: str | None = None, now: int | None = None
    ) -> tuple[PairingRequest, ...]:
        """Return the open requests, the oldest first."""
        at = await self._place.turn(now)
        asked = [one for one in self._requests.values() if platform in (None, one.platform)]
        still = [one for one in asked if at < one.expires_at]
        return tuple(sorted(still, key=lambda one: (one.asked_at, one.platform, one.user_id))[:MAX_INBOUND])

    async def forget_requests(self, platform: str) -> int:
        """Remove all requests of a platform, wrong guesses and its lock; return how many requests."""
        await self._place.turn()
        self._guards.pop(platform, None)
        gone = [who for who in self._requests if who[0] == platform]
        for who in gone:
            del self._requests[who]
        return len(gone)

    def _let_in(self, person: Person, now: int) -> Person:
        who = person.platform, person.user_id
        known = self._people.get(who)
        self._people[who] = replace(person, added_at=known.added_at if known else now)
        self._order.add(who)
        return self._people[who]


def page(limit: int) -> int:
    """Return how much a listing holds that was asked for so much."""
    return max(0, min(limit, MAX_INBOUND))


def refuse_unfit(*optional: str | None, **needed: str) -> None:
    """Refuse texts that are needed and blank, and any that no store on disk can hold.

    Raises:
        InvalidRecord: as said.
    """
    for name, text in needed.items():
        if not text.strip():
            raise InvalidRecord(f"{name} is blank", value=text)
    try:
        "".join(text for text in (*optional, *needed.values()) if text).encode()
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"no store can hold a text: {error}") from error


def _asked_too_soon(former: PairingRequest, rules: PairingRules) -> QueueFull:
    again_at = former.asked_at + rules.ask_again_ms
    return QueueFull(
        f"{former.user_id!r} asked a short while ago",
        value=former.user_id,
        remedy="ask again later",
        details={"again_at": again_at},
    )


def _too_many_ask(platform: str) -> QueueFull:
    return QueueFull(
        f"as many wait to be let in on {platform!r} as may",
        value=platform,
        remedy="ask again when some were answered",
    )
