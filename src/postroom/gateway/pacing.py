"""Keeps a bot's calls within the platform's rate limits, and pauses them when the platform asks for it.

    turn? ─▶ every scope of the call (bot, chat, group, method) has room ─▶ now
              │ soon: waits                       │ later: returns the time; its place in the queue is kept
    refused because of its rate ─▶ the scope pauses for the requested time

A call counts towards a limit from its beginning until one period after its end, because the platform may
count it at any time while it is in progress. Calls of low priority (drafts, typing) are made only if no other
call waits and half of the limit is unused. If the platform refuses a call without content (typing,
reactions), only calls of that kind pause. The state is not stored. After a restart, the bot pauses when the
platform first refuses a call.
"""

from collections import deque
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from postroom.contracts.clock import Clock, Timer
from postroom.gateway.capabilities import Rate, RateLimits

PATIENCE_MS = 2_000
"""The longest wait for a turn. A caller whose turn comes later gets the time at which to ask again."""
KEPT_MS = 5_000
"""How long a caller that must ask again keeps its place in the queue after its turn is due."""
UNTOLD_MS = 5_000
"""The pause after a refusal in which the platform gives no waiting time."""
_MAX_SCOPES = 10_000


@dataclass(slots=True)
class Turn:
    """The permission for one API call.

    The call may be made if `wait_ms` is 0.
    """

    wait_ms: int = 0
    was_refused: bool = False
    quiet_ms: int | None = None

    def refused(self, retry_after_ms: int | None) -> None:
        """Record that the platform refused the call because of a rate limit.

        `retry_after_ms` is the pause that the platform asks for, in milliseconds.
        """
        self.was_refused, self.quiet_ms = True, retry_after_ms


