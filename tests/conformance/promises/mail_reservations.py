"""Promises of a mail store about file reservations."""

from collections.abc import Callable

from conformance.promises.given import MINUTE, Office, an_office, refused, reservation
from postroom.contracts.errors import StoreError
from postroom.contracts.mail import LivePattern, Reservation
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.mail.store import MailStore
from postroom.testing.clock import ManualClock

BOUND = 1_000
"""More rows than any store ends in one call."""


async def _live(
    store: MailStore,
    here: Office,
    *,
    now: int,
    near: str | None = None,
    agent_id: int | None = None,
    limit: int | None = None,
) -> list[int]:
    found = await store.read(
        lambda tx: tx.live_reservations(here.project.id, now=now, near=near, agent_id=agent_id, limit=limit)
    )
    return [one.id for one in found]


async def a_reservation_reads_back_as_it_was_made(store: MailStore, clock: ManualClock) -> None:
    """It names its holder and ends after its length."""
    here, now = await an_office(store), clock.now()
    made = await store.write(
        lambda tx: tx.insert_reservation(
            here.ada, pattern="src/*.py", prefix="src", exclusive=False, reason="tidy ü", ttl=MINUTE, now=now
        )
    )
    assert (made.project_id, made.agent_id, made.holder) == (here.project.id, here.ada.id, "Ada")
    assert (made.pattern, made.prefix, made.exclusive, made.reason) == ("src/*.py", "src", False, "tidy ü")
    assert (made.created_at, made.expires_at, made.ttl) == (now, now + MINUTE, MINUTE)
    assert (made.released_at, made.released_by, made.release_reason) == (None, "", "")
    assert await store.read(lambda tx: tx.reservation(made.id)) == made
    assert await store.read(lambda tx: tx.reservation(99)) is None


async def patterns_are_those_of_the_others_live_reservations(store: MailStore, clock: ManualClock) -> None:
    """They name what the full records name, less the asker's own and, if asked, the shared."""
    here, now = await an_office(store), clock.now()

    def reserve(tx: MailWrites) -> None:
        for prefix in ("", "src", "src/app", "docs"):
            reservation(tx, here.ada, prefix, now=now)
            tx.insert_reservation(
                here.ben, pattern="p", prefix=prefix, exclusive=False, reason="", ttl=MINUTE, now=now
            )
        reservation(tx, here.ada, "src/app/x", ttl=MINUTE, now=now - MINUTE)

    await store.write(reserve)
    for near in ("", "src", "src/app/y", "docs/a", "other"):
        for but in (here.ada.id, here.ben.id, 0):
            for exclusive_only in (True, False):
                full, found = await store.read(_both_ways(here, now, near, but, exclusive_only))
                assert sorted(found) == full


def _both_ways(
    here: Office, now: int, near: str, but: int, exclusive_only: bool
) -> Callable[[MailReads], tuple[list[LivePattern], list[LivePattern]]]:
    def look(tx: MailReads) -> tuple[list[LivePattern], list[LivePattern]]:
        project_id = here.project.id
        full = tx.live_reservations(project_id, now=now, near=near or None)
        wanted = [one for one in full if one.agent_id != but and (one.exclusive or not exclusive_only)]
        found = tx.live_patterns(project_id, now=now, near=near, but=but, exclusive_only=exclusive_only)
        return [(one.id, one.pattern) for one in wanted], found

    return look


async def reservations_come_by_their_ids(store: MailStore, clock: ManualClock) -> None:
    """Once each, in order, whatever their state; unknown ones are left out."""
    here, now = await an_office(store), clock.now()
    first = await store.write(lambda tx: reservation(tx, here.ada, "a", now=now))
    other = await store.write(lambda tx: reservation(tx, here.ada, "b", ttl=1, now=now - 5))
    asked = [other.id, 99, first.id, other.id]
    assert await store.read(lambda tx: tx.reservations_by_id(asked)) == [first, other]
    assert await store.read(lambda tx: tx.reservations_by_id([])) == []


