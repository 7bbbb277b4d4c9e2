"""Promises of linked chats: a code links two chats once, and wrong codes lock the chat that enters them."""

from datetime import timedelta

from conformance.promises.chat_given import BLANK, HALF, ROUNDS, RULES, ChatPromise, at_once
from conformance.promises.given import refused
from postroom.contracts.chat_links import LinkedChat, LinkOutcome
from postroom.contracts.errors import InvalidRecord
from postroom.contracts.people import ChatAddress
from postroom.stores.chats.stores import ChatStores
from postroom.testing.clock import ManualClock

HERE = ChatAddress(platform="telegram", chat_id="c: 'é'")
THERE = ChatAddress(platform="slack", chat_id="D1")
ELSEWHERE = ChatAddress(platform="matrix", chat_id="!m")


async def _entered(stores: ChatStores, address: ChatAddress, code: str = "code") -> LinkOutcome:
    outcome, _ = await stores.links.redeem(address, code, RULES, person=f"person of {address.name}")
    return outcome


async def _linked(stores: ChatStores, giver: ChatAddress, other: ChatAddress) -> str:
    """Link two chats, and return whose they are."""
    await stores.links.offer(giver, f"code of {giver.name}", RULES)
    assert await _entered(stores, other, f"code of {giver.name}") is LinkOutcome.LINKED
    found = await stores.links.find(giver)
    assert found is not None
    assert found.person is not None
    return found.person


async def _persons(stores: ChatStores, *addresses: ChatAddress) -> list[str | None]:
    found = [await stores.links.find(address) for address in addresses]
    return [None if one is None else one.person for one in found]


async def a_code_links_two_chats_once(stores: ChatStores, clock: ManualClock) -> None:
    """Both share a conversation then; a third that enters the used code is linked with neither."""
    assert await stores.links.find(HERE) is None
    await stores.links.offer(HERE, "code", RULES)
    assert await _persons(stores, HERE) == [None]
    outcome, giver = await stores.links.redeem(THERE, "code", RULES, person="p1")
    assert (outcome, giver and giver.address) == (LinkOutcome.LINKED, HERE)
    assert await _persons(stores, HERE, THERE) == ["p1", "p1"]
    assert await _entered(stores, ELSEWHERE) is LinkOutcome.UNKNOWN
    chats = await stores.links.chats_of("p1")
    assert [(one.address, one.shares) for one in chats] == [(THERE, True), (HERE, True)]
    assert await stores.links.chats_of("nobody") == ()


async def a_code_ends(stores: ChatStores, clock: ManualClock) -> None:
    """At its instant, and when its chat is given another."""
    await stores.links.offer(HERE, "code", RULES)
    await stores.links.offer(HERE, "newer", RULES)
    assert await _entered(stores, THERE) is LinkOutcome.UNKNOWN
    clock.advance(timedelta(milliseconds=RULES.code_ms))
    assert await _entered(stores, THERE, "newer") is LinkOutcome.UNKNOWN


async def a_code_that_cannot_link_is_kept(stores: ChatStores, clock: ManualClock) -> None:
    """Entered where it was given, or in a chat of the same or another person: nothing is counted."""
    whose = await _linked(stores, HERE, THERE)
    await stores.links.offer(HERE, "code", RULES)
    for _ in range(RULES.most_wrong + 1):
        assert await _entered(stores, HERE) is LinkOutcome.OWN
        assert await _entered(stores, THERE) is LinkOutcome.TOGETHER
    other = ChatAddress(platform="web", chat_id="ben")
    await _linked(stores, other, ChatAddress(platform="email", chat_id="ben@x"))
    for _ in range(RULES.most_wrong + 1):
        assert await _entered(stores, other) is LinkOutcome.OTHER
    assert await _entered(stores, ELSEWHERE) is LinkOutcome.LINKED
    assert await _persons(stores, HERE, THERE, ELSEWHERE) == [whose] * 3


async def a_chat_that_is_linked_brings_the_other_to_its_person(
    stores: ChatStores, clock: ManualClock
) -> None:
    """Whichever of the two gave the code."""
    whose = await _linked(stores, HERE, THERE)
    assert await _linked(stores, ELSEWHERE, THERE) == whose
    assert len(await stores.links.chats_of(whose)) == 3


