"""Repeated requests: found by key, count of retries or position, in memory and in the store."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import StoreError
from postroom.gateway.platforms.api_server_answers import Exchange, Exchanges, refuse_other_content
from postroom.gateway.platforms.api_server_ids import digest, own_session
from postroom.gateway.platforms.base import KnownMessage
from postroom.gateway.platforms.refused import Refused
from postroom.log import get_logger

_LOG = get_logger(__name__)

_LOOK_EVERY_MS: Final = 1_000
"""How long an answer that another server gave goes unnoticed."""
RETRIED_WITHIN_MS: Final = 3_600_000
"""How long a request without a key may count as a repetition; clients wait for ten minutes and more."""
_NEWEST: Final = 6
"""How many of the newest equal requests may be the repeated one."""
_MOST_COUNTS: Final = 2_000
_MOST_FAILED: Final = 20


class Repeats:
    """Finds earlier requests, also from before this process began."""

    def __init__(
        self,
        exchanges: Exchanges,
        look_up: Callable[[str, str], Awaitable[KnownMessage | None]],
        clock: Clock,
    ) -> None:
        self._exchanges = exchanges
        self._look_up = look_up
        self._clock = clock
        self._began = clock.now()
        self._counts: OrderedDict[tuple[str | None, str, int], int] = OrderedDict()
        """By session, digest and hour: how many requests like one came at least."""

    async def is_known(self, exchange: Exchange, fingerprint: str) -> bool:
        """Return whether its message was stored before; an answered one gets its answer.

        Raises:
            Refused: The message had other content.
        """
        if exchange.is_final:
            return True
        if exchange.since:
            return False
        known = await self._look_up(exchange.chat_id, exchange.message_id)
        exchange.since = self._clock.now() if known is None else known.received_at
        if known is None:
            return False
        refuse_other_content(known.event.metadata.get("fingerprint"), fingerprint)
        return _is_answered(exchange, known)

    async def follow(self, exchange: Exchange, timer: Timer) -> None:
        """Poll until another server has given the answer."""
        while not exchange.is_final:
            await timer.sleep(_LOOK_EVERY_MS)
            try:
                _is_answered(exchange, await self._look_up(exchange.chat_id, exchange.message_id))
            except StoreError as error:
                _LOG.warning("answer.not_looked_for", reason=error.describe())

    async def key_of(
        self, session: str | None, told: str, *, is_again: bool, has_history: bool = False
    ) -> str:
        """Return the key of a request that brings none.

        A request that counts itself as a retry gets the key of an equal request whose caller has no answer,
        otherwise of the newest equal request. Another request gets the key of an equal request whose caller
        has no answer, if the history in both says that they have the same position in their conversation.
        Each other request gets a new key, also if the equal request failed or was cancelled. Only the newest
        six equal requests of the last hour are compared.
        """
        now = self._clock.now()
        hour = now // RETRIED_WITHIN_MS
        before, here = await self._count(session, told, hour - 1), await self._count(session, told, hour)
        earlier = [f"auto-{told}-{hour}-{number}" for number in reversed(range(max(here - _NEWEST, 0), here))]
        earlier += [
            f"auto-{told}-{hour - 1}-{number}" for number in reversed(range(max(before - _NEWEST, 0), before))
        ]
        has_position = session is None or has_history
        latest = ""
        for key in earlier[:_NEWEST] if is_again or has_position else ():
            place = session or own_session(key), key
            exchange = self._exchanges.find(*place)
            known = await self._look_up(*place) if exchange is None or not exchange.since else None
            since = exchange.since if exchange is not None and exchange.since else now
            since = known.received_at if known is not None else since
            earlier_one = known or exchange
            if (earlier_one is not None and earlier_one.has_failed) or now - since >= RETRIED_WITHIN_MS:
                continue
            if self._is_missed(exchange, known, since, is_again=is_again):
                return key
            latest = latest or key
        if is_again and latest:
            return latest
        while True:
            key = f"auto-{told}-{hour}-{here}"
            if self._exchanges.find(session or own_session(key), key) is None:
                return key
            here += 1  # another equal request arrived meanwhile

    async def _count(self, session: str | None, told: str, hour: int) -> int:
        """Return the number of equal requests within an hour, with a logarithmic number of reads."""
        counted = self._counts.pop((session, told, hour), 0)

        async def is_known(number: int) -> bool:
            key = f"auto-{told}-{hour}-{number}"
            place = session or own_session(key), key
            return self._exchanges.find(*place) is not None or await self._look_up(*place) is not None

        step, beyond = 1, counted
        while await is_known(beyond):
            counted, beyond, step = beyond + 1, beyond + step, step * 2
        while counted < beyond:
            middle = (counted + beyond) // 2
            counted, beyond = (middle + 1, beyond) if await is_known(middle) else (counted, middle)
        self._counts[session, told, hour] = counted
        while len(self._counts) > _MOST_COUNTS:
            self._counts.popitem(last=False)
        return counted

    async def key_in_use(self, session: str | None, key: str, fingerprint: str) -> str:
        """Return a key, or the next one in its place if the request with the key failed or was cancelled.

        Raises:
            Refused: The request with the key had other content, or each of twenty such requests failed.
        """
        for number in range(_MOST_FAILED):
            name = f"again-{number}-{digest(key)}" if number else key
            place = session or own_session(name), name
            exchange = self._exchanges.find(*place)
            known = await self._look_up(*place) if exchange is None else None
            if not (exchange.has_failed if exchange is not None else known and known.has_failed):
                return name
            earlier = exchange.fingerprint if exchange is not None else None
            refuse_other_content(
                earlier if known is None else known.event.metadata.get("fingerprint"), fingerprint
            )
        told = f"{_MOST_FAILED} requests with this Idempotency-Key failed or were cancelled: send a new key"
        raise Refused(409, "idempotency_conflict", told)

    def _is_missed(
        self, exchange: Exchange | None, known: KnownMessage | None, since: int, *, is_again: bool
    ) -> bool:
        """Return whether the caller of a request got no answer and no longer waits for it.

        For a request from before this process began nobody knows that. A retry then takes the newest request,
        and another request takes this one.
        """
        if exchange is None or exchange.fingerprint is None:  # nobody of this process asked it
            is_background = known is not None and "background" in known.event.metadata
            return not is_again and since < self._began and not is_background
        return not exchange.is_collected and (is_again or not exchange.waits)


def _is_answered(exchange: Exchange, known: KnownMessage | None) -> bool:
    """Give an exchange the stored answer, and return whether it has one."""
    if known is not None and known.is_cancelled:
        exchange.cancel()
    elif known is not None and known.answer is not None:
        exchange.add("kept", known.answer, final=True, details=known.details)
    return exchange.is_final
