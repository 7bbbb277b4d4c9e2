"""Named tokens, sessions of pages, and places in traces."""

from dataclasses import replace

import pytest

from conformance.boxes import Box, on_both
from conformance.promises.given import Office
from postroom.contracts.errors import StoreError
from postroom.contracts.tokens import KeptToken

FIRST = KeptToken(id="a" * 12, name="ci", hash="1" * 64, scopes=frozenset({"mail:read"}), created_at=5)


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
