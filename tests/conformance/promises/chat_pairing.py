"""Promises of the people of chats: who asks to be let in, and how often a code may be guessed."""

from datetime import timedelta

from conformance.promises.chat_given import (
    BLANK,
    HALF,
    ROUNDS,
    RULES,
    TOGETHER,
    ChatPromise,
    at_once,
    person,
    request,
)
from conformance.promises.given import refused
from postroom.contracts.chat import MAX_INBOUND
from postroom.contracts.chat_people import Person, PersonRole
from postroom.contracts.errors import InvalidRecord, QueueFull
from postroom.contracts.records import replace
from postroom.stores.chats.stores import ChatStores
from postroom.testing.clock import ManualClock

HERE = "telegram"


async def _asked(stores: ChatStores, *, platform: str | None = HERE) -> list[str]:
    return [one.user_id for one in await stores.people.requests(platform=platform)]


async def _guess(stores: ChatStores, code_hash: str = "wrong", *, platform: str = HERE) -> Person | None:
    return await stores.people.redeem(platform, code_hash, RULES)


async def _locked(stores: ChatStores) -> None:
    """Guess wrong as often as is allowed."""
    for _ in range(RULES.most_wrong):
        assert await _guess(stores) is None


async def a_request_is_kept_until_its_code_ends(stores: ChatStores, clock: ManualClock) -> None:
    """Its instants are set by the store; at the last of them it is open no more."""
    given = request(name="Ada \0", asked_at=1, expires_at=2)
    stored = await stores.people.ask(given, RULES)
    now = clock.now()
    assert stored == replace(given, asked_at=now, expires_at=now + RULES.code_ms)
    clock.set(stored.expires_at - 1)
    assert await stores.people.requests() == (stored,)
    clock.set(stored.expires_at)
    assert await stores.people.requests() == ()
    assert await stores.people.person(HERE, given.user_id) is None


async def a_request_without_a_name_is_refused(stores: ChatStores, clock: ManualClock) -> None:
    """Platform, id and hash; or with half a character. Nothing is stored."""
    for text in (*BLANK, HALF):
        for given in (request(text), request(platform=text), request(code_hash=text)):
            with refused(InvalidRecord):
                await stores.people.ask(given, RULES)
    with refused(InvalidRecord):
        await stores.people.ask(request(name=HALF), RULES)
    assert await stores.people.requests() == ()


async def who_asks_again_too_soon_is_refused(stores: ChatStores, clock: ManualClock) -> None:
    """Until the very instant from which they may; the former request stays as it was until then."""
    stored = await stores.people.ask(request(), RULES)
    clock.set(stored.asked_at + RULES.ask_again_ms - 1)
    with refused(QueueFull):
        await stores.people.ask(request(code_hash="new"), RULES)
    assert await stores.people.requests() == (stored,)
    clock.set(stored.asked_at + RULES.ask_again_ms)
    again = await stores.people.ask(request(code_hash="new"), RULES)
    assert await stores.people.requests() == (again,)
    assert again.asked_at == clock.now()


async def a_new_request_takes_the_place_of_a_former_one(stores: ChatStores, clock: ManualClock) -> None:
    """One that has ended, and one that has not: there is one a person, and the former code is wrong then."""
    for number, wait in enumerate((RULES.ask_again_ms, RULES.code_ms, 9 * RULES.code_ms)):
        await stores.people.ask(request(code_hash=f"hash {number}"), RULES)
        clock.set(clock.now() + wait)
    stored = await stores.people.ask(request(code_hash="last"), RULES)
    assert await stores.people.requests() == (stored,)
    assert await _guess(stores, "hash 0") is None
    assert await _guess(stores, "last") is not None


