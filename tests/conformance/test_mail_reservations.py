"""File reservations."""

import pytest

from conformance.boxes import Box, on_both
from conformance.promises.given import MINUTE, Office, reservation
from postroom.contracts.errors import StoreError

BOUND = 1_000
"""More rows than any store ends in one call."""
NOW = 1_000_000


def live(box: Box, office: Office, now: int = NOW, **narrowed) -> list[int]:
    return [one.id for one in box.live_reservations(office.project.id, now=now, **narrowed)]


def test_a_reservation_reads_back_as_it_was_made(box: Box, here: Office) -> None:
    given = {"pattern": "src/*.py", "prefix": "src", "exclusive": False, "reason": "tidy ü", "ttl": MINUTE}
    made = box.insert_reservation(here.ada, now=NOW, **given)
    assert {name: getattr(made, name) for name in given} == given
    assert (made.project_id, made.agent_id, made.holder) == (here.project.id, here.ada.id, "Ada")
    assert (made.created_at, made.expires_at) == (NOW, NOW + MINUTE)
    assert (made.released_at, made.released_by, made.release_reason) == (None, "", "")
    assert (box.reservation(made.id), box.reservation(99)) == (made, None)


def test_patterns_are_those_of_the_others_live_reservations(box: Box, here: Office) -> None:
    for prefix in ("", "src", "src/app", "docs"):
        reservation(box, here.ada, prefix, now=NOW)
        reservation(box, here.ben, prefix, now=NOW, exclusive=False)
    reservation(box, here.ada, "src/app/x", now=NOW - MINUTE)
    project = here.project.id
    for near in ("", "src", "src/app/y", "docs/a", "other"):
        full = box.live_reservations(project, now=NOW, near=near or None)
        for but in (here.ada.id, here.ben.id, 0):
            for only in (True, False):
                wanted = [one for one in full if one.agent_id != but and (one.exclusive or not only)]
                found = box.live_patterns(project, now=NOW, near=near, but=but, exclusive_only=only)
                assert sorted(found) == [(one.id, one.pattern) for one in wanted]


def test_reservations_come_by_their_ids(box: Box, here: Office) -> None:
    first = reservation(box, here.ada, "a", now=NOW)
    other = reservation(box, here.ada, "b", ttl=1, now=NOW - 5)
    assert box.reservations_by_id([other.id, 99, first.id, other.id]) == [first, other]
    assert box.reservations_by_id([]) == []


@on_both
def test_a_reservation_has_a_length(box: Box, here: Office) -> None:
    with pytest.raises(StoreError):
        reservation(box, here.ada, "src", ttl=0, now=NOW)
    made = reservation(box, here.ada, "src", now=NOW)
    with pytest.raises(StoreError):
        box.extend_reservation(made.id, expires_at=NOW, ttl=0, exclusive=True, reason="", now=NOW)
    assert box.reservation(made.id) == made


def test_a_reservation_whose_end_is_now_is_over(box: Box, here: Office) -> None:
    made = reservation(box, here.ada, "src", now=NOW).id
    for near in (None, "src", "src/a"):
        for agent_id in (None, here.ada.id):
            times = (NOW, NOW + MINUTE - 1, NOW + MINUTE)
            found = [live(box, here, now, near=near, agent_id=agent_id) for now in times]
            assert found == [[made], [made], []]


def test_live_reservations_come_by_id_and_every_filter_narrows(box: Box, here: Office, there: Office) -> None:
    reservation(box, there.ada, "a", now=NOW)
    places = (("src/a/x", here.ada, 4), ("docs", here.ada, 3), ("src", here.ben, 2), ("src/a", here.ada, 1))
    deep, docs, top, middle = (
        reservation(box, holder, prefix, now=NOW, ttl=length * MINUTE).id for prefix, holder, length in places
    )
    ada, near = here.ada.id, "src/a"
    assert live(box, here) == [deep, docs, top, middle]
    assert live(box, here, limit=2) == [deep, docs]
    assert live(box, here, agent_id=ada) == [deep, docs, middle]
    assert live(box, here, agent_id=ada, limit=1) == [deep]
    assert live(box, here, agent_id=there.ada.id) == live(box, here, near=near, agent_id=here.cyd.id) == []
    assert live(box, here, near=near) == [deep, top, middle]
    assert live(box, here, near=near, limit=2) == [deep, top]
    assert live(box, here, near=near, agent_id=ada) == [deep, middle]
    assert live(box, here, near=near, agent_id=ada, limit=1) == [deep]
    assert box.live_reservations(here.project.id, now=NOW, limit=1) == [box.reservation(deep)]


@on_both
def test_near_keeps_what_may_overlap(box: Box, here: Office) -> None:
    prefixes = ("", "src", "src/a", "src/a/b", "src/ab", "src/a-b", "src/a0", "sr", "docs", "SRC/a")
    made = {
        reservation(box, here.ada, prefix, now=NOW).id: prefix for prefix in (*prefixes, "port:80", "src/å")
    }

    def near(path: str) -> set[str]:
        return {made[found] for found in live(box, here, near=path)}

    assert near("src/a") == near("src/a/b/c") == {"", "src", "src/a", "src/a/b"}
    assert near("src") == {"", "src", "src/a", "src/a/b", "src/ab", "src/a-b", "src/a0", "src/å"}
    assert near("src/å/ß") == {"", "src", "src/å"}
    assert near("port:80") == {"", "port:80"}
    assert near("") == set(made.values())


