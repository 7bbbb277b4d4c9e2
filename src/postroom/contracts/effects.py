"""What belongs to the beginning and the end of a run: written with it, or stored with it for later."""

from collections.abc import Sequence
from typing import Protocol

from postroom.contracts.accepting import Accept
from postroom.contracts.messages import Message
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.runs import RunRecord
from postroom.contracts.transactions import Transaction


class RunEffects(Protocol):
    """Decides what a run's beginning and its end cause."""

    def begin(self, tx: Transaction, run: RunRecord, messages: Sequence[Message]) -> bool:
        """Write what belongs to the beginning of a new run, in the change that claims it.

        `messages` are what it reads first. Return whether the thread's runs have such a beginning; what
        executes a run that has begun otherwise writes it itself (`RunControl.is_noted`).
        """
        ...

    def write(self, tx: Transaction, run: RunRecord, accept: Accept | None) -> None:
        """Write what belongs to the end of a run that is done, or waits, in the change that stores the end.

        It is called behind the commit of the run, under the lock of its thread, and may be called again for
        the same run: what is written already is left as it is. `accept` puts messages on other threads;
        without it, those are to be found later.

        Raises:
            ThreadsNeeded: those threads are to be locked first; the change is run again.
        """
        ...

    def put_back(self, tx: Transaction, run_id: str) -> None:
        """Write what belongs to an execution that has failed, in the change that has its run tried again.

        The run has not ended: it begins again.
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
