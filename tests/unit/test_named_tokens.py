"""Named tokens: made once, recognised in constant time, replaced with an overlap, ended at once, and little written."""

import asyncio
import hmac
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from mail_room import HARBOR
from postroom.app.tokens import NewToken, new_named_token, redact
from postroom.contracts import errors
from postroom.contracts.tokens import SCOPES, TOKEN_FORM
from postroom.mail.service import Mail
from postroom.mail.tokens import WRITTEN_EVERY, NamedTokens
from postroom.stores.mail.store import MailStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from postroom.testing.faults import LosingStore, RefusingStore, writes
from table_rows import each_row

DAY = timedelta(days=1)
MOMENT = timedelta(milliseconds=1)


@pytest.fixture
def store(clock: ManualClock) -> Iterator[MailStore]:
    found = SqliteStore.in_memory(clock)
    yield found
    found.close()


@pytest.fixture
async def tokens(store: MailStore, clock: ManualClock) -> NamedTokens:
    await Mail(store, clock).call("ensure_project", {"human_key": HARBOR})
    return NamedTokens(store, clock)


async def made(tokens: NamedTokens, name: str = "ci", *scopes: str, **more: Any) -> NewToken:
    new = new_named_token()
    await tokens.create(name, new.id, new.hash, scopes or ("mail:read",), **more)
    return new


async def rotated(tokens: NamedTokens, name: str = "ci", overlap: timedelta = DAY) -> NewToken:
    new = new_named_token()
    await tokens.rotate(name, new.id, new.hash, overlap=overlap)
    return new


async def refused(tokens: NamedTokens, new: NewToken) -> str:
    with pytest.raises(errors.WrongToken) as caught:
        await tokens.recognise(new.token)
    return caught.value.message


async def test_a_token_is_random_is_recognised_with_its_rights_and_is_not_stored(
    tokens: NamedTokens, store: MailStore, clock: ManualClock
) -> None:
    new, second = (
        await made(tokens, "ci", "reserve", "mail:read", project=HARBOR, life=DAY),
        new_named_token(),
    )
    assert TOKEN_FORM.fullmatch(new.token)
    assert (new.token[:17], len(new.token)) == (f"prt_{new.id}_", 17 + 43)
    assert not {new.id, new.token, new.hash} & {second.id, second.token, second.hash}
    grant = await tokens.recognise(new.token)
    assert (grant.token_id, grant.name, grant.scopes) == (new.id, "ci", {"reserve", "mail:read"})
    assert (grant.project_slug, grant.expires_at) == ("projects-harbor", clock.now() + 86_400_000)
    (kept,) = await store.read(lambda tx: tx.tokens(limit=9))
    assert kept.hash == new.hash
    assert new.token not in f"{new!r} {kept} {redact(f'it was {new.token}')}"
    assert new.hash not in f"{kept!r} {await tokens.listed(ended=True)}"