async def who_asked_too_soon_is_remembered_when_the_code_has_ended(
    stores: ChatStores, clock: ManualClock
) -> None:
    """Where codes end sooner than one may ask again; others who ask meanwhile change nothing of it."""
    rules = replace(RULES, code_ms=5_000)
    stored = await stores.people.ask(request(), rules)
    clock.set(stored.expires_at + 1)
    await stores.people.ask(request("u2"), rules)
    with refused(QueueFull):
        await stores.people.ask(request(), rules)
    clock.set(stored.asked_at + rules.ask_again_ms)
    await stores.people.ask(request(), rules)
    assert await _asked(stores) == ["u2", "u1"]


async def no_more_wait_on_a_platform_than_may(stores: ChatStores, clock: ManualClock) -> None:
    """Who is refused stores nothing; another platform, an ended request and one's own are no hindrance."""
    for number in range(RULES.most_open):
        await stores.people.ask(request(f"u{number}"), RULES)
        clock.advance(timedelta(milliseconds=1))
    with refused(QueueFull):
        await stores.people.ask(request("late"), RULES)
    assert await _asked(stores) == ["u0", "u1", "u2"]
    await stores.people.ask(request("late", platform="other"), RULES)
    clock.set(clock.now() + RULES.ask_again_ms)
    await stores.people.ask(request("u1"), RULES)
    assert await _asked(stores) == ["u0", "u2", "u1"]
    clock.set(clock.now() + RULES.code_ms - RULES.ask_again_ms - RULES.most_open)
    await stores.people.ask(request("late"), RULES)
    assert await _asked(stores) == ["u2", "u1", "late"]


async def open_requests_come_oldest_first(stores: ChatStores, clock: ManualClock) -> None:
    """Of one platform where it is asked."""
    for platform, user_id in (("b", "u3"), ("a", "u2"), ("b", "u1")):
        await stores.people.ask(request(user_id, platform=platform), RULES)
        clock.advance(timedelta(seconds=1))
    assert await _asked(stores, platform=None) == ["u3", "u2", "u1"]
    assert await _asked(stores, platform="b") == ["u3", "u1"]
    assert await _asked(stores, platform="c") == []


async def no_listing_of_requests_is_longer_than_the_most(stores: ChatStores, clock: ManualClock) -> None:
    """However many wait on however many platforms."""
    rules = replace(RULES, most_open=MAX_INBOUND + 1)
    for number in range(MAX_INBOUND + 1):
        await stores.people.ask(request(f"u{number}", platform=f"p{number % 2}"), rules)
        clock.advance(timedelta(milliseconds=1))
    assert await _asked(stores, platform=None) == [f"u{number}" for number in range(MAX_INBOUND)]


async def the_right_code_lets_a_person_in(stores: ChatStores, clock: ManualClock) -> None:
    """As a member, or with the role that is named, under the name they asked with; once."""
    for number, role in enumerate((None, *PersonRole)):
        user = f"u{number}"
        await stores.people.ask(request(user, name=f"name {number} \0"), RULES)
        clock.advance(timedelta(seconds=1))
        named = {"role": role} if role else {}
        found = await stores.people.redeem(HERE, f"hash of {user}", RULES, **named)
        assert found == Person(
            platform=HERE,
            user_id=user,
            role=role or PersonRole.MEMBER,
            name=f"name {number} \0",
            added_at=clock.now(),
        )
        assert await stores.people.person(HERE, user) == found
        assert await _asked(stores) == []
        assert await _guess(stores, f"hash of {user}") is None


async def a_code_lets_in_the_one_who_asked(stores: ChatStores, clock: ManualClock) -> None:
    """Others go on waiting."""
    for user in ("u1", "u2", "u3"):
        await stores.people.ask(request(user), RULES)
        clock.advance(timedelta(seconds=1))
    found = await _guess(stores, "hash of u2")
    assert found is not None
    assert found.user_id == "u2"
    assert await _asked(stores) == ["u1", "u3"]
    assert [one.user_id for one in await stores.people.people()] == ["u2"]