def test_every_reservation_is_listed_after_a_cursor(box: Box, here: Office, there: Office) -> None:
    reservation(box, there.ada, "a", now=NOW)
    ids, home = [reservation(box, here.ada, prefix, now=NOW).id for prefix in "abcd"], here.project.id
    box.release_reservation(ids[1], now=NOW, by="Ada", reason="done")
    pages = (box.reservations(home, limit=limit, after=after) for limit, after in ((9, 0), (2, 0)))
    assert [[one.id for one in page] for page in pages] == [ids, ids[:2]]
    assert [one.id for one in box.reservations(home, limit=2, after=ids[1])] == ids[2:]
    assert box.reservations(home, limit=2, after=ids[3]) == []
    assert [one.id for one in box.newest_reservations(home, limit=9)] == ids
    assert [one.id for one in box.newest_reservations(home, limit=2)] == ids[2:]


def test_an_extension_moves_the_end_and_replaces_the_terms(box: Box, here: Office) -> None:
    made = reservation(box, here.ada, "src", now=NOW)
    terms = {"expires_at": NOW + 5 * MINUTE, "ttl": 4 * MINUTE, "exclusive": False, "reason": "longer"}
    extended = box.extend_reservation(made.id, now=NOW, **terms)
    assert {name: getattr(extended, name) for name in terms} == terms
    assert (extended.id, extended.pattern, extended.holder) == (made.id, made.pattern, "Ada")
    assert extended.created_at == NOW
    assert box.reservation(made.id) == extended
    assert live(box, here, NOW + 5 * MINUTE - 1) == [made.id]


def test_the_first_release_of_a_reservation_stays(box: Box, here: Office) -> None:
    made = reservation(box, here.ada, "src", now=NOW).id
    ended = box.release_reservation(made, now=NOW + 1, by="Ben", reason="needed")
    assert (ended.released_at, ended.released_by, ended.release_reason) == (NOW + 1, "Ben", "needed")
    assert box.release_reservation(made, now=NOW + 2, by="Ada", reason="done") == ended
    assert box.reservation(made) == ended
    assert live(box, here, NOW + 1) == []
    assert box.expire_reservations(here.project.id, NOW + MINUTE) == []


def test_activity_extends_live_reservations_only_each_by_its_length(
    box: Box, here: Office, there: Office
) -> None:
    lengths = {"live": 120, "long": 180, "farther": 60, "ending": 60, "released": 120}
    made = {
        name: reservation(box, here.ada, name, ttl=length * 1_000, now=NOW).id
        for name, length in lengths.items()
    }
    made["other"] = reservation(box, here.ben, "f", ttl=2 * MINUTE, now=NOW).id
    made["namesake"] = reservation(box, there.ada, "g", ttl=2 * MINUTE, now=NOW).id
    far = NOW + 9 * MINUTE
    box.extend_reservation(made["farther"], expires_at=far, ttl=MINUTE, exclusive=True, reason="", now=NOW)
    box.release_reservation(made["released"], now=NOW, by="Ada", reason="done")
    box.touch_agent(here.ada.id, NOW + MINUTE)
    ends = {name: (box.reservation(number).expires_at - NOW) // MINUTE for name, number in made.items()}
    expected = {"live": 3, "long": 4, "farther": 9, "ending": 1, "released": 2, "other": 2, "namesake": 2}
    assert ends == expected


def test_what_is_over_is_ended_oldest_first(box: Box, here: Office, there: Office) -> None:
    reservation(box, there.ada, "x", ttl=1, now=NOW)
    home, end = here.project.id, NOW + MINUTE
    lengths = (MINUTE, MINUTE + 1, MINUTE - 1, MINUTE, 1)
    one, two, three, four, released = (
        reservation(box, here.ada, "x", ttl=length, now=NOW).id for length in lengths
    )
    box.release_reservation(released, now=NOW, by="Ada", reason="done")
    ended = box.expire_reservations(home, end)
    assert [(made.id, made.released_at, made.expires_at) for made in ended] == [
        (three, end - 1, end - 1),
        (one, end, end),
        (four, end, end),
    ]
    assert {(made.released_by, made.release_reason) for made in ended} == {("", "expired")}
    assert box.reservation(three) == ended[0]
    assert box.expire_reservations(home, end) == []
    assert [made.id for made in box.expire_reservations(home, end + 1)] == [two]


def test_a_call_ends_a_bounded_number_the_oldest_first(box: Box, here: Office) -> None:
    made = box.change(lambda tx: [reservation(tx, here.ada, "x", ttl=1, now=NOW).id for _ in range(BOUND)])
    ended: list[int] = []
    while more := box.expire_reservations(here.project.id, NOW + 1):
        assert len(more) < BOUND
        ended += [one.id for one in more]
    assert ended == made
