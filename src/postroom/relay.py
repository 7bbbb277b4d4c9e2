"""The relay performs the effects of the outbox at least once; each kind of effect has one handler.

    hint or poll ─▶ due effects, by kind and target ─▶ claimed in one change ─▶ performed
                      └ in a pause after a failure,         ├─▶ done: its end, and the handler's rows
                        or waiting for a batch              └─▶ retried later, or a dead letter

A handler that exceeds its lease is cancelled, although the effect may already have been performed. After an
exception, the effect is retried. A slow or failing effect does not delay other targets. If a process dies,
its claims remain until their leases expire or, if it is the only process, until the next start. Repeated
effects are marked as such.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, Protocol

from typing_extensions import override

from postroom.concurrency import Tasks
from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import PostroomError, StoreError
from postroom.contracts.outbox import OUTBOX, EffectPerformer, OutboxMessage, line_lock
from postroom.log import get_logger
from postroom.stores.store import Joined, SqlStore, Transaction

_LOG = get_logger(__name__)

POLL: Final = timedelta(seconds=1)
"""Maximum time until a lost notification, an expired lease or the end of a pause is noticed."""
GATHERING: Final = timedelta(milliseconds=100)
"""The time that a batch waits for more effects, so that many effects in a row become one batch."""
QUIET: Final = timedelta(milliseconds=10)
"""The time for which notifications are collected after a round, which starts all due effects up to its limit.
"""
KEPT: Final = timedelta(days=7)
"""The time for which the key of a performed effect prevents a duplicate."""
PURGED_EVERY: Final = timedelta(hours=1)
_PURGED_AT_ONCE: Final = 1_000
GRACE: Final = timedelta(seconds=5)
"""The time that a stop waits for effects that are being performed."""

Place = tuple[str, str]
"""The kind and the target of an effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """The outcome of effects that were performed."""

    also: Joined | None = None
    """A change that writes further rows in the transaction that records the outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPerformed:
    """The outcome of effects that failed, or whose result is unknown.

    The effects are retried later unless `final` is True.
    """

    error: str
    final: bool = False
    may_have_arrived: bool = False
    not_before_ms: int = 0
    """The minimum time before the next attempt, in milliseconds."""
    untried: bool = False
    """Whether the effect was not tried, because other effects come first.

    For an untried effect, no attempt is counted, and the effect is tried after `not_before_ms`.
    """
    also: Joined | None = None


Outcome = Performed | NotPerformed


class Handler(Protocol):
    """Performs the effects of one kind; a repetition must be harmless, or visible to people."""

    lease: timedelta
    """The maximum duration of a call of `perform`."""
    at_once: int
    """The number of effects that are performed for one target at the same time."""
    together: bool
    """Whether these effects are performed in one batch. If not, each effect is performed alone, and effects
    with the same order key in order.
    """
    retries: tuple[timedelta, timedelta]
    """The pause after the first failure, which doubles with each further failure, and the longest pause."""

    def serves(self, target: str) -> bool:
        """Return whether this process can perform effects for a target now."""
        ...

    async def perform(self, rows: Sequence[OutboxMessage]) -> Outcome:
        """Perform effects for one target, and return their common outcome.

        After an exception, all effects in `rows` are retried.
        """
        ...


class Relay(EffectPerformer):
    """Performs the due effects of an outbox, which several processes may share.

    Each process has one relay.
    """

    def __init__(
        self, store: SqlStore, handlers: MutableMapping[str, Handler], *, is_exclusive: bool = False
    ) -> None:
        """Create the relay; `is_exclusive` states that no other process performs effects of the outbox."""
        self.handlers = handlers
        """The handlers, keyed by kind; effects without a handler wait."""
        self._store = store
        self._is_exclusive = is_exclusive
        self._tasks = Tasks("relay")
        self._claims: dict[str, OutboxMessage] = {}
        """The newest claim of each effect that is being performed, keyed by the id of the effect."""
        self._claiming = asyncio.Lock()
        self._under_way: dict[Place, int] = {}
        self._rooms: dict[Place, asyncio.Semaphore] = {}
        self._rests_until: dict[Place, int] = {}
        self._gathered_at: dict[Place, float] = {}
        self._gathered: dict[Place, list[OutboxMessage]] = {}
        """Effects that this process has claimed, and that wait for the start of their batch."""
        self._came_meanwhile: set[Place] = set()
        """Targets for which further effects became due while a batch was being performed."""
        self._purge_at = 0
        self._performed = 0
        self._serving: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        """The event loop of `serve`, and the event that stops `serve`."""

    def hint(self) -> None:
        """Let the relay look for due effects now, rather than at its next poll."""
        self._store.changes.tell((OUTBOX,))

    async def serve(self, stopping: asyncio.Event) -> None:
        """Perform effects until `stopping` is set, and then finish the effects in progress.

        Failures of the store are logged and retried.
        """
        if self._is_exclusive and not self._claims:
            await self._surviving(self._release)
        self._serving = asyncio.get_running_loop(), stopping
        self._store.changes.performer = self
        with self._store.changes.listen(OUTBOX) as news:
            try:
                while not stopping.is_set():
                    await self._surviving(self._round)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(QUIET.total_seconds()):
                            await stopping.wait()
                    await news.wait(POLL)
                self._start_batches()
                async with asyncio.timeout(GRACE.total_seconds()):
                    await self._tasks.settled()
            except TimeoutError:
                _LOG.warning("relay.not_all_performed", under_way=len(self._claims))
            finally:
                self._serving = None
                self._gathered.clear()
                if self._store.changes.performer is self:
                    self._store.changes.performer = None
                await self._tasks.close()
                self._tasks = Tasks("relay")

    @override
    def lease_ms(self, kind: str, target: str) -> int | None:
        handler, serving, place = self.handlers.get(kind), self._serving, (kind, target)
        if handler is None or serving is None or serving[1].is_set():
            return None
        if handler.together and self._rests_until.get(place, 0) > self._store.clock.now():
            return None
        waiting = self._under_way.get(place, 0) + len(self._gathered.get(place, ()))
        return milliseconds(handler.lease) if handler.serves(target) and waiting < handler.at_once else None

    @override
    def begin(self, effects: Sequence[OutboxMessage]) -> None:
        serving = self._serving
        if serving is not None and serving[0] is not asyncio.get_running_loop():
            serving[0].call_soon_threadsafe(self.begin, effects)
            return
        if serving is None or serving[1].is_set():
            self.give_back(effects)
            return
        for row in effects:
            if not self.handlers[row.kind].together:
                self._begin([row])
            elif (place := (row.kind, row.target)) in self._gathered:
                self._gathered[place].append(row)
            else:
                self._gathered[place] = [row]
                asyncio.get_running_loop().call_later(GATHERING.total_seconds(), self._start_batches, place)

    def _start_batches(self, *places: Place) -> None:
        """Start the gathered batches of the given targets, or of all targets if none is given."""
        for place in places or tuple(self._gathered):
            if place not in self._under_way and (rows := self._gathered.pop(place, None)):
                at_once = self.handlers[place[0]].at_once
                if rest := rows[at_once:]:
                    self._gathered[place] = rest
                self._begin(rows[:at_once])

    @override
    def give_back(self, effects: Sequence[OutboxMessage]) -> None:
        self._tasks.start(self._surviving(partial(self._given_back, tuple(effects))), name="give back")

    async def _given_back(self, effects: Sequence[OutboxMessage]) -> int:
        ids, tokens = [row.outbox_id for row in effects], [row.claim_token or "" for row in effects]

        def change(tx: Transaction) -> int:
            tx.lock(*sorted({line_lock(row.kind, row.target) for row in effects}))
            back = tx.outbox.nack(
                ids, tokens, error="an earlier effect must be performed first", untried=True
            )
            tx.tell(OUTBOX)
            return len(back)

        return await self._store.write(change)

    async def drain(self) -> int:
        """Perform all due effects, except effects that wait for a retry; return the number performed.

        Raises:
            StoreError: The outbox could not be read.
        """
        before = self._performed
        while await self._round(gathers=False) or self._claims or self._gathered:
            self._start_batches()
            await self._tasks.settled()
        return self._performed - before

    async def idle(self, kind: str) -> None:
        """Wait until no effect of a kind is due, and none is being performed.

        Raises:
            StoreError: The outbox could not be read.
        """
        while await self._round() or any(place[0] == kind for place in (*self._under_way, *self._gathered)):
            self._start_batches()
            await self._tasks.settled()

    async def _surviving(self, work: Callable[[], Awaitable[int]]) -> int:
        try:
            return await work()
        except StoreError as error:
            _LOG.warning("relay.store_failed", code=error.code, reason=error.message)
            return 0

    async def take_over(self, kind: str, target: str | None = None) -> None:
        """Make the effects of a kind that another process has claimed due at once.

        With `target`, only effects of this target become due. The caller must have the lease of the work.
        """
        own = (*self._claims, *(row.outbox_id for rows in self._gathered.values() for row in rows))
        await self._store.write(lambda tx: tx.outbox.release((kind,), target=target, besides=own))
        self.hint()

    async def _release(self) -> int:
        """Make the effects that a former process had claimed due at once; return 0."""
        kinds = tuple(self.handlers)
        await self._store.write(lambda tx: tx.outbox.release(kinds))
        return 0

    async def _round(self, *, gathers: bool = True) -> int:
        """Claim due effects and start to perform them; return the number of claimed effects."""
        kinds = tuple(self.handlers)
        due, now = await self._store.read(lambda tx: (tx.outbox.due(kinds), tx.now()))
        if now >= self._purge_at:  # delete the keys of effects performed long ago
            until = now - milliseconds(KEPT)
            gone = await self._store.write(lambda tx: tx.outbox.purge(until, _PURGED_AT_ONCE))
            if gone < _PURGED_AT_ONCE:  # otherwise delete the rest in the next round
                self._purge_at = now + milliseconds(PURGED_EVERY)
        wanted = {place: free for place in due if (free := self._free(place, now, gathers=gathers)) > 0}
        is_stopping = self._serving is not None and self._serving[1].is_set()
        if is_stopping or not wanted:
            return 0

        def claim(tx: Transaction) -> list[OutboxMessage]:
            tx.lock(*sorted(line_lock(*place) for place in wanted))
            return [
                row
                for (kind, target), free in wanted.items()
                for row in tx.outbox.claim(
                    kind, target, lease_ms=milliseconds(self.handlers[kind].lease), limit=free
                )
            ]

        async with self._claiming:
            rows = await self._store.write(claim, key="outbox")
            self._begin(rows)
        return len(rows)

    def _free(self, place: Place, now: int, *, gathers: bool) -> int:
        """Return the number of effects that may be started for a target now."""
        handler = self.handlers[place[0]]
        rests = self._rests_until.get(place, 0) - now
        if not handler.serves(place[1]) or 0 < rests <= milliseconds(handler.retries[1]):
            return 0  # a longer pause is from before the clock was set back
        if not handler.together:
            return handler.at_once - self._under_way.get(place, 0)
        if place in self._under_way:
            self._came_meanwhile.add(place)
            return 0
        if gathers:  # the effects of a batch wait for further ones
            loop, seconds = asyncio.get_running_loop(), GATHERING.total_seconds()
            if place not in self._gathered_at:
                self._gathered_at[place] = loop.time() + seconds
                loop.call_later(seconds, self.hint)
                return 0
            if self._gathered_at[place] > loop.time():
                return 0
            del self._gathered_at[place]
        return handler.at_once

    def _begin(self, rows: Sequence[OutboxMessage]) -> None:
        groups: dict[tuple[str, str, str], list[OutboxMessage]] = {}
        for row in rows:
            if row.outbox_id not in self._claims:  # otherwise `_end` continues with the new claim
                group = "" if self.handlers[row.kind].together else row.outbox_id
                groups.setdefault((row.kind, row.target, group), []).append(row)
            self._claims[row.outbox_id] = row
        for (kind, target, _), batch in groups.items():
            place = kind, target
            self._under_way[place] = self._under_way.get(place, 0) + len(batch)
            self._tasks.start(self._serve(place, batch), name=f"{kind} {target}")

    async def _serve(self, place: Place, rows: Sequence[OutboxMessage]) -> None:
        """Perform effects, and notify the relay if more effects of the target may be due."""
        handler, is_looked_for = self.handlers[place[0]], True
        room = self._rooms.setdefault(place, asyncio.Semaphore(handler.at_once))
        try:
            async with room:  # one commit may have stored more effects
                is_performed = await self._perform(place, handler, rows)
            is_looked_for = not is_performed or self._under_way[place] >= handler.at_once
        finally:
            for row in rows:
                self._claims.pop(row.outbox_id, None)
            self._under_way[place] -= len(rows)
            if not self._under_way[place]:
                del self._under_way[place], self._rooms[place]
            if is_looked_for or place in self._came_meanwhile:
                self.hint()
            self._came_meanwhile.discard(place)
            self._start_batches(place)

    async def _perform(self, place: Place, handler: Handler, rows: Sequence[OutboxMessage]) -> bool:
        """Perform effects together and write their outcome; return whether the effects were performed."""
        try:
            async with asyncio.timeout(handler.lease.total_seconds()):
                outcome = await handler.perform(rows)
        except TimeoutError:
            seconds = handler.lease.total_seconds()
            outcome = NotPerformed(
                error=f"performing the effect took longer than {seconds:g} s", may_have_arrived=True
            )
        except PostroomError as error:
            outcome = NotPerformed(error=error.describe(), may_have_arrived=True)
        except Exception as error:  # one failing effect must not stop the others
            _LOG.exception("effect.handler_crashed", kind=place[0], target=place[1], rows=len(rows))
            reason = f"{type(error).__name__} inside postroom; its log has the cause"
            outcome = NotPerformed(error=reason, may_have_arrived=True)
        try:
            await self._end(place, handler, rows, outcome)
        except StoreError as error:
            _LOG.warning("effect.left_to_lease", kind=place[0], target=place[1], reason=error.describe())
        except PostroomError as error:  # the handler's own rows were rejected
            refused = NotPerformed(error=error.describe())
            await self._surviving(lambda: self._end(place, handler, rows, refused))
        else:
            return isinstance(outcome, Performed)
        return False

    async def _end(
        self, place: Place, handler: Handler, rows: Sequence[OutboxMessage], outcome: Outcome
    ) -> int:
        """Write the outcome of effects, with the rows of their handler."""
        claims = [self._claims[row.outbox_id] for row in rows]
        lock, also = line_lock(*place), outcome.also
        rest = 0 if isinstance(outcome, Performed) else self._rest(place, handler, rows, outcome)

        def change(tx: Transaction) -> int:
            tx.lock(*sorted({lock, *(also.locks if also else ())}))
            if also is not None:
                also.change(tx)
            return _write_outcome(tx, claims, outcome, rest)

        def change_again(tx: Transaction) -> int:
            tx.lock(lock)
            return _write_outcome(tx, renewed, outcome, rest)

        done = await self._store.write(change, key=lock)
        if done < len(rows):
            async with self._claiming:  # if the lease expired, this process has renewed the claim by then
                renewed = [self._claims[row.outbox_id] for row in rows]
            if renewed != claims:
                done += await self._store.write(change_again, key=lock)
                claims = renewed
        if isinstance(outcome, Performed):
            self._performed += done
            if done < len(rows):
                _LOG.warning("effect.lease_ended_before_its_end", kind=place[0], target=place[1])
        else:  # an effect may be due, and claimed again, before the store has answered
            newest = [self._claims[row.outbox_id] for row in rows]
            if again := [row for row, ended in zip(newest, claims, strict=True) if row != ended]:
                asyncio.get_running_loop().call_soon(self.begin, again)  # after `_serve` has ended
        return done

    def _rest(
        self, place: Place, handler: Handler, rows: Sequence[OutboxMessage], outcome: NotPerformed
    ) -> int:
        """Return the pause after failed effects, in milliseconds."""
        if outcome.untried:
            _LOG.info("effect.postponed", kind=place[0], target=place[1], reason=outcome.error)
            return outcome.not_before_ms
        first, longest = (milliseconds(retry) for retry in handler.retries)
        tried = min(max(row.attempt_count for row in rows) - 1, 20)
        rest: int = max(outcome.not_before_ms, min(first * 2**tried, longest))
        level = _LOG.warning if not outcome.final else _LOG.error
        level("effect.not_performed", kind=place[0], target=place[1], rows=len(rows), reason=outcome.error)
        if handler.together and not outcome.final:
            self._rests_until[place] = self._store.clock.now() + rest
        return rest


def _write_outcome(tx: Transaction, rows: Sequence[OutboxMessage], outcome: Outcome, rest: int) -> int:
    """Write the outcome of effects that are still claimed; return the number of these effects."""
    ids, tokens = [row.outbox_id for row in rows], [row.claim_token or "" for row in rows]
    if isinstance(outcome, Performed):
        done = tx.outbox.ack(ids, tokens, keyed=rows[0].dedupe_key is not None)
        tx.outbox.call_next(rows)
        return done
    failed = tx.outbox.nack(
        ids,
        tokens,
        error=outcome.error[:500],
        delay_ms=rest,
        final=outcome.final,
        may_have_arrived=outcome.may_have_arrived,
        untried=outcome.untried,
    )
    return len(failed)
