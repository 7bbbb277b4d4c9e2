"""Promises of the people of chats: who was let in."""

from datetime import timedelta

from conformance.boxes import on_both
from conformance.promises.chat_given import TOGETHER, at_once, person
from postroom.contracts.chat import MAX_INBOUND
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.records import replace
from postroom.stores.chats.stores import ChatStores
from postroom.testing import ManualClock

HERE = "telegram"


async def test_a_person_is_let_in(chats: ChatStores, clock: ManualClock) -> None:
    for role in PersonRole:
        given = person(f"u: '{role}'", role=role, name="Änne 'x' \0" if role is PersonRole.OWNER else None)
        stored = await chats.people.let_in(given)
        assert stored == replace(given, added_at=clock.now())
        assert await chats.people.person(HERE, given.user_id) == stored
        assert await chats.people.person("other", given.user_id) is None


async def test_a_known_person_gets_a_new_role_and_name(chats: ChatStores, clock: ManualClock) -> None:
    first = await chats.people.let_in(person(name="Ada"))
    clock.advance(timedelta(seconds=1))
    given = person(role=PersonRole.OWNER, name=None, added_at=5)
    second = await chats.people.let_in(given)
    assert second == replace(given, added_at=first.added_at)
    assert await chats.people.people() == (second,)
    assert await chats.people.let_in(given) == second


async def test_a_person_is_shut_out(chats: ChatStores, clock: ManualClock) -> None:
    await chats.people.let_in(person())
    other = await chats.people.let_in(person(platform="other"))
    assert await chats.people.shut_out(HERE, "u1")
    assert not await chats.people.shut_out(HERE, "u1")
    assert not await chats.people.shut_out(HERE, "unknown")
    assert await chats.people.people() == (other,)
    assert await chats.people.person(HERE, "u1") is None
    clock.advance(timedelta(seconds=1))
    assert (await chats.people.let_in(person())).added_at == clock.now()


@on_both
async def test_people_come_by_platform_and_id(chats: ChatStores) -> None:
    named = [(platform, user) for platform in ("b", "a", "B") for user in ("2", "10", "é", "Z")]
    stored = {who: await chats.people.let_in(person(who[1], platform=who[0])) for who in named}
    ordered = sorted(named)
    everybody = await chats.people.people()
    assert [(one.platform, one.user_id) for one in everybody] == ordered
    assert [stored[one.platform, one.user_id] for one in everybody] == list(everybody)
    pages, after = [], ("", "")
    while found := await chats.people.people(after=after, limit=5):
        after = found[-1].platform, found[-1].user_id
        pages.append([(one.platform, one.user_id) for one in found])
    assert pages == [ordered[:5], ordered[5:10], ordered[10:]]
    found = await chats.people.people(platform="a", after=("a", "10"), limit=2)
    assert [(one.platform, one.user_id) for one in found] == [("a", "2"), ("a", "Z")]
    assert len(await chats.people.people(platform="a")) == 4
    assert await chats.people.people(platform="a", after=("b", "")) == ()
    assert await chats.people.people(platform="c") == ()
    for limit in (0, -1):
        assert await chats.people.people(limit=limit) == ()


async def test_no_listing_of_people_is_longer_than_the_most(chats: ChatStores) -> None:
    for number in range(MAX_INBOUND + 1):
        await chats.people.let_in(person(f"u{number:03}"))
    for found in (await chats.people.people(limit=10**9), await chats.people.people(platform=HERE)):
        assert [one.user_id for one in found] == [f"u{number:03}" for number in range(MAX_INBOUND)]


@on_both
async def test_letting_in_at_the_same_time_is_one_person(chats: ChatStores) -> None:
    answers, _ = await at_once([chats.people.let_in(person(name=str(n))) for n in range(TOGETHER)])
    (found,) = await chats.people.people()
    assert found in answers
    assert len(answers) == TOGETHER
