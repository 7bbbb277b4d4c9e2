"""Whether there is room: told from a refused write until as much is found."""

from log_lines import capture_logs
from postroom.app.health import _store
from postroom.contracts.errors import StoreFull
from postroom.http_api.readiness import Check
from postroom.stores.store import LEAST, MOST, Room

FULL = StoreFull("the disk is full")


def test_nothing_is_looked_for_before_a_write_is_refused() -> None:
    room = Room()
    room.found(0)
    assert room.wanted == 0


def test_a_look_from_before_the_refusal_does_not_end_it() -> None:
    room = Room()
    room.refused(FULL)
    room.found(0)
    assert room.wanted == LEAST


def test_a_refusal_after_as_much_was_there_looks_for_more_up_to_a_bound() -> None:
    room = Room()
    seen = []
    for _ in range(9):
        room.refused(FULL)
        seen.append(room.wanted)
        room.found(room.wanted)
    assert seen[:3] == [LEAST, 2 * LEAST, 4 * LEAST]
    assert seen[-2:] == [MOST, MOST]


def test_a_full_disk_is_logged_once_until_there_is_room() -> None:
    room = Room()
    with capture_logs() as lines:
        for _ in range(2):
            for _ in range(3):
                room.refused(FULL)
            room.found(room.wanted)
    assert [line["event"] for line in lines] == ["store.full"] * 2


def test_a_disk_that_is_full_time_and_again_is_looked_at_no_harder() -> None:
    room = Room()
    for _ in range(3):
        room.refused(FULL)
        assert room.wanted == LEAST
        room.missing()
        room.found(LEAST)
        assert room.wanted == 0


def test_people_are_told_that_the_disk_is_full_and_not_that_nothing_answers() -> None:
    told = [
        _store(Check(name="store", state="failed", facts={"code": code}))
        for code in ("store_full", "store_unavailable")
    ]
    assert told == ["the disk is full: nothing can be stored", "the store does not answer"]


def test_people_are_told_that_rights_are_lacking_and_not_that_nothing_answers() -> None:
    facts = {"code": "store_read_only", "lacking": ["UPDATE"]}
    assert "lacks rights" in _store(Check(name="store", state="failed", facts=facts))
