"""What `postroom doctor --repair` mends: it is said before it is done, and nothing that was there is lost."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from postroom.contracts.errors import PostroomError


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """One thing that can be mended."""

    name: str
    """The part, as the examination names it."""
    does: str
    """What it will do, in a sentence."""
    perform: Callable[[], Awaitable[object]]


async def performed(repairs: Sequence[Repair], *, dry_run: bool) -> list[Mapping[str, object]]:
    """Perform repairs one after another, or none; one that fails is told and leaves the others their turn."""
    return [await _performed(one, dry_run=dry_run) for one in repairs]


async def _performed(repair: Repair, *, dry_run: bool) -> Mapping[str, object]:
    told = {"name": repair.name, "does": repair.does, "state": "planned", "detail": ""}
    if dry_run:
        return told
    try:
        await repair.perform()
    except PostroomError as error:
        return {**told, "state": "failed", "detail": error.message}
    return {**told, "state": "done"}
