"""Planted faults of the protocol: what several servers and their database must not get wrong together.

Each fault replaces texts of the source. `make simulate-planted` plants one at a time in a copy and says after how many
worlds the simulation finds it.
"""

from dataclasses import dataclass
from pathlib import Path

DISPATCHES, COMPLETION = "stores/runs/dispatches.py", "dispatch/completion.py"
WORKER, RECOVERY = "dispatch/worker.py", "dispatch/recovery.py"
NO_LOOK = (RECOVERY, "        await self._dispatcher.release_unexecuted(unexecuted)\n", "")
"""Removes from each poll the step that releases unexecuted claims: it hides some of the faults within a second."""


@dataclass(frozen=True)
class Plant:
    """One fault: in each file, a text and the text that takes its place."""

    name: str
    changes: tuple[tuple[str, str, str], ...]

    def put_into(self, source: Path) -> None:
        """Write the fault into a copy of the source.

        Raises:
            LookupError: A text is not found exactly once: plant the fault again.
        """
        for file, text, fault in self.changes:
            path = source / "postroom" / file
            before = path.read_text(encoding="utf-8")
            if before.count(text) != 1:
                raise LookupError(f"{self.name}: {before.count(text)} places in {file}: plant the fault anew")
            path.write_text(before.replace(text, fault), encoding="utf-8")


def plant(name: str, file: str, text: str, fault: str, *others: tuple[str, str, str]) -> Plant:
    """Return a fault of one file, and of others."""
    return Plant(name, ((file, text, fault), *others))


