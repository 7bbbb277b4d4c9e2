"""Requests that are asked again: found by their key, or by what they say, in memory and in the store."""

from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Final

from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import StoreError
from postroom.gateway.platforms.api_server_answers import Exchange, Exchanges
from postroom.gateway.platforms.api_server_ids import own_session
from postroom.gateway.platforms.base import KnownMessage
from postroom.gateway.platforms.refused import Refused
from postroom.log import get_logger

_LOG = get_logger(__name__)

_LOOK_EVERY_MS: Final = 1_000
"""How long an answer that another server gave goes unnoticed."""
RETRIED_WITHIN_MS: Final = 3_600_000
"""How long a request without a key may be one that is asked again; clients wait for ten minutes and more."""


def is_again(headers: Mapping[str, str]) -> bool:
    """Say whether a request counts itself as one that is asked again, as OpenAI's clients do."""
    return headers.get("X-Stainless-Retry-Count", "0") not in ("", "0")


class Repeats:
    """Finds what was asked before, also before this process began."""

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

    async def is_known(self, exchange: Exchange, fingerprint: str) -> bool:
        """Say whether its message was kept before; one that was answered has its answer then.

        Raises:
            Refused: the message said something else.
        """
        if exchange.is_final:
            return True
        if exchange.since:
            return False
        known = await self._look_up(exchange.chat_id, exchange.message_id)
        exchange.since = self._clock.now() if known is None else known.received_at
        if known is None:
            return False
        if known.event.metadata.get("fingerprint") not in (None, fingerprint):
            raise Refused(409, "idempotency_conflict", "this Idempotency-Key was used with another message")
        return _is_answered(exchange, known)

    async def follow(self, exchange: Exchange, timer: Timer) -> None:
        """Look again and again whether another server has given the answer, until it is there."""
        while not exchange.is_final:
            await timer.sleep(_LOOK_EVERY_MS)
            try:
                _is_answered(exchange, await self._look_up(exchange.chat_id, exchange.message_id))
            except StoreError as error:
                _LOG.warning("answer.not_looked_for", reason=error.describe())

    async def key_of(self, session: str | None, told: str, *, is_again: bool) -> str:
        """Return the key of a request that brings none: that of one like it whose caller has no answer yet.

        One that counts itself as a retry gets the latest like it where none is without its answer.
        Requests that are alike are numbered within the hour in which they came, and so found again.
        """
        now = self._clock.now()
        hour, key, latest = now // RETRIED_WITHIN_MS, "", ""
        for one in (hour - 1, hour):
            for number in count():
                key = f"auto-{told}-{one}-{number}"
                place = session or own_session(key), key
                exchange = self._exchanges.find(*place)
                known = await self._look_up(*place) if exchange is None or not exchange.since else None
                exchange = self._exchanges.find(*place)  # it may have come meanwhile
                if known is None and exchange is None:
                    break
                since = exchange.since if exchange is not None else 0
                since = since or (now if known is None else known.received_at)
                if now - since >= RETRIED_WITHIN_MS:
                    continue
                if self._is_missed(exchange, since, is_again=is_again):
                    return key
                latest = key
        return latest if is_again and latest else key

    def _is_missed(self, exchange: Exchange | None, since: int, *, is_again: bool) -> bool:
        """Say whether nobody waits any more for the answer to a request, and nobody was given it."""
        if exchange is None or exchange.fingerprint is None:  # nobody of this process asked it
            return since < self._began
        return not exchange.is_collected and (is_again or not exchange.waits)


def _is_answered(exchange: Exchange, known: KnownMessage | None) -> bool:
    """Give an exchange the answer that is kept, and say whether it has one."""
    if known is not None and known.answer is not None:
        exchange.add("kept", known.answer, final=True, details=known.details)
    return exchange.is_final
