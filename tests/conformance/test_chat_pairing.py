"""Promises of the people of chats: who asks to be let in, and how often a code may be guessed."""

from datetime import timedelta

from conformance.boxes import on_both
from conformance.promises.chat_given import (
    ROUNDS,
    RULES,
    TOGETHER,
    at_once,
    person,
    request,
)
from conformance.promises.given import refused
from postroom.contracts.chat_people import Person, PersonRole
from postroom.contracts.errors import QueueFull
from postroom.contracts.records import replace
from postroom.stores.chats.stores import ChatStores
from postroom.testing import ManualClock

HERE = "telegram"


async def _asked(chats: ChatStores, *, platform: str | None = HERE) -> list[str]:
    return [one.user_id for one in await chats.people.requests(platform=platform)]


async def _guess(chats: ChatStores, code_hash: str = "wrong", *, platform: str = HERE) -> Person | None:
    return await chats.people.redeem(platform, code_hash, RULES)


async def _locked(chats: ChatStores) -> None:
    """Guess wrong as often as is allowed."""
    for _ in range(RULES.most_wrong):
        assert await _guess(chats) is None


async def test_a_request_is_kept_until_its_code_ends(chats: ChatStores, clock: ManualClock) -> None:
    given = request(name="Ada \0", asked_at=1, expires_at=2)
    stored = await chats.people.ask(given, RULES)
    now = clock.now()
    assert stored == replace(given, asked_at=now, expires_at=now + RULES.code_ms)
    clock.set(stored.expires_at - 1)
    assert await chats.people.requests() == (stored,)
    clock.set(stored.expires_at)
    assert await chats.people.requests() == ()
    assert await chats.people.person(HERE, given.user_id) is None


async def test_who_asks_again_too_soon_is_refused(chats: ChatStores, clock: ManualClock) -> None:
    stored = await chats.people.ask(request(), RULES)
    clock.set(stored.asked_at + RULES.ask_again_ms - 1)
    with refused(QueueFull):
        await chats.people.ask(request(code_hash="new"), RULES)
    assert await chats.people.requests() == (stored,)
    clock.set(stored.asked_at + RULES.ask_again_ms)
    again = await chats.people.ask(request(code_hash="new"), RULES)
    assert await chats.people.requests() == (again,)
    assert again.asked_at == clock.now()


async def test_a_new_request_takes_the_place_of_a_former_one(chats: ChatStores, clock: ManualClock) -> None:
    for number, wait in enumerate((RULES.ask_again_ms, RULES.code_ms, 9 * RULES.code_ms)):
        await chats.people.ask(request(code_hash=f"hash {number}"), RULES)
        clock.set(clock.now() + wait)
    stored = await chats.people.ask(request(code_hash="last"), RULES)
    assert await chats.people.requests() == (stored,)
    assert await _guess(chats, "hash 0") is None
    assert await _guess(chats, "last") is not None


async def test_no_more_wait_on_a_platform_than_may(chats: ChatStores, clock: ManualClock) -> None:
    for number in range(RULES.most_open):
        await chats.people.ask(request(f"u{number}"), RULES)
        clock.advance(timedelta(milliseconds=1))
    with refused(QueueFull):
        await chats.people.ask(request("late"), RULES)
    assert await _asked(chats) == ["u0", "u1", "u2"]
    await chats.people.ask(request("late", platform="other"), RULES)
    clock.set(clock.now() + RULES.ask_again_ms)
    await chats.people.ask(request("u1"), RULES)
    assert await _asked(chats) == ["u0", "u2", "u1"]
    clock.set(clock.now() + RULES.code_ms - RULES.ask_again_ms - RULES.most_open)
    await chats.people.ask(request("late"), RULES)
    assert await _asked(chats) == ["u2", "u1", "late"]


async def test_the_right_code_lets_a_person_in(chats: ChatStores, clock: ManualClock) -> None:
    for number, role in enumerate((None, *PersonRole)):
        user = f"u{number}"
        await chats.people.ask(request(user, name=f"name {number} \0"), RULES)
        clock.advance(timedelta(seconds=1))
        named = {"role": role} if role else {}
        found = await chats.people.redeem(HERE, f"hash of {user}", RULES, **named)
        assert found == Person(
            platform=HERE,
            user_id=user,
            role=role or PersonRole.MEMBER,
            name=f"name {number} \0",
            added_at=clock.now(),
        )
        assert await chats.people.person(HERE, user) == found
        assert await _asked(chats) == []
        assert await _guess(chats, f"hash of {user}") is None


