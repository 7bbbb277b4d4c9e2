"""Promises of a mail store about named tokens."""

from dataclasses import replace
from datetime import timedelta

from conformance.promises.given import an_office, never_made, refused
from postroom.contracts.errors import StoreError
from postroom.contracts.tokens import SCOPES, KeptToken
from postroom.stores.mail.access import MailWrites
from postroom.stores.mail.store import MailStore
from postroom.testing.clock import ManualClock

_FIRST = KeptToken(id="a" * 12, name="ci", hash="1" * 64, scopes=frozenset({"mail:read"}), created_at=5)


async def a_named_token_is_kept_whole_and_replaced(store: MailStore, clock: ManualClock) -> None:
    """Every field comes back as it was; what is put under the same id takes its place."""
    here = await an_office(store)
    every = replace(
        _FIRST,
        scopes=frozenset(SCOPES) - {"admin"},
        project_id=here.project.id,
        expires_at=9,
        replaced_at=7,
        revoked_at=8,
        last_used_at=6,
    )
    for one in (_FIRST, every):
        await store.write(lambda tx, one=one: tx.put_token(one))  # type: ignore[misc]
        assert await store.read(lambda tx: tx.token(_FIRST.id)) == one
    assert await store.read(lambda tx: (tx.token("b" * 12), tx.tokens_named("cd"))) == (None, [])
    await never_made(store, lambda tx: tx.put_token(replace(every, name="gone")))
    assert await store.read(lambda tx: tx.tokens_named("ci")) == [every]


async def of_one_name_one_token_is_current(store: MailStore, clock: ManualClock) -> None:
    """A replaced or revoked one gives its name away; names are compared exactly."""
    second = replace(_FIRST, id="0" * 12, hash="2" * 64, created_at=6)
    await store.write(lambda tx: tx.put_token(_FIRST))
    with refused(StoreError):
        await store.write(lambda tx: tx.put_token(second))
    await store.write(lambda tx: tx.put_token(replace(second, name="CI")))

    def succeed(tx: MailWrites) -> None:
        tx.put_token(replace(_FIRST, replaced_at=6))
        tx.put_token(second)

    await store.write(succeed)
    third = replace(_FIRST, id="c" * 12, hash="3" * 64, created_at=7, revoked_at=7)
    await store.write(lambda tx: tx.put_token(third))
    named = await store.read(lambda tx: [one.id for one in tx.tokens_named("ci")])
    assert named == [_FIRST.id, second.id, third.id]


async def what_no_token_may_be_is_refused(store: MailStore, clock: ManualClock) -> None:
    """Without a scope, with another one's hash, of no project, or of one with the scope for all of them."""
    here = await an_office(store)
    await store.write(lambda tx: tx.put_token(_FIRST))
    fresh = replace(_FIRST, id="d" * 12, name="other", hash="4" * 64)
    for wrong in (
        replace(fresh, scopes=frozenset()),
        replace(fresh, hash="4" * 63),
        replace(fresh, hash=_FIRST.hash),
        replace(fresh, project_id=99),
        replace(fresh, scopes=frozenset({"admin", "run"}), project_id=here.project.id),
    ):
        with refused(StoreError):
            await store.write(lambda tx, one=wrong: tx.put_token(one))  # type: ignore[misc]
    assert await store.read(lambda tx: tx.tokens(limit=9)) == [_FIRST]
    await store.write(lambda tx: tx.put_token(replace(fresh, scopes=frozenset({"admin"}))))


async def tokens_are_listed_by_id(store: MailStore, clock: ManualClock) -> None:
    """A page at a time, those behind the last one seen."""
    ids = ["0" * 12, "9" * 12, "a" * 12]

    def fill(tx: MailWrites) -> None:
        for number, token_id in enumerate(reversed(ids)):
            tx.put_token(replace(_FIRST, id=token_id, name=token_id, hash=str(number) * 64))

    await store.write(fill)
    pages = await store.read(lambda tx: [tx.tokens(limit=2), tx.tokens(limit=9, after=ids[1])])
    assert [[one.id for one in page] for page in pages] == [ids[:2], ids[2:]]


async def the_last_use_of_a_token_only_moves_on(store: MailStore, clock: ManualClock) -> None:
    """An earlier instant and an unknown id change nothing."""
    await store.write(lambda tx: tx.put_token(_FIRST))
    for uses in ({_FIRST.id: 8, "e" * 12: 8}, {_FIRST.id: 7}, {}):
        await store.write(lambda tx, uses=uses: tx.note_token_uses(uses))  # type: ignore[misc]
        assert await store.read(lambda tx: tx.tokens(limit=9)) == [replace(_FIRST, last_used_at=8)]


async def a_session_that_was_logged_out_is_known_until_it_would_have_ended(
    store: MailStore, clock: ManualClock
) -> None:
    """It may be logged out twice; others are not touched."""
    first, second = "a" * 64, "b" * 64

    async def ended() -> list[bool]:
        return await store.read(lambda tx: [tx.is_session_ended(one) for one in (first, second)])

    assert await ended() == [False, False]
    await never_made(store, lambda tx: tx.end_session(first, ends_at=clock.now() + 1_000))
    assert await ended() == [False, False]
    for _ in range(2):
        await store.write(lambda tx: tx.end_session(first, ends_at=clock.now() + 1_000))
        assert await ended() == [True, False]
    clock.advance(timedelta(seconds=1))
    await store.write(lambda tx: tx.end_session(second, ends_at=clock.now() + 1_000))
    assert await ended() == [False, True]


PROMISES = (
    a_named_token_is_kept_whole_and_replaced,
    of_one_name_one_token_is_current,
    what_no_token_may_be_is_refused,
    tokens_are_listed_by_id,
    the_last_use_of_a_token_only_moves_on,
    a_session_that_was_logged_out_is_known_until_it_would_have_ended,
)
