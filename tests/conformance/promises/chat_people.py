"""Promises of the people of chats: who was let in."""

from datetime import timedelta

from conformance.promises.chat_given import BLANK, HALF, TOGETHER, ChatPromise, at_once, person
from conformance.promises.given import refused
from postroom.contracts.chat import MAX_INBOUND
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.errors import InvalidRecord
from postroom.contracts.records import replace
from postroom.stores.chats.stores import ChatStores
from postroom.testing.clock import ManualClock

HERE = "telegram"


async def a_person_is_let_in(stores: ChatStores, clock: ManualClock) -> None:
    """Now, with a role and a name, or none; on this platform alone."""
    for role in PersonRole:
        given = person(f"u: '{role}'", role=role, name="Änne 'x' \0" if role is PersonRole.OWNER else None)
        stored = await stores.people.let_in(given)
        assert stored == replace(given, added_at=clock.now())
        assert await stores.people.person(HERE, given.user_id) == stored
        assert await stores.people.person("other", given.user_id) is None


async def a_known_person_gets_a_new_role_and_name(stores: ChatStores, clock: ManualClock) -> None:
    """When it was let in first stays."""
    first = await stores.people.let_in(person(name="Ada"))
    clock.advance(timedelta(seconds=1))
    given = person(role=PersonRole.OWNER, name=None, added_at=5)
    second = await stores.people.let_in(given)
    assert second == replace(given, added_at=first.added_at)
    assert await stores.people.people() == (second,)
    assert await stores.people.let_in(given) == second


async def a_person_without_an_id_is_refused(stores: ChatStores, clock: ManualClock) -> None:
    """Or without a platform, or with half a character; nobody is let in."""
    for text in (*BLANK, HALF):
        for given in (person(text), person(platform=text)):
            with refused(InvalidRecord):
                await stores.people.let_in(given)
    with refused(InvalidRecord):
        await stores.people.let_in(person(name=HALF))
    assert await stores.people.people() == ()


async def a_person_is_shut_out(stores: ChatStores, clock: ManualClock) -> None:
    """Once, and nobody else; let in again, it is somebody new."""
    await stores.people.let_in(person())
    other = await stores.people.let_in(person(platform="other"))
    assert await stores.people.shut_out(HERE, "u1")
    assert not await stores.people.shut_out(HERE, "u1")
    assert not await stores.people.shut_out(HERE, "unknown")
    assert await stores.people.people() == (other,)
    assert await stores.people.person(HERE, "u1") is None
    clock.advance(timedelta(seconds=1))
    assert (await stores.people.let_in(person())).added_at == clock.now()


async def people_come_by_platform_and_id(stores: ChatStores, clock: ManualClock) -> None:
    """In the order of their characters' numbers, of one platform where it is asked, page by page."""
    named = [(platform, user) for platform in ("b", "a", "B") for user in ("2", "10", "é", "Z")]
    stored = {who: await stores.people.let_in(person(who[1], platform=who[0])) for who in named}
    ordered = sorted(named)
    everybody = await stores.people.people()
    assert [(one.platform, one.user_id) for one in everybody] == ordered
    assert [stored[one.platform, one.user_id] for one in everybody] == list(everybody)
    pages, after = [], ("", "")
    while found := await stores.people.people(after=after, limit=5):
        after = found[-1].platform, found[-1].user_id
        pages.append([(one.platform, one.user_id) for one in found])
    assert pages == [ordered[:5], ordered[5:10], ordered[10:]]
    found = await stores.people.people(platform="a", after=("a", "10"), limit=2)
    assert [(one.platform, one.user_id) for one in found] == [("a", "2"), ("a", "Z")]
    assert len(await stores.people.people(platform="a")) == 4
    assert await stores.people.people(platform="a", after=("b", "")) == ()
    assert await stores.people.people(platform="c") == ()
    for limit in (0, -1):
        assert await stores.people.people(limit=limit) == ()


async def no_listing_of_people_is_longer_than_the_most(stores: ChatStores, clock: ManualClock) -> None:
    """Whatever is asked for."""
    for number in range(MAX_INBOUND + 1):
        await stores.people.let_in(person(f"u{number:03}"))
    for found in (await stores.people.people(limit=10**9), await stores.people.people(platform=HERE)):
        assert [one.user_id for one in found] == [f"u{number:03}" for number in range(MAX_INBOUND)]


async def letting_in_at_the_same_time_is_one_person(stores: ChatStores, clock: ManualClock) -> None:
    """The name is one of those given."""
    answers, _ = await at_once([stores.people.let_in(person(name=str(n))) for n in range(TOGETHER)])
    (found,) = await stores.people.people()
    assert found in answers
    assert len(answers) == TOGETHER


PROMISES: tuple[ChatPromise, ...] = (
    a_person_is_let_in,
    a_known_person_gets_a_new_role_and_name,
    a_person_without_an_id_is_refused,
    a_person_is_shut_out,
    people_come_by_platform_and_id,
    no_listing_of_people_is_longer_than_the_most,
    letting_in_at_the_same_time_is_one_person,
)
