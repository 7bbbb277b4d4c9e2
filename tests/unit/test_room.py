"""Space on a disk: checked from a refused write until enough is found."""

from postroom.contracts.errors import StoreFull
from postroom.stores.store import LEAST, MOST, Room

FULL = StoreFull("the disk is full")


def test_a_refusal_after_as_much_was_there_looks_for_more_up_to_a_bound() -> None:
    room = Room()
    seen = []
    for _ in range(9):
        room.refused(FULL)
        seen.append(room.wanted)
        room.found(room.wanted)
    assert seen[:3] == [LEAST, 2 * LEAST, 4 * LEAST]
    assert seen[-2:] == [MOST, MOST]


def test_a_disk_that_is_full_time_and_again_is_looked_at_no_harder() -> None:
    room = Room()
    for _ in range(3):
        room.refused(FULL)
        assert room.wanted == LEAST
        room.missing()
        room.found(LEAST)
        assert room.wanted == 0