PLANTS = (
    plant(
        "an epoch is left out of the proof of a claim",
        DISPATCHES,
        "        if found.dispatch_epoch < epoch:\n            self.put(found.superseded(reason=STALE_EPOCH, now=self._now()))\n            return StaleClaim(",
        "        if False:\n            return StaleClaim(",
    ),
    plant(
        "a token is left out of the proof of a claim",
        DISPATCHES,
        "if found.status is not _CLAIMED or found.claim_token != claim.token:\n            return _ownership_error(found)\n        if found.dispatch_epoch",
        "if found.status is not _CLAIMED:\n            return _ownership_error(found)\n        if found.dispatch_epoch",
    ),
    plant(
        "a renewal does not compare the token",
        "stores/sql/dispatches.sql",
        "-- renew\nUPDATE run_dispatches SET lease_until = :lease_until, updated_at = :now\n WHERE dispatch_id IN {texts :dispatch_ids} AND dispatch_id || ' ' || claim_token IN {texts :claims}\n",
        "-- renew\nUPDATE run_dispatches SET lease_until = :lease_until, updated_at = :now\n WHERE dispatch_id IN {texts :dispatch_ids} AND status = 'Claimed' AND '' NOT IN {texts :claims}\n",
        (
            "stores/sql/dispatches.sql",
            "AND dispatch_id || ' ' || claim_token IN {texts :claims} AND lease_until = :lease_until;",
            "AND '' NOT IN {texts :claims} AND lease_until = :lease_until;",
        ),
    ),
    plant(
        "a lost claim is not noticed at its renewal",
        WORKER,
        "                lost = [job for job in jobs if job.dispatch.dispatch_id not in renewed]\n",
        "                lost = list[Job]()\n",
    ),
    plant(
        "late work goes on without asking whether its claim holds",
        WORKER,
        "                if self._leases.is_late(self._job):\n                    yield from",
        "                if False:\n                    yield from",
    ),
    plant(
        "a lease is compared with a clock that is 1.5 s ahead",
        DISPATCHES,
        '"dispatches.overdue", {"now": self._now(), ',
        '"dispatches.overdue", {"now": self._now() + 1_500, ',
        (
            DISPATCHES,
            "dispatch.lease_until is None or dispatch.lease_until >= now:",
            "dispatch.lease_until is None or dispatch.lease_until >= now + 1_500:",
        ),
    ),
    plant(
        "work may go on until 1 s behind the end of its lease",
        WORKER,
        "    return lease_until - min(length // 10, _MAX_SAFETY_MS)\n",
        "    return lease_until + 1_000\n",
    ),
    plant(
        "leases of dead servers are not taken back",
        RECOVERY,
        "            reclaimed = await self._recovery.reclaim()\n",
        "            reclaimed = list[RunDispatch]()\n",
    ),
    plant(
        "a submission is answered before its commit",
        "embedded/mailbox.py",
        "            accepted = await self.admin.submit_background(request, strategy=when_busy)\n",
        "            work = self.admin.submit_background(request, strategy=when_busy)\n"
        "            if id is not None and not joins:\n"
        "                self.admin._core.tasks.start(work, name='later')\n"
        "                return RunHandle(self, thread, id, watch)\n"
        "            accepted = await work\n",
    ),
    plant(
        "a caller that hangs up takes the rest of its submission with it",
        "dispatch/submission.py",
        '        return await self._core.claiming.complete(queue(), name="a submission")\n',
        "        return await queue()\n",
        NO_LOOK,
    ),
    plant(
        "the lost reply of an end is not looked up",
        COMPLETION,
        "return self._ended_before(tx, job, run) or done\n",
        "return done\n",
        NO_LOOK,
    ),
    plant(
        "a claim whose reply was lost is forgotten",
        WORKER,
        "            for row in await self.unexecuted() if claimed is None else claimed:\n",
        "            for row in ():\n",
        (COMPLETION, "next=claimed_next(tx, after.thread_id, asks)", "next=None"),
    ),
    plant(
        "a cancel of a run at another server is not stored",
        "dispatch/control.py",
        "            tx.runs.dispatches.put_command(row, replace(_CANCEL, reason=reason))\n            return row\n",
        "            return row\n",
    ),
    plant(
        "a cancel is forgotten when the run is put back",
        COMPLETION,
        "    commands = commands_in(tx, row.dispatch_id)\n    if not commands or row.status is not RunDispatchStatus.QUEUED:\n",
        "    commands = ()\n    if not commands or row.status is not RunDispatchStatus.QUEUED:\n",
    ),
    plant(
        "a failed attempt is not counted",
        "contracts/dispatch.py",
        "return self._requeue(available_at=available_at, attempts=attempts, most=most, error=error, now=now)",
        "return self._requeue(available_at=available_at, attempts=self.attempt_count, most=most, error=error, now=now)",
    ),
    plant(
        "no poll behind a lost hint",
        RECOVERY,
        "        await core.stores.wakeups.wait(timedelta(milliseconds=pause))\n",
        "        await core.stores.wakeups.wait(timedelta(days=9))\n",
    ),
    plant(
        "a slot is not freed when a run is tried again",
        WORKER,
        "        self.slots.give(job.dispatch.tenant)\n        if job.comes_again and",
        "        if not job.comes_again:\n            self.slots.give(job.dispatch.tenant)\n        if job.comes_again and",
    ),
    plant(
        "a tick is not compared when it is written",
        "schedules/firing.py",
        "if row is None or row.next_at is None or (row.schedule_id, row.tick_at) != (due.schedule_id, due.tick_at):",
        "if row is None or row.next_at is None:",
    ),
    plant(
        "an effect is acknowledged before it is performed",
        "relay.py",
        "        try:\n            async with asyncio.timeout(handler.lease.total_seconds()):\n                outcome = await handler.perform(rows)\n",
        "        try:\n            await self._surviving(lambda: self._end(place, handler, rows, Performed()))\n            async with asyncio.timeout(handler.lease.total_seconds()):\n                outcome = await handler.perform(rows)\n",
    ),
    plant(
        "an effect that is claimed again is not marked",
        "stores/outbox.py",
        "may_have_arrived=effect.may_have_arrived or effect.status is OutboxStatus.CLAIMED,",
        "may_have_arrived=effect.may_have_arrived,",
    ),
    plant(
        "an effect is stored as claimed before an earlier one of its order",
        "stores/outbox.py",
        "draft.available_at <= now and draft.line not in taken_lines:",
        "draft.available_at <= now:",
    ),
    plant(
        "an effect is performed though nobody knows whether its change is stored",
        "stores/store.py",
        "                    performer.give_back(effects)\n",
        "                    performer.begin(effects)\n",
    ),
    plant(
        "the result of a step is not stored",
        "embedded/running.py",
        "        await self._keep(STEP, name, payload, spends=self._control.spends(used))\n",
        "",
    ),
    plant(
        "a key names no run",
        "embedded/items.py",
        "run_id = None if self.key is None else derive_run_id(self.thread, self.key)",
        "run_id = None if self.key is None else derive_run_id(self.thread, uuid4().hex)",
    ),
    plant(
        "a lease of servers is taken 1 s before it ends",
        "leases.py",
        "former.until > now and former",
        "former.until > now + 1_000 and former",
        ("leases.py", "length * 5 / 6", "length"),
    ),
    plant(
        "a lease of servers counts from the late answer to its renewal",
        "leases.py",
        "until = asked_at + milliseconds(self._sure)",
        "until = self._store.clock.now() + milliseconds(self._sure)",
    ),
    plant(
        "two answers to a question are both kept",
        "dispatch/submission.py",
        "            elif before.decision.decision_id != decision.decision_id:\n                raise StaleDecision(",
        "            elif before.decision.decision_id is None:\n                raise StaleDecision(",
    ),
    plant(
        "messages that wait behind a run are not looked at when it ends",
        WORKER,
        "            if not job.comes_again and job.leaves_waiting:\n                await self._completion.submissions.after_run(thread_id)\n",
        "",
        (RECOVERY, "            await self._recovery.take_up_left_over()\n", ""),
    ),
    plant(
        "an interrupt leaves the epoch as it is",
        DISPATCHES,
        '{"thread_id": thread_id, "epoch": epoch + 1}',
        '{"thread_id": thread_id, "epoch": epoch}',
    ),
)