async def wrong_codes_lock_the_chat_in_which_they_are_entered(stores: ChatStores, clock: ManualClock) -> None:
    """And no other; while it is locked a right code is not looked at. A right code begins the count anew."""
    await stores.links.offer(HERE, "code", RULES)
    for _ in range(RULES.most_wrong):
        assert await _entered(stores, THERE, "wrong") is LinkOutcome.UNKNOWN
    assert await _entered(stores, THERE) is LinkOutcome.LOCKED
    clock.advance(timedelta(milliseconds=RULES.locked_ms - 1))
    assert await _entered(stores, THERE) is LinkOutcome.LOCKED
    clock.advance(timedelta(milliseconds=1))
    assert await _entered(stores, THERE) is LinkOutcome.LINKED
    for _ in range(RULES.most_wrong - 1):
        assert await _entered(stores, THERE, "wrong") is LinkOutcome.UNKNOWN
    await stores.links.offer(ELSEWHERE, "code", RULES)
    assert await _entered(stores, THERE) is LinkOutcome.LINKED
    for _ in range(RULES.most_wrong):
        assert await _entered(stores, THERE, "wrong") is LinkOutcome.UNKNOWN


async def a_lock_is_not_escaped_by_leaving(stores: ChatStores, clock: ManualClock) -> None:
    """Nor by asking for a code."""
    await _linked(stores, HERE, THERE)
    for _ in range(RULES.most_wrong):
        await _entered(stores, THERE, "wrong")
    assert await stores.links.leave(THERE) is not None
    await stores.links.offer(THERE, "mine", RULES)
    assert await _entered(stores, THERE, "wrong") is LinkOutcome.LOCKED


async def a_chat_leaves_once(stores: ChatStores, clock: ManualClock) -> None:
    """Its code goes with it; the others stay together."""
    whose = await _linked(stores, HERE, THERE)
    await _linked(stores, HERE, ELSEWHERE)
    await stores.links.offer(HERE, "code", RULES)
    left = await stores.links.leave(HERE)
    assert left is not None
    assert (left.person, left.address) == (whose, HERE)
    assert await stores.links.leave(HERE) is None
    assert await _persons(stores, HERE, THERE, ELSEWHERE) == [None, whose, whose]
    other = ChatAddress(platform="web", chat_id="ben")
    assert await _entered(stores, other) is LinkOutcome.UNKNOWN
    assert not await stores.links.share(HERE, shares=True)


async def a_linked_chat_has_a_conversation_of_its_own_when_it_likes(
    stores: ChatStores, clock: ManualClock
) -> None:
    """And stays its person's."""
    whose = await _linked(stores, HERE, THERE)
    for shares in (False, False, True):
        assert await stores.links.share(THERE, shares=shares)
        assert await stores.links.find(THERE) == LinkedChat(
            platform=THERE.platform, chat_id=THERE.chat_id, person=whose, shares=shares
        )
    assert not await stores.links.share(ELSEWHERE, shares=False)
    assert await stores.links.find(ELSEWHERE) is None


async def of_chats_that_enter_a_code_at_the_same_time_one_is_linked(
    stores: ChatStores, clock: ManualClock
) -> None:
    """The others are told that the code is none."""
    for number in range(ROUNDS):
        await stores.links.offer(HERE, f"code {number}", RULES)
        chats = [ChatAddress(platform=f"p{number}", chat_id=str(one)) for one in range(8)]
        outcomes, _ = await at_once([_entered(stores, one, f"code {number}") for one in chats])
        assert sorted(outcomes) == [LinkOutcome.LINKED, *[LinkOutcome.UNKNOWN] * 7]


async def a_code_without_a_chat_is_refused(stores: ChatStores, clock: ManualClock) -> None:
    """Or a chat without a code, or with half a character; nothing is kept."""
    for text in (*BLANK, HALF):
        blank = ChatAddress(platform="telegram", chat_id=text)
        for address, code in ((blank, "code"), (HERE, text)):
            with refused(InvalidRecord):
                await stores.links.offer(address, code, RULES)
            with refused(InvalidRecord):
                await stores.links.redeem(address, code, RULES, person="p1")
    assert await stores.links.find(HERE) is None


async def an_instant_of_a_code_may_be_given(stores: ChatStores, clock: ManualClock) -> None:
    """In the place of the clock's."""
    await stores.links.offer(HERE, "code", RULES, now=5)
    late, _ = await stores.links.redeem(THERE, "code", RULES, person="p1", now=5 + RULES.code_ms)
    right, _ = await stores.links.redeem(THERE, "code", RULES, person="p1", now=4 + RULES.code_ms)
    assert (late, right) == (LinkOutcome.UNKNOWN, LinkOutcome.LINKED)


PROMISES: tuple[ChatPromise, ...] = (
    a_code_links_two_chats_once,
    a_code_ends,
    a_code_that_cannot_link_is_kept,
    a_chat_that_is_linked_brings_the_other_to_its_person,
    wrong_codes_lock_the_chat_in_which_they_are_entered,
    a_lock_is_not_escaped_by_leaving,
    a_chat_leaves_once,
    a_linked_chat_has_a_conversation_of_its_own_when_it_likes,
    of_chats_that_enter_a_code_at_the_same_time_one_is_linked,
    a_code_without_a_chat_is_refused,
    an_instant_of_a_code_may_be_given,
)
