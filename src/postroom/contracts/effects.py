"""What follows when a run has ended or stands still: written with it, or stored with it for later."""

from collections.abc import Sequence
from typing import Protocol

from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.runs import RunRecord
from postroom.contracts.transactions import Transaction


class RunEffects(Protocol):
    """Decides what a run's end causes."""

    def write(self, tx: Transaction, run: RunRecord) -> None:
        """Write what belongs to the end of a run that is done, or waits, in the change that stores the end.

        It is called behind the commit of the run, under the lock of its thread, and may be called again for
        the same run: what is written already is left as it is.
        """
        ...

    def of(self, run: RunRecord) -> Sequence[OutboxDraft]:
        """Return the effects outside the database of a run that is done, or waits, as it stands now.

        Pure, and the same for the same run: after a crash it is asked again. Each effect has a dedupe key,
        by which it is stored once.
        """
        ...

    def stored(self, run: RunRecord) -> None:
        """Take note that the effects of a run are stored. A hint: it is lost when the process dies."""
        ...
