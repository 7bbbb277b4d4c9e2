"""Sends one text to a chat, part by part, and goes on where an earlier try stopped."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from postroom.gateway import wording
from postroom.gateway.capabilities import SMALLEST_LIMIT
from postroom.gateway.events import SendErrorKind, SendResult
from postroom.gateway.platforms.base import BasePlatformAdapter, send_metadata
from postroom.gateway.session import SessionSource
from postroom.gateway.splitting import split

_CANNOT_EDIT = (SendErrorKind.NOT_FOUND, SendErrorKind.BAD_FORMAT, SendErrorKind.FORBIDDEN)
_TRIES_TO_FIT = 4


@dataclass(frozen=True, slots=True)
class ReplyAddress:
    """Where something is said, and which of the platform's messages it answers, or was said after reading."""

    source: SessionSource
    answers: tuple[str, ...] = ()
    read: tuple[str, ...] = ()


@dataclass(slots=True)
class OutgoingMessage:
    """A text on its way: `sent` of its parts are known to have arrived.

    With `draft_id` the first part takes the place of what was shown there.
    """

    key: str
    """Names the text for ever; each part's dedupe key is made of it."""
    address: ReplyAddress
    parts: list[str] = field(default_factory=list)
    sent: int = 0
    draft_id: str | None = None
    stale_id: str | None = None
    """A draft that could not be kept up: it is taken back when the text is there."""
    is_under_way: bool = False
    """Whether a part is on its way; found so at the next try, nobody knows whether it has arrived."""

    async def send_rest(self, adapter: BasePlatformAdapter) -> SendResult:
        """Send what was not sent yet; the first part that is not taken ends it."""
        result = SendResult.sent()
        tries = 0
        if self.is_under_way:
            self._mark(adapter)
        while self.sent < len(self.parts):
            self.is_under_way = True
            result = await self._send_part(adapter, self.sent)
            self.is_under_way = False
            if result.success:
                self.sent, tries = self.sent + 1, 0
            elif result.error_kind is SendErrorKind.TOO_LONG and tries < _TRIES_TO_FIT:
                tries += 1
                self._cut_smaller(adapter)
            else:
                if result.error_kind is not None and result.error_kind.may_have_arrived:
                    self._mark(adapter)
                return result
        if self.stale_id is not None:
            source, stale, self.stale_id = self.address.source, self.stale_id, None
            await adapter.delete_message(source.chat_id, stale, send_metadata(source))
        return result

    async def _send_part(self, adapter: BasePlatformAdapter, number: int) -> SendResult:
        part, source = self.parts[number], self.address.source
        metadata = send_metadata(
            source,
            dedupe_key=f"{self.key}/{number}",
            answers=list(self.address.answers),
            final=number == len(self.parts) - 1,
        )
        if number == 0 and self.draft_id is not None:
            result = await adapter.edit_message(source.chat_id, self.draft_id, part, metadata)
            if result.success or result.error_kind not in _CANNOT_EDIT:
                return result
            self.draft_id = None
        reply_to = self.address.answers[-1] if self.address.answers and number == 0 else None
        return await adapter.send(source.chat_id, part, reply_to, metadata)

    def _cut_smaller(self, adapter: BasePlatformAdapter) -> None:
        """Cut the part that is next in two or more: its marks made it too long."""
        part, unit = self.parts[self.sent], adapter.capabilities.unit
        limit = max(unit.measure(part) * 2 // 3, SMALLEST_LIMIT)
        self.parts[self.sent : self.sent + 1] = split(part, limit=limit, unit=unit)

    def _mark(self, adapter: BasePlatformAdapter) -> None:
        """Write before the part that is next that it may have been there before."""
        part, capabilities = self.parts[self.sent], adapter.capabilities
        if not part.startswith(wording.POSSIBLE_DUPLICATE) and (self.sent or self.draft_id is None):
            marked = f"{wording.POSSIBLE_DUPLICATE}\n{part}"
            fitting = split(marked, limit=capabilities.limit, unit=capabilities.unit)
            self.parts[self.sent : self.sent + 1] = fitting


def parts_of(text: str, adapter: BasePlatformAdapter) -> Sequence[str]:
    """Return a text in parts that the channel takes."""
    capabilities = adapter.capabilities
    return split(text, limit=capabilities.limit, unit=capabilities.unit)
