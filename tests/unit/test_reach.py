"""A database that is away: told when it is lost, then once a minute, and when it is back."""

from log_lines import capture_logs
from postroom.contracts.errors import StoreUnavailable
from postroom.stores.postgres.reach import Reach

SECOND = 1_000


def test_a_loss_is_told_once_then_each_minute_and_its_end_with_how_long_it_was() -> None:
    now = 5 * SECOND
    reach = Reach(lambda: now)
    with capture_logs() as told:
        reach.found()
        for _ in range(150):  # a try a second
            reach.lost(StoreUnavailable("nobody listens", remedy="start it"))
            now += SECOND
        reach.found()
        reach.found()
        reach.lost(StoreUnavailable("gone again"))
    assert [line["event"] for line in told] == [
        "store.lost",
        "store.still_lost",
        "store.still_lost",
        "store.back",
        "store.lost",
    ]
    facts = {"code": "store_unavailable", "reason": "nobody listens", "remedy": "start it"}
    assert facts.items() <= told[0].items()
    assert {**facts, "lost_for_s": 60, "tries": 61}.items() <= told[1].items()
    assert {"lost_for_s": 150, "tries": 150, "log_level": "info"}.items() <= told[3].items()


def test_each_error_that_was_told_says_so() -> None:
    errors = [StoreUnavailable("nobody listens") for _ in range(2)]
    reach = Reach(lambda: 0)
    with capture_logs():
        for error in errors:
            reach.lost(error)
    assert [error.is_told for error in errors] == [True, True]