async def a_reservation_has_a_length(store: MailStore, clock: ManualClock) -> None:
    """None that ends as it begins can be made or left."""
    here, now = await an_office(store), clock.now()
    with refused(StoreError):
        await store.write(lambda tx: reservation(tx, here.ada, "src", ttl=0, now=now))
    made = await store.write(lambda tx: reservation(tx, here.ada, "src", now=now))
    with refused(StoreError):
        await store.write(
            lambda tx: tx.extend_reservation(
                made.id, expires_at=now, ttl=0, exclusive=True, reason="", now=now
            )
        )
    assert await store.read(lambda tx: tx.reservation(made.id)) == made


async def a_reservation_whose_end_is_now_is_over(store: MailStore, clock: ManualClock) -> None:
    """It is live up to the millisecond before its end."""
    here, now = await an_office(store), clock.now()
    made = await store.write(lambda tx: reservation(tx, here.ada, "src", ttl=MINUTE, now=now))
    for near in (None, "src", "src/a"):
        for agent_id in (None, here.ada.id):
            assert await _live(store, here, now=now, near=near, agent_id=agent_id) == [made.id]
            last = now + MINUTE - 1
            assert await _live(store, here, now=last, near=near, agent_id=agent_id) == [made.id]
            assert await _live(store, here, now=last + 1, near=near, agent_id=agent_id) == []


async def live_reservations_come_by_id(store: MailStore, clock: ManualClock) -> None:
    """Those of one project, or of one agent of it, as many as asked for, the first ones first."""
    here, there, now = await an_office(store), await an_office(store, "elsewhere"), clock.now()

    def reserve(tx: MailWrites) -> list[Reservation]:
        reservation(tx, there.ada, "a", now=now)
        return [
            reservation(tx, here.ada, "c", now=now, ttl=3 * MINUTE),
            reservation(tx, here.ben, "b", now=now, ttl=2 * MINUTE),
            reservation(tx, here.ada, "a", now=now, ttl=MINUTE),
        ]

    one, two, three = (made.id for made in await store.write(reserve))
    assert await _live(store, here, now=now) == [one, two, three]
    assert await _live(store, here, now=now, limit=2) == [one, two]
    assert await _live(store, here, now=now, agent_id=here.ada.id) == [one, three]
    assert await _live(store, here, now=now, agent_id=here.ada.id, limit=1) == [one]
    assert await _live(store, here, now=now, agent_id=there.ada.id) == []
    found = await store.read(lambda tx: tx.live_reservations(here.project.id, now=now, limit=1))
    assert found == [await store.read(lambda tx: tx.reservation(one))]


async def near_keeps_what_may_overlap(store: MailStore, clock: ManualClock) -> None:
    """Prefixes above, at and below in whole segments; neither siblings nor names that only begin alike."""
    here, now = await an_office(store), clock.now()
    prefixes = [
        "",
        "src",
        "src/a",
        "src/a/b",
        "src/ab",
        "src/a-b",
        "src/a0",
        "sr",
        "docs",
        "SRC/a",
        "port:80",
        "src/å",
    ]

    def reserve(tx: MailWrites) -> dict[int, str]:
        return {reservation(tx, here.ada, prefix, now=now).id: prefix for prefix in prefixes}

    made = await store.write(reserve)

    async def near(path: str) -> set[str]:
        return {made[found] for found in await _live(store, here, now=now, near=path)}

    assert await near("src/a") == {"", "src", "src/a", "src/a/b"}
    assert await near("src/a/b/c") == {"", "src", "src/a", "src/a/b"}
    assert await near("src") == {"", "src", "src/a", "src/a/b", "src/ab", "src/a-b", "src/a0", "src/å"}
    assert await near("src/å/ß") == {"", "src", "src/å"}
    assert await near("port:80") == {"", "port:80"}
    assert await near("") == set(prefixes)


async def near_holds_together_with_agent_and_limit(store: MailStore, clock: ManualClock) -> None:
    """Every filter narrows; a limit keeps the first by id among what the others leave."""
    here, now = await an_office(store), clock.now()

    def reserve(tx: MailWrites) -> list[int]:
        places = [("src/a/x", here.ada), ("docs", here.ada), ("src", here.ben), ("src/a", here.ada)]
        return [reservation(tx, holder, prefix, now=now).id for prefix, holder in places]

    deep, _, top, middle = await store.write(reserve)
    assert await _live(store, here, now=now, near="src/a") == [deep, top, middle]
    assert await _live(store, here, now=now, near="src/a", limit=1) == [deep]
    assert await _live(store, here, now=now, near="src/a", limit=2) == [deep, top]
    assert await _live(store, here, now=now, near="src/a", agent_id=here.ada.id) == [deep, middle]
    assert await _live(store, here, now=now, near="src/a", agent_id=here.ada.id, limit=1) == [deep]
    assert await _live(store, here, now=now, near="src/a", agent_id=here.cyd.id) == []


