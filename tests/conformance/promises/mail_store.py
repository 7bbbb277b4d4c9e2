"""Every promise of the port `MailStore`: `promise(store, clock)` on a store that is empty."""

from collections.abc import Awaitable, Callable

from conformance.promises import (
    mail_announcing,
    mail_changes,
    mail_log,
    mail_merging,
    mail_messages,
    mail_people,
    mail_reservations,
    mail_restoring,
    mail_retention,
    mail_search,
    mail_timeline,
    mail_tokens,
    mail_traces,
    mail_waking,
)
from postroom.stores.mail.store import MailStore
from postroom.testing.clock import ManualClock

Promise = Callable[[MailStore, ManualClock], Awaitable[None]]

PROMISES: tuple[Promise, ...] = (
    *mail_people.PROMISES,
    *mail_messages.PROMISES,
    *mail_announcing.PROMISES,
    *mail_search.PROMISES,
    *mail_reservations.PROMISES,
    *mail_timeline.PROMISES,
    *mail_changes.PROMISES,
    *mail_restoring.PROMISES,
    *mail_merging.PROMISES,
    *mail_retention.PROMISES,
    *mail_tokens.PROMISES,
    *mail_traces.PROMISES,
    *mail_waking.PROMISES,
    *mail_log.PROMISES,
)