@dataclass(slots=True)
class _Scope:
    """The calls that count toward one rate limit."""

    rate: Rate | None
    is_method: bool = False
    under_way: int = 0
    ended: deque[int] = field(default_factory=deque)
    """The end times of the calls that still count towards the limit, oldest first."""
    line: dict[Hashable, int] = field(default_factory=dict)
    """The waiting callers in order, each with the time until which its place in the queue is kept."""
    quiet: tuple[int, int] = (0, 0)
    """The start and end of the pause that the platform has requested."""

    def used(self, now: int) -> list[int]:
        """Return the time of each call that still counts toward the limit."""
        per_ms = self.rate.per_ms if self.rate else 0
        while self.ended and not now - per_ms < self.ended[0] <= now:
            self.ended.popleft()
        return [*self.ended, *([now] * self.under_way)]

    def wait(self, who: Hashable, now: int) -> int:
        """Return the number of milliseconds until a caller may make a call."""
        self._drop_places(now)
        began, until = self.quiet
        quiet = until - now if began <= now < until else 0
        if self.rate is None:
            return quiet
        most, per_ms = self.rate.most, self.rate.per_ms
        ahead = list(self.line).index(who) if who in self.line else len(self.line)
        used = self.used(now)
        free = max(most - len(used), 0)
        slots = [now - per_ms] * free + used[len(used) - (most - free) :]
        return max(slots[ahead % most] + per_ms * (ahead // most + 1) - now, quiet + ahead // most * per_ms)

    def has_half(self, now: int) -> bool:
        """Return whether no call waits and at most half of the limit is used."""
        self._drop_places(now)
        used = self.used(now)
        return not self.line and (self.rate is None or 2 * len(used) <= self.rate.most - 1)

    def _drop_places(self, now: int) -> None:
        """Remove callers whose place in the queue has expired."""
        if self.line:
            self.line = {who: until for who, until in self.line.items() if until >= now}

    def is_idle(self, now: int) -> bool:
        """Return whether the scope can be dropped because it holds no state."""
        self._drop_places(now)
        return not self.under_way and not self.used(now) and not self.line and self.quiet[1] <= now


class Pacing:
    """The schedule of one bot's API calls, within the platform's rate limits."""

    def __init__(self, limits: RateLimits, clock: Clock, timer: Timer) -> None:
        self._limits = limits
        self._clock = clock
        self._timer = timer
        self._scopes: dict[tuple[str, str], _Scope] = {}

    @asynccontextmanager
    async def turn(
        self,
        method: str,
        chat_id: str | None = None,
        *,
        is_group: bool = False,
        key: Hashable = None,
        gives_way: bool = False,
    ) -> AsyncIterator[Turn]:
        """Wait until the rate limits allow a call, for at most `PATIENCE_MS` milliseconds.

        Make the call in the `with` block, but only if `wait_ms` is 0. `chat_id` names the chat if the call
        sends a message. A caller that asks again with an equal `key` keeps its place in the queue.
        """
        # Collect the scopes of the call, from the narrowest scope to the scope of the bot.
        is_alone = gives_way and chat_id is None
        limits, items = self._limits, []
        if is_alone or method in limits.methods:
            items.append(self._scope("method", method, limits.methods.get(method)))
        if chat_id is not None:
            items.append(self._scope("chat", chat_id, limits.chat))
            if is_group and limits.group is not None:
                items.append(self._scope("group", chat_id, limits.group))
        scopes = [*items, self._scope("bot", "", limits.bot)]
        wait = await self._wait_turn(scopes, key, gives_way=gives_way)
        turn = Turn(wait)
        if wait:
            yield turn
            return
        for scope in scopes:
            scope.under_way += 1
        try:
            yield turn
        finally:
            now = self._clock.now()
            for scope in scopes:
                scope.under_way -= 1
                if scope.rate is not None:
                    scope.ended.append(now)
            if turn.was_refused:
                # Pause the narrowest scope of a refused call. If another scope is pausing already, the
                # refusal may come from the bot's own limit, so the bot pauses, too. Two chats (or two
                # methods) may have a limit each, so the bot takes the shorter of the pauses. A chat and a
                # method have only the bot in common, so the bot takes the new pause.
                narrow, bot, until = (
                    scopes[0],
                    scopes[-1],
                    now + (UNTOLD_MS if turn.quiet_ms is None else turn.quiet_ms),
                )
                narrow.quiet = (now, max(until, narrow.quiet[1]))
                others = [
                    scope for scope in self._scopes.values() if scope is not narrow and scope is not bot
                ]
                if quiet := [other for other in others if other.quiet[1] > now]:
                    if all(scope.is_method is narrow.is_method for scope in quiet):
                        until = min(until, *(scope.quiet[1] for scope in quiet))
                    bot.quiet = (now, max(until, bot.quiet[1]))

    async def _wait_turn(self, scopes: "Sequence[_Scope]", key: Hashable, *, gives_way: bool) -> int:
        """Wait up to `PATIENCE_MS` for the caller's turn, and return the remaining milliseconds."""
        patience = self._clock.now() + PATIENCE_MS
        who = object() if key is None else key
        while True:
            now = self._clock.now()
            wait, scope = -1, scopes[0]
            for item in scopes:
                if (needs := item.wait(who, now)) > wait:
                    wait, scope = needs, item
            if gives_way:
                return wait or (0 if all(scope.has_half(now) for scope in scopes) else KEPT_MS)
            comes_back = now + wait > patience
            for item in scopes:
                # a caller has a place in one queue only: in another, it would block later callers
                if item is not scope or not wait or (comes_back and key is None):
                    item.line.pop(who, None)
                else:
                    item.line[who] = now + wait + KEPT_MS
            if not wait or comes_back:
                return wait
            await self._timer.sleep(wait)

    def _scope(self, kind: str, name: str, rate: Rate | None) -> _Scope:
        scope = self._scopes.get((kind, name))
        if scope is None:
            if len(self._scopes) >= _MAX_SCOPES:
                now = self._clock.now()
                for idle in [one for one, scope in self._scopes.items() if scope.is_idle(now)]:
                    del self._scopes[idle]
            scope = self._scopes[kind, name] = _Scope(rate, is_method=kind == "method")
        return scope
