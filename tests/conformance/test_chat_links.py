"""Promises of linked chats: a code links two chats once, and wrong codes lock the chat that enters them."""

from datetime import timedelta

from conformance.boxes import on_both
from conformance.promises.chat_given import BLANK, HALF, ROUNDS, RULES, at_once
from conformance.promises.given import refused
from postroom.contracts.chat_links import LinkOutcome
from postroom.contracts.errors import InvalidRecord
from postroom.contracts.people import ChatAddress
from postroom.stores.chats.stores import ChatStores
from postroom.testing import ManualClock

HERE = ChatAddress(platform="telegram", chat_id="c: 'é'")
THERE = ChatAddress(platform="slack", chat_id="D1")
ELSEWHERE = ChatAddress(platform="matrix", chat_id="!m")


async def _entered(chats: ChatStores, address: ChatAddress, code: str = "code") -> LinkOutcome:
    outcome, _ = await chats.links.redeem(address, code, RULES, person=f"person of {address.name}")
    return outcome


async def _linked(chats: ChatStores, giver: ChatAddress, other: ChatAddress) -> str:
    """Link two chats, and return whose they are."""
    await chats.links.offer(giver, f"code of {giver.name}", RULES)
    assert await _entered(chats, other, f"code of {giver.name}") is LinkOutcome.LINKED
    found = await chats.links.find(giver)
    assert found.person is not None
    return found.person


async def _persons(chats: ChatStores, *addresses: ChatAddress) -> list[str | None]:
    found = [await chats.links.find(address) for address in addresses]
    return [None if one is None else one.person for one in found]


async def test_a_code_links_two_chats_once(chats: ChatStores) -> None:
    assert await chats.links.find(HERE) is None
    await chats.links.offer(HERE, "code", RULES)
    assert await _persons(chats, HERE) == [None]
    outcome, giver = await chats.links.redeem(THERE, "code", RULES, person="p1")
    assert (outcome, giver and giver.address) == (LinkOutcome.LINKED, HERE)
    assert await _persons(chats, HERE, THERE) == ["p1", "p1"]
    assert await _entered(chats, ELSEWHERE) is LinkOutcome.UNKNOWN
    found = await chats.links.list_chats("p1")
    assert [(one.address, one.shares) for one in found] == [(THERE, True), (HERE, True)]
    assert await chats.links.list_chats("nobody") == ()


async def test_a_code_ends(chats: ChatStores, clock: ManualClock) -> None:
    await chats.links.offer(HERE, "code", RULES)
    await chats.links.offer(HERE, "newer", RULES)
    assert await _entered(chats, THERE) is LinkOutcome.UNKNOWN
    clock.advance(timedelta(milliseconds=RULES.code_ms))
    assert await _entered(chats, THERE, "newer") is LinkOutcome.UNKNOWN


async def test_a_code_that_cannot_link_is_kept(chats: ChatStores) -> None:
    whose = await _linked(chats, HERE, THERE)
    await chats.links.offer(HERE, "code", RULES)
    for _ in range(RULES.most_wrong + 1):
        assert await _entered(chats, HERE) is LinkOutcome.OWN
        assert await _entered(chats, THERE) is LinkOutcome.TOGETHER
    other = ChatAddress(platform="web", chat_id="ben")
    await _linked(chats, other, ChatAddress(platform="email", chat_id="ben@x"))
    for _ in range(RULES.most_wrong + 1):
        assert await _entered(chats, other) is LinkOutcome.OTHER
    assert await _entered(chats, ELSEWHERE) is LinkOutcome.LINKED
    assert await _persons(chats, HERE, THERE, ELSEWHERE) == [whose] * 3


async def test_wrong_codes_lock_the_chat_in_which_they_are_entered(
    chats: ChatStores, clock: ManualClock
) -> None:
    await chats.links.offer(HERE, "code", RULES)
    for _ in range(RULES.most_wrong):
        assert await _entered(chats, THERE, "wrong") is LinkOutcome.UNKNOWN
    assert await _entered(chats, THERE) is LinkOutcome.LOCKED
    clock.advance(timedelta(milliseconds=RULES.locked_ms - 1))
    assert await _entered(chats, THERE) is LinkOutcome.LOCKED
    clock.advance(timedelta(milliseconds=1))
    assert await _entered(chats, THERE) is LinkOutcome.LINKED
    for _ in range(RULES.most_wrong - 1):
        assert await _entered(chats, THERE, "wrong") is LinkOutcome.UNKNOWN
    await chats.links.offer(ELSEWHERE, "code", RULES)
    assert await _entered(chats, THERE) is LinkOutcome.LINKED
    for _ in range(RULES.most_wrong):
        assert await _entered(chats, THERE, "wrong") is LinkOutcome.UNKNOWN


async def test_a_lock_is_not_escaped_by_leaving(chats: ChatStores) -> None:
    await _linked(chats, HERE, THERE)
    for _ in range(RULES.most_wrong):
        await _entered(chats, THERE, "wrong")
    assert await chats.links.leave(THERE) is not None
    await chats.links.offer(THERE, "mine", RULES)
    assert await _entered(chats, THERE, "wrong") is LinkOutcome.LOCKED


async def test_a_chat_leaves_once(chats: ChatStores) -> None:
    whose = await _linked(chats, HERE, THERE)
    await _linked(chats, HERE, ELSEWHERE)
    await chats.links.offer(HERE, "code", RULES)
    left = await chats.links.leave(HERE)
    assert (left.person, left.address) == (whose, HERE)
    assert await chats.links.leave(HERE) is None
    assert await _persons(chats, HERE, THERE, ELSEWHERE) == [None, whose, whose]
    other = ChatAddress(platform="web", chat_id="ben")
    assert await _entered(chats, other) is LinkOutcome.UNKNOWN
    assert not await chats.links.share(HERE, shares=True)


@on_both
async def test_of_chats_that_enter_a_code_at_the_same_time_one_is_linked(chats: ChatStores) -> None:
    for number in range(ROUNDS):
        await chats.links.offer(HERE, f"code {number}", RULES)
        asking = [ChatAddress(platform=f"p{number}", chat_id=str(one)) for one in range(8)]
        outcomes, _ = await at_once([_entered(chats, one, f"code {number}") for one in asking])
        assert sorted(outcomes) == [LinkOutcome.LINKED, *[LinkOutcome.UNKNOWN] * 7]


async def test_a_code_without_a_chat_is_refused(chats: ChatStores) -> None:
    for text in (*BLANK, HALF):
        blank = ChatAddress(platform="telegram", chat_id=text)
        for address, code in ((blank, "code"), (HERE, text)):
            with refused(InvalidRecord):
                await chats.links.offer(address, code, RULES)
            with refused(InvalidRecord):
                await chats.links.redeem(address, code, RULES, person="p1")
    assert await chats.links.find(HERE) is None