async def every_reservation_is_listed_after_a_cursor(store: MailStore, clock: ManualClock) -> None:
    """Ended ones included, by id, pages joining without a gap."""
    here, there, now = await an_office(store), await an_office(store, "elsewhere"), clock.now()

    def reserve(tx: MailWrites) -> list[int]:
        reservation(tx, there.ada, "a", now=now)
        ids = [reservation(tx, here.ada, prefix, now=now).id for prefix in "abcd"]
        tx.release_reservation(ids[1], now=now, by="Ada", reason="done")
        return ids

    ids = await store.write(reserve)

    async def page(*, limit: int, after: int = 0) -> list[int]:
        found = await store.read(lambda tx: tx.reservations(here.project.id, limit=limit, after=after))
        return [one.id for one in found]

    assert await page(limit=9) == ids
    assert await page(limit=2) == ids[:2]
    assert await page(limit=2, after=ids[1]) == ids[2:]
    assert await page(limit=2, after=ids[3]) == []

    async def newest(limit: int) -> list[int]:
        found = await store.read(lambda tx: tx.newest_reservations(here.project.id, limit=limit))
        return [one.id for one in found]

    assert await newest(9) == ids
    assert await newest(2) == ids[2:]


async def an_extension_moves_the_end_and_replaces_the_terms(store: MailStore, clock: ManualClock) -> None:
    """Pattern, holder and beginning stay."""
    here, now = await an_office(store), clock.now()
    made = await store.write(lambda tx: reservation(tx, here.ada, "src", now=now))
    end = now + 5 * MINUTE
    extended = await store.write(
        lambda tx: tx.extend_reservation(
            made.id, expires_at=end, ttl=4 * MINUTE, exclusive=False, reason="longer", now=now
        )
    )
    assert (extended.expires_at, extended.ttl) == (end, 4 * MINUTE)
    assert (extended.exclusive, extended.reason) == (False, "longer")
    assert (extended.id, extended.pattern, extended.holder) == (made.id, made.pattern, "Ada")
    assert extended.created_at == now
    assert await store.read(lambda tx: tx.reservation(made.id)) == extended
    assert await _live(store, here, now=end - 1) == [made.id]


async def the_first_release_of_a_reservation_stays(store: MailStore, clock: ManualClock) -> None:
    """It is over from then on, and says by whom and why it was ended; ending it again changes nothing."""
    here, now = await an_office(store), clock.now()
    made = await store.write(lambda tx: reservation(tx, here.ada, "src", now=now))
    ended = await store.write(
        lambda tx: tx.release_reservation(made.id, now=now + 1, by="Ben", reason="needed")
    )
    assert (ended.released_at, ended.released_by, ended.release_reason) == (now + 1, "Ben", "needed")
    again = await store.write(
        lambda tx: tx.release_reservation(made.id, now=now + 2, by="Ada", reason="done")
    )
    assert again == ended
    assert await store.read(lambda tx: tx.reservation(made.id)) == ended
    assert await _live(store, here, now=now + 1) == []
    assert await store.write(lambda tx: tx.expire_reservations(here.project.id, now + MINUTE)) == []


