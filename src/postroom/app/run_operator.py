"""Runs as the operator sees them: those that were given up, and why."""

from collections.abc import Mapping, Sequence
from typing import Final

from postroom.app.house_runs import HouseRuns
from postroom.contracts.clock import iso
from postroom.contracts.dispatch import RunDispatch

_MOST: Final = 500


class RunOperator:
    """Answers the operator's route to runs."""

    def __init__(self, runs: HouseRuns) -> None:
        self._runs = runs

    async def dead(self) -> Sequence[Mapping[str, object]]:
        """Return what was given up, oldest first, up to 500."""
        found: list[RunDispatch] = []
        while len(found) < _MOST and (
            page := await self._runs.mailbox.dead_letters(after=found[-1] if found else None)
        ):
            found += page
        return [_shown(one) for one in found[:_MOST]]


def _shown(dispatch: RunDispatch) -> dict[str, object]:
    return {
        "dispatch_id": dispatch.dispatch_id,
        "run_id": dispatch.run_id,
        "thread_id": dispatch.thread_id,
        "attempts": dispatch.attempt_count,
        "since": iso(dispatch.updated_at),
        "error": dispatch.last_error,
    }
