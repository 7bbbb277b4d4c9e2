"""The page that finds projects, agents, messages, runs and acts over all projects."""

import re

from unit.test_web_work import room, stores
from work_room import HTTP, SLUG, WorkRoom

__all__ = ["room", "stores"]


def found(page: str) -> list[tuple[str, str]]:
    """Return the kind and the address of each result."""
    return [(kind, address) for address, kind in re.findall(r'<a href="([^"]+)" data-find="([a-z]+)"', page)]


async def test_projects_agents_messages_runs_and_acts_are_found_by_words(room: WorkRoom) -> None:
    number = await room.send("Ada", "Bo", subject="Paint the fence")
    await room.turn()
    [work] = await room.operator.works(SLUG)
    browser = room.browser()

    async def ask(words: str, **more: str) -> list[tuple[str, str]]:
        return found((await browser.get(f"{HTTP}/find", params={"q": words, **more})).text)

    assert ("page", "/") in await ask("")
    assert ("project", f"/p/{SLUG}") in await ask("shop")
    assert ("agent", f"/p/{SLUG}/agents/Bo") in await ask("bo")
    assert ("action", f"/p/{SLUG}/write") in await ask("write shop")
    assert ("message", f"/p/{SLUG}/m/{number}") in await ask("pai", part="results")
    assert ("run", f"/p/{SLUG}/runs/{work.run_id}") in await ask(work.run_id[:8], part="results")
    assert ("run", f"/p/{SLUG}/runs/{work.run_id}") in await ask("fence")
    assert await ask("nothing-like-it") == []
    for odd in ('"', "AND", "*", "x" * 5_000, "\0", "<b>"):
        page = await browser.get(f"{HTTP}/find", params={"q": odd})
        assert page.status_code == 200, odd
        assert "<b>*" not in page.text