async def activity_extends_live_reservations_only(store: MailStore, clock: ManualClock) -> None:
    """Each by its own length from now; none is shortened; those that ended, or end now, stay as they are."""
    here, there, now = await an_office(store), await an_office(store, "elsewhere"), clock.now()

    def reserve(tx: MailWrites) -> dict[str, int]:
        made = {
            "live": reservation(tx, here.ada, "a", ttl=2 * MINUTE, now=now).id,
            "long": reservation(tx, here.ada, "b", ttl=3 * MINUTE, now=now).id,
            "farther": reservation(tx, here.ada, "c", ttl=MINUTE + 1, now=now).id,
            "ending": reservation(tx, here.ada, "d", ttl=MINUTE, now=now).id,
            "released": reservation(tx, here.ada, "e", ttl=2 * MINUTE, now=now).id,
            "other": reservation(tx, here.ben, "f", ttl=2 * MINUTE, now=now).id,
            "namesake": reservation(tx, there.ada, "g", ttl=2 * MINUTE, now=now).id,
        }
        far = now + 9 * MINUTE
        tx.extend_reservation(made["farther"], expires_at=far, ttl=MINUTE, exclusive=True, reason="", now=now)
        tx.release_reservation(made["released"], now=now, by="Ada", reason="done")
        return made

    made = await store.write(reserve)
    await store.write(lambda tx: tx.touch_agent(here.ada.id, now + MINUTE))

    def ends(tx: MailWrites) -> dict[str, int]:
        found = {name: tx.reservation(reservation_id) for name, reservation_id in made.items()}
        return {name: (one.expires_at - now) // MINUTE for name, one in found.items() if one}

    expected = {"live": 3, "long": 4, "farther": 9, "ending": 1, "released": 2, "other": 2, "namesake": 2}
    assert await store.write(ends) == expected


async def what_is_over_is_ended_oldest_first(store: MailStore, clock: ManualClock) -> None:
    """Those whose end has come, exactly now included, are ended at that end and returned once."""
    here, there, now = await an_office(store), await an_office(store, "elsewhere"), clock.now()

    def reserve(tx: MailWrites) -> list[int]:
        reservation(tx, there.ada, "x", ttl=1, now=now)
        lengths = [MINUTE, MINUTE + 1, MINUTE - 1, MINUTE, 1]
        made = [reservation(tx, here.ada, "x", ttl=length, now=now).id for length in lengths]
        tx.release_reservation(made[4], now=now, by="Ada", reason="done")
        return made

    one, two, three, four, _ = await store.write(reserve)
    ended = await store.write(lambda tx: tx.expire_reservations(here.project.id, now + MINUTE))
    assert [made.id for made in ended] == [three, one, four]
    assert [(made.released_at, made.expires_at) for made in ended] == [
        (now + MINUTE - 1, now + MINUTE - 1),
        (now + MINUTE, now + MINUTE),
        (now + MINUTE, now + MINUTE),
    ]
    assert {(made.released_by, made.release_reason) for made in ended} == {("", "expired")}
    assert [await store.read(lambda tx: tx.reservation(three))] == ended[:1]
    assert await store.write(lambda tx: tx.expire_reservations(here.project.id, now + MINUTE)) == []
    later = await store.write(lambda tx: tx.expire_reservations(here.project.id, now + MINUTE + 1))
    assert [made.id for made in later] == [two]


async def a_call_ends_a_bounded_number(store: MailStore, clock: ManualClock) -> None:
    """However many are over, one call ends a part, the oldest, and further calls the rest."""
    here, now = await an_office(store), clock.now()

    def reserve(tx: MailWrites) -> list[int]:
        return [reservation(tx, here.ada, "x", ttl=1, now=now).id for _ in range(BOUND)]

    made = await store.write(reserve)
    first = await store.write(lambda tx: tx.expire_reservations(here.project.id, now + 1))
    assert 0 < len(first) < BOUND
    ended = [one.id for one in first]
    for _ in range(BOUND):
        more = await store.write(lambda tx: tx.expire_reservations(here.project.id, now + 1))
        if not more:
            break
        ended += [one.id for one in more]
    assert ended == made


PROMISES = (
    a_reservation_reads_back_as_it_was_made,
    a_reservation_has_a_length,
    a_reservation_whose_end_is_now_is_over,
    live_reservations_come_by_id,
    patterns_are_those_of_the_others_live_reservations,
    reservations_come_by_their_ids,
    near_keeps_what_may_overlap,
    near_holds_together_with_agent_and_limit,
    every_reservation_is_listed_after_a_cursor,
    an_extension_moves_the_end_and_replaces_the_terms,
    the_first_release_of_a_reservation_stays,
    activity_extends_live_reservations_only,
    what_is_over_is_ended_oldest_first,
    a_call_ends_a_bounded_number,
)
