"""Named tokens, sessions of pages, and places in traces."""

from dataclasses import replace
from datetime import timedelta

import pytest

from conformance.boxes import Box, on_both
from conformance.promises.given import Office
from postroom.contracts.errors import StoreError
from postroom.contracts.tokens import SCOPES, KeptToken
from postroom.testing import ManualClock

FIRST = KeptToken(id="a" * 12, name="ci", hash="1" * 64, scopes=frozenset({"mail:read"}), created_at=5)


def test_a_named_token_is_kept_whole_and_replaced(box: Box, here: Office) -> None:
    times = {"expires_at": 9, "replaced_at": 7, "revoked_at": 8, "last_used_at": 6}
    every = replace(FIRST, scopes=frozenset(SCOPES) - {"admin"}, project_id=here.project.id, **times)
    for one in (FIRST, every):
        box.put_token(one)
        assert box.token(FIRST.id) == one
    assert (box.token("b" * 12), box.tokens_named("cd")) == (None, [])
    box.undo(lambda tx: tx.put_token(replace(every, name="gone")))
    assert box.tokens_named("ci") == [every]


@on_both
def test_of_one_name_one_token_is_current(box: Box) -> None:
    second = replace(FIRST, id="0" * 12, hash="2" * 64, created_at=6)
    box.put_token(FIRST)
    with pytest.raises(StoreError):
        box.put_token(second)
    box.put_token(replace(second, name="CI"))

    def succeed(tx) -> None:
        tx.put_token(replace(FIRST, replaced_at=6))
        tx.put_token(second)

    box.change(succeed)
    third = replace(FIRST, id="c" * 12, hash="3" * 64, created_at=7, revoked_at=7)
    box.put_token(third)
    assert [one.id for one in box.tokens_named("ci")] == [FIRST.id, second.id, third.id]


@on_both
def test_what_no_token_may_be_is_refused(box: Box, here: Office) -> None:
    box.put_token(FIRST)
    fresh = replace(FIRST, id="d" * 12, name="other", hash="4" * 64)
    for wrong in (
        replace(fresh, scopes=frozenset()),
        replace(fresh, hash="4" * 63),
        replace(fresh, hash=FIRST.hash),
        replace(fresh, project_id=99),
        replace(fresh, scopes=frozenset({"admin", "run"}), project_id=here.project.id),
    ):
        with pytest.raises(StoreError):
            box.put_token(wrong)
    assert box.tokens(limit=9) == [FIRST]
    box.put_token(replace(fresh, scopes=frozenset({"admin"})))


def test_tokens_are_listed_by_id_page_by_page(box: Box) -> None:
    ids = ["0" * 12, "9" * 12, "a" * 12]
    for number, token_id in enumerate(reversed(ids)):
        box.put_token(replace(FIRST, id=token_id, name=token_id, hash=str(number) * 64))
    pages = [box.tokens(limit=2), box.tokens(limit=9, after=ids[1])]
    assert [[one.id for one in page] for page in pages] == [ids[:2], ids[2:]]


def test_the_last_use_of_a_token_only_moves_on(box: Box) -> None:
    box.put_token(FIRST)
    for uses in ({FIRST.id: 8, "e" * 12: 8}, {FIRST.id: 7}, {}):
        box.note_token_uses(uses)
        assert box.tokens(limit=9) == [replace(FIRST, last_used_at=8)]


def test_a_session_that_was_logged_out_is_known_until_it_would_have_ended(
    box: Box, clock: ManualClock
) -> None:
    first, second = "a" * 64, "b" * 64

    def ended() -> list[bool]:
        return [box.is_session_ended(one) for one in (first, second)]

    box.undo(lambda tx: tx.end_session(first, ends_at=clock.now() + 1_000))
    assert ended() == [False, False]
    for _ in range(2):
        box.end_session(first, ends_at=clock.now() + 1_000)
        assert ended() == [True, False]
    clock.advance(timedelta(seconds=1))
    box.end_session(second, ends_at=clock.now() + 1_000)
    assert ended() == [False, True]


@on_both
def test_a_place_in_a_trace_is_kept_and_replaced(box: Box) -> None:
    first, second = (f"00-{'a' * 32}-{digit * 16}-01" for digit in "12")
    odd = "run/é \N{SNOWMAN}"
    for name, place in (("message/1", first), (odd, first), ("message/1", second)):
        box.put_trace(name, place)
    box.undo(lambda tx: tx.put_trace("message/1", first))
    assert box.traces([odd, "message/2", "message/1"]) == {"message/1": second, odd: first}
    assert box.traces([]) == {}
    for wrong in ("", first[:-1], f"{first}0"):
        with pytest.raises(StoreError):
            box.put_trace("message/2", wrong)
