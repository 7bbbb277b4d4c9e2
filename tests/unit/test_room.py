"""Space on a disk: checked from a refused write until enough is found."""

from postroom.contracts.errors import StoreFull
from postroom.stores.store import MAX_SPACE, MIN_SPACE, Room

FULL = StoreFull("the disk is full")


def test_a_refusal_after_as_much_was_there_looks_for_more_up_to_a_bound() -> None:
    room = Room()
    seen = []
    for _ in range(9):
        room.refused(FULL)
        seen.append(room.wanted)
        room.found(room.wanted)
    assert seen[:3] == [MIN_SPACE, 2 * MIN_SPACE, 4 * MIN_SPACE]
    assert seen[-2:] == [MAX_SPACE, MAX_SPACE]


def test_a_disk_that_is_full_time_and_again_is_looked_at_no_harder() -> None:
    room = Room()
    for _ in range(3):
        room.refused(FULL)
        assert room.wanted == MIN_SPACE
        room.missing()
        room.found(MIN_SPACE)
        assert room.wanted == 0