async def a_code_gives_a_known_person_the_new_role(stores: ChatStores, clock: ManualClock) -> None:
    """As letting in does; when it was let in first stays."""
    first = await stores.people.let_in(person(role=PersonRole.VIEWER, name="Ada"))
    clock.advance(timedelta(seconds=1))
    await stores.people.ask(request(name="Ada L."), RULES)
    found = await _guess(stores, "hash of u1")
    assert found == replace(first, role=PersonRole.MEMBER, name="Ada L.")


async def a_wrong_code_lets_nobody_in(stores: ChatStores, clock: ManualClock) -> None:
    """Nor does one of another platform, or one that ended at that instant."""
    rules = replace(RULES, most_wrong=9)
    stored = await stores.people.ask(request(), rules)
    clock.set(stored.expires_at - 1)
    for platform, code in ((HERE, "wrong"), (HERE, ""), ("other", stored.code_hash)):
        assert await stores.people.redeem(platform, code, rules) is None
    clock.set(stored.expires_at)
    assert await stores.people.redeem(HERE, stored.code_hash, rules) is None
    assert await stores.people.people() == ()


async def too_many_wrong_codes_lock_a_platform(stores: ChatStores, clock: ManualClock) -> None:
    """From the last that is allowed until that instant: for the right code, and for those who ask."""
    waiting = await stores.people.ask(request(), RULES)
    await _locked(stores)
    locked_until = clock.now() + RULES.locked_ms
    for instant in (clock.now(), locked_until - 1):
        clock.set(instant)
        for code in ("wrong", waiting.code_hash):
            with refused(QueueFull):
                await _guess(stores, code)
        with refused(QueueFull):
            await stores.people.ask(request("u2"), RULES)
    assert await stores.people.requests() == (waiting,)
    clock.set(locked_until)
    assert await _guess(stores, waiting.code_hash) is not None
    await stores.people.ask(request("u2"), RULES)


async def a_lock_holds_on_its_platform_alone(stores: ChatStores, clock: ManualClock) -> None:
    """As do the wrong codes that lead to it."""
    await _locked(stores)
    await stores.people.ask(request(platform="other"), RULES)
    for _ in range(RULES.most_wrong - 1):
        assert await _guess(stores, platform="other") is None
    assert await _guess(stores, "hash of u1", platform="other") is not None


async def after_a_lock_the_count_begins_anew(stores: ChatStores, clock: ManualClock) -> None:
    """As many wrong codes are allowed as before."""
    for _ in range(3):
        await _locked(stores)
        with refused(QueueFull):
            await _guess(stores)
        clock.set(clock.now() + RULES.locked_ms)


async def a_right_code_begins_the_count_anew(stores: ChatStores, clock: ManualClock) -> None:
    """Also when it was the last chance."""
    for number in range(3):
        await stores.people.ask(request(f"u{number}"), RULES)
        for _ in range(RULES.most_wrong - 1):
            assert await _guess(stores) is None
        assert await _guess(stores, f"hash of u{number}") is not None
    await _locked(stores)


async def a_code_used_at_the_same_time_counts_once(stores: ChatStores, clock: ManualClock) -> None:
    """One caller lets the person in; for the others it is a wrong one."""
    rules = replace(RULES, most_wrong=99)
    for name in map(str, range(ROUNDS)):
        await stores.people.ask(request(name), rules)
        calls = [stores.people.redeem(HERE, f"hash of {name}", rules) for _ in range(TOGETHER)]
        answers, _ = await at_once(calls)
        assert [one.user_id for one in answers if one is not None] == [name]
        assert len(answers) == TOGETHER
        await stores.people.forget_requests(HERE)


async def wrong_codes_at_the_same_time_all_count(stores: ChatStores, clock: ManualClock) -> None:
    """No more are looked at than are allowed."""
    for _ in range(ROUNDS):
        answers, errors = await at_once([_guess(stores, str(n)) for n in range(TOGETHER)], QueueFull)
        assert answers == [None] * RULES.most_wrong
        assert len(errors) == TOGETHER - RULES.most_wrong
        clock.set(clock.now() + RULES.locked_ms)