async def test_what_is_no_token_is_refused_by_one_comparison_in_constant_time(
    tokens: NamedTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when there is no such id: how long it took tells neither an id nor a part of a secret."""
    new, other = await made(tokens), new_named_token()
    seen, real = [], hmac.compare_digest

    def watched(one: str, two: str) -> bool:
        seen.append((len(one), len(two)))
        return real(one, two)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    await tokens.recognise(new.token)
    await refused(tokens, other)
    await refused(tokens, replace(new, token=f"prt_{new.id}_{other.token[17:]}"))
    assert seen == [(64, 64)] * 3
    secret = new.token[17:]
    for wrong in (
        *("", "prt_", new.id, new.token[:-1], f"{new.token}a", f"{new.token}\n", f" {new.token}"),
        *(new.token.upper(), new.token[:-1] + ("A" if new.token[-1] != "A" else "B")),
        *(
            *(f"prt_{other.id}_{secret}", f"prm_{secret}", f"pra_{secret}", "prt_\udcff" + "a" * 60),
            "p" * 100_000,
        ),
    ):
        assert "ci" not in await refused(tokens, replace(new, token=wrong)), wrong


async def test_a_token_opens_nothing_once_it_ends_and_its_name_is_free_again(
    tokens: NamedTokens, clock: ManualClock
) -> None:
    new = await made(tokens, life=DAY)
    grant = await tokens.recognise(new.token)
    with pytest.raises(errors.NameTaken):
        await made(tokens)
    clock.advance(DAY - MOMENT)
    await tokens.recognise(new.token)
    assert tokens.holds(grant)
    clock.advance(MOMENT)
    assert "expired at" in await refused(tokens, new)
    assert not tokens.holds(grant)
    second = await made(tokens)
    grant = await tokens.recognise(second.token)
    assert (await tokens.revoke("ci"), await tokens.revoke("ci")) == (1, 0)
    assert "was revoked" in await refused(tokens, second)
    assert not tokens.holds(grant)
    third = await made(tokens)
    assert (await tokens.recognise(third.token)).token_id == third.id
    with pytest.raises(errors.UnknownToken):
        await tokens.revoke("nobody")


async def test_a_rotated_token_is_good_until_the_overlap_is_over(
    tokens: NamedTokens, clock: ManualClock
) -> None:
    first = await made(tokens, "ci", "mail:send", "run", project=HARBOR, life=30 * DAY)
    old = await tokens.recognise(first.token)
    clock.advance(DAY)
    second = await rotated(tokens)
    new = await tokens.recognise(second.token)
    assert (new.scopes, new.project_id) == (old.scopes, old.project_id)
    assert new.expires_at == clock.now() + 30 * 86_400_000
    clock.advance(DAY - MOMENT)
    await tokens.recognise(first.token)
    assert tokens.holds(old)
    clock.advance(MOMENT)
    assert "expired" in await refused(tokens, first)
    assert not tokens.holds(old)
    await tokens.recognise(second.token)


async def test_a_rotation_lengthens_no_life_and_revoking_ends_the_overlap_too(
    tokens: NamedTokens, clock: ManualClock
) -> None:
    first = await made(tokens, life=timedelta(hours=1))
    second = await rotated(tokens, overlap=DAY)
    third = await rotated(tokens, overlap=timedelta(0))
    await refused(tokens, first)
    await refused(tokens, second)
    clock.advance(timedelta(minutes=30))
    fourth = await rotated(tokens, overlap=DAY)
    await tokens.recognise(third.token)
    clock.advance(timedelta(minutes=30))
    await refused(tokens, third)
    fifth = await rotated(tokens)
    await tokens.recognise(fourth.token)
    assert await tokens.revoke("ci") == 2
    for one in (fourth, fifth):
        await refused(tokens, one)
    with pytest.raises(errors.UnknownToken):
        await rotated(tokens)


@pytest.mark.parametrize("kind", [LosingStore, RefusingStore])
async def test_a_call_whose_answer_was_lost_is_repeated_and_makes_one_token(
    tokens: NamedTokens, store: MailStore, clock: ManualClock, kind: type[LosingStore | RefusingStore]
) -> None:
    failing = NamedTokens(kind(store, writes(1, 3, 5)), clock)
    first, second = new_named_token(), new_named_token()
    create = ("ci", first.id, first.hash, ["run", "reserve"])
    with pytest.raises(errors.StoreUnavailable):
        await failing.create(*create, life=DAY)
    clock.advance(MOMENT)
    answer = await failing.create(*create, life=DAY)
    assert answer == await tokens.create(*create, life=DAY)
    with pytest.raises(errors.StoreUnavailable):
        await failing.rotate("ci", second.id, second.hash, overlap=DAY)
    clock.advance(MOMENT)
    assert await failing.rotate("ci", second.id, second.hash, overlap=DAY) == await tokens.rotate(
        "ci", second.id, second.hash, overlap=timedelta(0)
    )
    await tokens.recognise(first.token)
    grant = await failing.recognise(second.token)
    with pytest.raises(errors.StoreUnavailable):
        await failing.revoke("ci")
    await failing.revoke("ci")
    assert not failing.holds(grant)
    assert len(await store.read(lambda tx: tx.tokens(limit=9))) == 2


async def test_an_id_is_one_tokens_for_ever(tokens: NamedTokens) -> None:
    new, other = await made(tokens), new_named_token()
    for change in (
        tokens.create("ci", new.id, other.hash, ["mail:read"]),
        tokens.create("ci", new.id, new.hash, ["mail:send"]),
        tokens.create("ci", new.id, new.hash, ["mail:read"], project=HARBOR),
        tokens.create("cd", new.id, new.hash, ["mail:read"]),
        tokens.rotate("ci", new.id, other.hash, overlap=DAY),
    ):
        with pytest.raises(errors.IdempotencyConflict):
            await change
    await tokens.recognise(new.token)


@each_row(
    "kind, wrong",
    [
        *(
            (errors.InvalidName, {"name": ""}),
            (errors.InvalidName, {"name": "a b"}),
            (errors.InvalidName, {"name": "x" * 65}),
        ),
        *((errors.InvalidName, {"name": "ci\n"}), (errors.InvalidArgument, {"token_id": "short"})),
        *((errors.InvalidArgument, {"hashed": "g" * 64}), (errors.InvalidArgument, {"hashed": "0" * 63})),
        (errors.InvalidArgument, {"scopes": []}),
        (errors.InvalidArgument, {"scopes": ["mail:read", "everything"]}),
        (errors.InvalidArgument, {"scopes": ["Admin"]}),
        (errors.InvalidArgument, {"scopes": ["admin"], "project": HARBOR}),
        *(
            (errors.InvalidArgument, {"life": timedelta(0)}),
            (errors.InvalidArgument, {"life": timedelta(days=-1)}),
        ),
        (errors.InvalidArgument, {"life": timedelta(days=4000)}),
        (errors.UnknownProject, {"project": "/projects/nowhere"}),
    ],
)
async def test_what_no_token_may_be_is_refused_and_kept_nowhere(
    tokens: NamedTokens, store: MailStore, kind: type[errors.PostroomError], wrong: dict[str, Any]
) -> None:
    new = new_named_token()
    right: dict[str, Any] = {"name": "ci", "token_id": new.id, "hashed": new.hash, "scopes": ["run"]}
    with pytest.raises(kind) as caught:
        await tokens.create(**{**right, **wrong})
    assert caught.value.remedy
    assert await store.read(lambda tx: tx.tokens(limit=9)) == []


async def test_the_list_tells_all_but_the_token(tokens: NamedTokens, clock: ManualClock) -> None:
    await made(tokens, "old", life=DAY)
    used = await made(tokens, "used", *SCOPES)
    clock.advance(DAY)
    await tokens.recognise(used.token)
    await tokens.revoke("old")
    (told,) = await tokens.listed()
    assert told == {
        **{"name": "used", "id": used.id, "scopes": list(SCOPES), "project": None, "state": "valid"},
        **{"created_at": told["created_at"], "expires_at": None, "revoked_at": None},
        "last_used_at": told["last_used_at"],
    }
    assert told["last_used_at"] > told["created_at"]
    await rotated(tokens, "used")
    states = [(one["name"], one["state"]) for one in await tokens.listed(ended=True)]
    assert states == [("old", "revoked"), ("used", "replaced"), ("used", "valid")]


class Turns:
    """A timer whose time the test advances."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[int] = asyncio.Queue()
        self._over = asyncio.Semaphore(0)

    async def sleep(self, milliseconds: int) -> None:
        self.asked.put_nowait(milliseconds)
        await self._over.acquire()

    async def turn(self) -> int:
        waited = await self.asked.get()
        self._over.release()
        return waited


async def test_many_calls_are_one_write_a_minute(
    tokens: NamedTokens, store: MailStore, clock: ManualClock
) -> None:
    first, second = await made(tokens, "first"), await made(tokens, "second")
    plan = iter([True, False, False])
    counted = RefusingStore(store, plan)
    turns = Turns()
    watched = NamedTokens(counted, clock, timer=turns)
    watched.start()
    for one in (first, second) * 50:
        await watched.recognise(one.token)

    async def written() -> list[int | None]:
        return [one.last_used_at for one in await store.read(lambda tx: tx.tokens(limit=9))]

    for expected in ([None, None], [clock.now()] * 2, [clock.now()] * 2):
        assert await turns.turn() == WRITTEN_EVERY // MOMENT
        while turns.asked.empty():
            await store.probe()
        assert await written() == expected
    assert list(plan) == [False]  # the first was refused and done again; the third had nothing to write
    clock.advance(DAY)
    await watched.recognise(first.token)
    await watched.stop()
    assert sorted(filter(None, await written())) == [clock.now() - 86_400_000, clock.now()]
    await watched.stop()
