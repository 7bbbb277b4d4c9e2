"""What is to be done in the world when a run has ended or stands still: stored with it, performed later."""

from collections.abc import Sequence
from typing import Protocol

from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.runs import RunRecord


class RunEffects(Protocol):
    """Decides what a run's end causes."""

    def of(self, run: RunRecord) -> Sequence[OutboxDraft]:
        """Return the effects of a run that is done, or waits, as it stands now.

        Pure, and the same for the same run: after a crash it is asked again. Each effect has a dedupe key,
        by which it is stored once.
        """
        ...

    def stored(self, run: RunRecord) -> None:
        """Take note that the effects of a run are stored. A hint: it is lost when the process dies."""
        ...