async def requests_at_the_same_time_are_no_more_than_may_wait(stores: ChatStores, clock: ManualClock) -> None:
    """Of many people; and of one person there is one."""
    calls = [stores.people.ask(request(f"u{n}"), RULES) for n in range(TOGETHER)]
    answers, errors = await at_once(calls, QueueFull)
    assert (len(answers), len(errors)) == (RULES.most_open, TOGETHER - RULES.most_open)
    assert sorted(await _asked(stores)) == sorted(one.user_id for one in answers)
    calls = [stores.people.ask(request(platform="x", code_hash=str(n)), RULES) for n in range(TOGETHER)]
    answers, _ = await at_once(calls, QueueFull)
    assert await stores.people.requests(platform="x") == tuple(answers)
    assert len(answers) == 1


async def all_requests_of_a_platform_are_forgotten(stores: ChatStores, clock: ManualClock) -> None:
    """With the failures and the lock; those of others stay."""
    for user in ("u1", "u2"):
        await stores.people.ask(request(user), RULES)
    other = await stores.people.ask(request(platform="other"), RULES)
    await _locked(stores)
    assert await stores.people.forget_requests(HERE) == 2
    assert await stores.people.requests() == (other,)
    assert await stores.people.forget_requests(HERE) == 0
    assert await stores.people.forget_requests("unknown") == 0
    await stores.people.ask(request("u1"), RULES)  # asked a moment ago, which is forgotten too
    for _ in range(RULES.most_wrong - 1):
        assert await _guess(stores) is None
    assert await stores.people.forget_requests(HERE) == 1
    await _locked(stores)


async def an_instant_of_a_request_may_be_given(stores: ChatStores, clock: ManualClock) -> None:
    """Then no clock is looked at."""
    people = stores.people
    assert (await people.let_in(person("known"), now=5)).added_at == 5
    stored = await people.ask(request(), RULES, now=7)
    assert (stored.asked_at, stored.expires_at) == (7, 7 + RULES.code_ms)
    assert await people.requests(now=6 + RULES.code_ms) == (stored,)
    assert await people.requests(now=7 + RULES.code_ms) == ()
    for _ in range(RULES.most_wrong):
        assert await people.redeem(HERE, "wrong", RULES, now=8) is None
    with refused(QueueFull):
        await people.redeem(HERE, stored.code_hash, RULES, now=7 + RULES.locked_ms)
    found = await people.redeem(HERE, stored.code_hash, RULES, now=8 + RULES.locked_ms)
    assert found is not None
    assert found.added_at == 8 + RULES.locked_ms


PROMISES: tuple[ChatPromise, ...] = (
    a_request_is_kept_until_its_code_ends,
    a_request_without_a_name_is_refused,
    who_asks_again_too_soon_is_refused,
    a_new_request_takes_the_place_of_a_former_one,
    who_asked_too_soon_is_remembered_when_the_code_has_ended,
    no_more_wait_on_a_platform_than_may,
    open_requests_come_oldest_first,
    no_listing_of_requests_is_longer_than_the_most,
    the_right_code_lets_a_person_in,
    a_code_lets_in_the_one_who_asked,
    a_code_gives_a_known_person_the_new_role,
    a_wrong_code_lets_nobody_in,
    too_many_wrong_codes_lock_a_platform,
    a_lock_holds_on_its_platform_alone,
    after_a_lock_the_count_begins_anew,
    a_right_code_begins_the_count_anew,
    a_code_used_at_the_same_time_counts_once,
    wrong_codes_at_the_same_time_all_count,
    requests_at_the_same_time_are_no_more_than_may_wait,
    all_requests_of_a_platform_are_forgotten,
    an_instant_of_a_request_may_be_given,
)