async def test_a_code_gives_a_known_person_the_new_role(chats: ChatStores, clock: ManualClock) -> None:
    first = await chats.people.let_in(person(role=PersonRole.VIEWER, name="Ada"))
    clock.advance(timedelta(seconds=1))
    await chats.people.ask(request(name="Ada L."), RULES)
    found = await _guess(chats, "hash of u1")
    assert found == replace(first, role=PersonRole.MEMBER, name="Ada L.")


async def test_a_wrong_code_lets_nobody_in(chats: ChatStores, clock: ManualClock) -> None:
    rules = replace(RULES, most_wrong=9)
    stored = await chats.people.ask(request(), rules)
    clock.set(stored.expires_at - 1)
    for platform, code in ((HERE, "wrong"), (HERE, ""), ("other", stored.code_hash)):
        assert await chats.people.redeem(platform, code, rules) is None
    clock.set(stored.expires_at)
    assert await chats.people.redeem(HERE, stored.code_hash, rules) is None
    assert await chats.people.people() == ()


async def test_too_many_wrong_codes_lock_a_platform(chats: ChatStores, clock: ManualClock) -> None:
    waiting = await chats.people.ask(request(), RULES)
    await _locked(chats)
    locked_until = clock.now() + RULES.locked_ms
    for instant in (clock.now(), locked_until - 1):
        clock.set(instant)
        for code in ("wrong", waiting.code_hash):
            with refused(QueueFull):
                await _guess(chats, code)
        with refused(QueueFull):
            await chats.people.ask(request("u2"), RULES)
    assert await chats.people.requests() == (waiting,)
    clock.set(locked_until)
    assert await _guess(chats, waiting.code_hash) is not None
    await chats.people.ask(request("u2"), RULES)


async def test_a_lock_holds_on_its_platform_alone(chats: ChatStores) -> None:
    await _locked(chats)
    await chats.people.ask(request(platform="other"), RULES)
    for _ in range(RULES.most_wrong - 1):
        assert await _guess(chats, platform="other") is None
    assert await _guess(chats, "hash of u1", platform="other") is not None


async def test_a_right_code_begins_the_count_anew(chats: ChatStores) -> None:
    for number in range(3):
        await chats.people.ask(request(f"u{number}"), RULES)
        for _ in range(RULES.most_wrong - 1):
            assert await _guess(chats) is None
        assert await _guess(chats, f"hash of u{number}") is not None
    await _locked(chats)


@on_both
async def test_a_code_used_at_the_same_time_counts_once(chats: ChatStores) -> None:
    rules = replace(RULES, most_wrong=99)
    for name in map(str, range(ROUNDS)):
        await chats.people.ask(request(name), rules)
        calls = [chats.people.redeem(HERE, f"hash of {name}", rules) for _ in range(TOGETHER)]
        answers, _ = await at_once(calls)
        assert [one.user_id for one in answers if one is not None] == [name]
        assert len(answers) == TOGETHER
        await chats.people.forget_requests(HERE)


@on_both
async def test_wrong_codes_at_the_same_time_all_count(chats: ChatStores, clock: ManualClock) -> None:
    for _ in range(ROUNDS):
        answers, errors = await at_once([_guess(chats, str(n)) for n in range(TOGETHER)], QueueFull)
        assert answers == [None] * RULES.most_wrong
        assert len(errors) == TOGETHER - RULES.most_wrong
        clock.set(clock.now() + RULES.locked_ms)


@on_both
async def test_requests_at_the_same_time_are_no_more_than_may_wait(chats: ChatStores) -> None:
    calls = [chats.people.ask(request(f"u{n}"), RULES) for n in range(TOGETHER)]
    answers, errors = await at_once(calls, QueueFull)
    assert (len(answers), len(errors)) == (RULES.most_open, TOGETHER - RULES.most_open)
    assert sorted(await _asked(chats)) == sorted(one.user_id for one in answers)
    calls = [chats.people.ask(request(platform="x", code_hash=str(n)), RULES) for n in range(TOGETHER)]
    answers, _ = await at_once(calls, QueueFull)
    assert await chats.people.requests(platform="x") == tuple(answers)
    assert len(answers) == 1


async def test_all_requests_of_a_platform_are_forgotten(chats: ChatStores) -> None:
    for user in ("u1", "u2"):
        await chats.people.ask(request(user), RULES)
    other = await chats.people.ask(request(platform="other"), RULES)
    await _locked(chats)
    assert await chats.people.forget_requests(HERE) == 2
    assert await chats.people.requests() == (other,)
    assert await chats.people.forget_requests(HERE) == 0
    assert await chats.people.forget_requests("unknown") == 0
    await chats.people.ask(request("u1"), RULES)  # asked a moment ago, which is forgotten too
    for _ in range(RULES.most_wrong - 1):
        assert await _guess(chats) is None
    assert await chats.people.forget_requests(HERE) == 1
    await _locked(chats)
