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


@on_both
def test_a_reservation_has_a_length(box: Box, here: Office) -> None:
    with pytest.raises(StoreError):
        reservation(box, here.ada, "src", ttl=0, now=NOW)
    made = reservation(box, here.ada, "src", now=NOW)
    with pytest.raises(StoreError):
        box.extend_reservation(made.id, expires_at=NOW, ttl=0, exclusive=True, reason="", now=NOW)
    assert box.reservation(made.id) == made


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
