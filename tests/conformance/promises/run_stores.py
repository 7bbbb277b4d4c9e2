"""Every promise of the port `RunStores`: `promise(stores, clock)` on empty stores that go by `clock`."""

from conformance.promises import (
    dispatch_claims,
    dispatch_enqueue,
    dispatch_interrupts,
    dispatch_listings,
    dispatch_reclaims,
    dispatch_writes,
    run_commits,
    run_commits_delivery,
    run_commits_moves,
    run_commits_owned,
    run_events,
    run_outbox,
    run_pending,
    run_threads,
    run_threads_messages,
)
from conformance.promises.run_given import Promise

PROMISES: tuple[Promise, ...] = (
    *dispatch_enqueue.PROMISES,
    *dispatch_claims.PROMISES,
    *dispatch_writes.PROMISES,
    *dispatch_interrupts.PROMISES,
    *dispatch_reclaims.PROMISES,
    *dispatch_listings.PROMISES,
    *run_threads.PROMISES,
    *run_threads_messages.PROMISES,
    *run_pending.PROMISES,
    *run_commits.PROMISES,
    *run_commits_owned.PROMISES,
    *run_commits_moves.PROMISES,
    *run_commits_delivery.PROMISES,
    *run_events.PROMISES,
    *run_outbox.PROMISES,
)
