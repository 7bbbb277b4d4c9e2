"""Decides when and how a chat shows the draft of an answer. This module performs no I/O.

                      Look                failed(retry_after_ms): waits this long, then continues
    collecting ─────────────▶ in progress ──done──▶ collecting
        │                        └─────failed──▶ over: nothing more is shown
        └──finish──▶ over

A returned step is in progress until the caller reports its outcome with `done` or `failed`. While a step is
in progress, no other step is returned.

A draft shows the beginning of the received text, and only grows. A draft never contains an unclosed fence or
an incomplete fence line. When the draft fills one message, it stops growing, and the remaining text is sent
with the final answer. The first part of the final answer may end at a better position than the draft.
"""

import re
from dataclasses import dataclass, replace
from typing import TypeAlias

from postroom.contracts.errors import IllegalTransition
from postroom.gateway.capabilities import ChannelCapabilities
from postroom.gateway.splitting import cut

_MAY_BE_FENCE = re.compile(r" {0,3}(?:`{1,2}|~{1,2}|`{3,}[^`\n]*|~{3,}[^\n]*)")
_CLOSING_FENCE = re.compile(r"(?:\A|\n) {0,3}(?:`{3,}|~{3,})\s*\Z")
_BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)*")


@dataclass(frozen=True, slots=True)
class Look:
    """A version of a draft answer that a chat can show.

    `end` is the number of characters of the answer that the version shows. `is_full` is true if no more text
    fits into the message.
    """

    text: str
    end: int
    is_full: bool
    reasoning: str = ""
    """The reasoning that the model has written so far."""


Step: TypeAlias = Look | None
"""The version of a draft to show now, or None if there is nothing to do."""


class Draft:
    """The draft of one answer in one chat.

    All times are in milliseconds. The caller passes the current time as `now`.
    """

    def __init__(self, capabilities: ChannelCapabilities, *, least_new: int, interval_ms: int) -> None:
        """Create a draft that is updated at most once every `interval_ms` milliseconds.

        An update needs at least `least_new` new characters.
        """
        self._capabilities = capabilities
        self._least_new = least_new
        self._interval_ms = interval_ms
        self._deltas: list[str] = []
        self._thoughts: list[str] = []
        self._length = 0
        self._looked_at = 0
        """The length of the received answer when the last version was created."""
        self._shown: Look | None = None
        self._under_way: Look | None = None
        self._next_look = 0
        self._is_over = False

    def begin_again(self) -> None:
        """Discard the received text when another attempt to write the answer begins.

        The chat shows the old text until the new attempt has written more text.
        """
        self._deltas.clear()
        self._thoughts.clear()
        self._length = self._looked_at = 0

    def stands(self) -> None:
        """Record that the chat already shows a draft of an earlier process."""
        self._shown = Look("", 0, is_full=False)

    def add(self, delta: str, *, now: int) -> Step:
        """Append a piece of text to the answer, and return the draft version to show now, if any."""
        self._deltas.append(delta)
        self._length += len(delta)
        return self.step(now)

    def think(self, delta: str) -> None:
        """Append a piece of text to the reasoning."""
        self._thoughts.append(delta)
        self._length += len(delta)

    def done(self, *, now: int) -> Step:
        """Record that the last update succeeded, and return the draft version to show now, if any.

        Raises:
            IllegalTransition: No step is in progress.
        """
        self._shown = self._end_step("done")
        return self.step(now)

    def failed(self, *, now: int, retry_after_ms: int | None = None) -> Step:
        """Record that the last update failed, and return the draft version to show now, if any.

        The next update is possible after `retry_after_ms` milliseconds. If `retry_after_ms` is None, the
        draft is never updated again.

        Raises:
            IllegalTransition: No step is in progress.
        """
        self._end_step("failed")
        if retry_after_ms is None:
            self._is_over = True
        else:
            self._next_look = max(self._next_look, now + retry_after_ms)
            self._looked_at = 0 if self._shown is None else self._shown.end
        return self.step(now)

    def finish(self) -> bool:
        """End the draft, and return whether the final answer can replace the draft in the chat.

        If the result is False, the answer must be sent as a new message.
        """
        stands = not self._is_over and self._under_way is None and self._shown is not None
        self._is_over = True
        return stands

    def left_ms(self, now: int) -> int | None:
        """Return the milliseconds until the draft may be updated, or None if no update is needed."""
        is_full = self._shown is not None and self._shown.is_full
        few = self._length - self._looked_at < self._least_new
        if self._is_over or self._under_way is not None or is_full or few:
            return None
        return max(self._next_look - now, 0)

    def step(self, now: int) -> Step:
        """Return the draft version to show at the time `now`, or None if no update is due."""
        if self.left_ms(now) != 0:
            return None
        self._looked_at = self._length
        # Find the first part of the received text. Read only as much of the text as one part can contain.
        look: Look | None
        text = "".join(self._deltas)
        self._deltas = [text]
        lead = _BLANK_LINES.match(text)
        start = lead.end() if lead else 0
        text = text[start : start + 2 * self._capabilities.limit]
        line = text.rfind("\n") + 1
        settled = text[:line] if _MAY_BE_FENCE.fullmatch(text, line) else text
        settled = settled.rstrip()
        pieces = cut(settled, limit=self._capabilities.limit, unit=self._capabilities.unit)
        reasoning = "".join(self._thoughts).strip()
        if not pieces:
            look = Look("", 0, is_full=False, reasoning=reasoning) if reasoning else None
        else:
            look = Look(pieces[0].of(settled), start + pieces[0].end, len(pieces) > 1, reasoning)
        shown = self._shown
        if look is None:
            return None
        if shown is not None and look.reasoning != shown.reasoning:
            if look.end < shown.end:
                look = replace(shown, reasoning=look.reasoning)
        elif shown is not None and look.end <= shown.end and not look.is_full:
            return None
        elif shown is not None and (look.end <= shown.end or look.text == shown.text):
            self._shown = replace(shown, end=max(look.end, shown.end), is_full=look.is_full)
            return None
        self._under_way = look
        self._next_look = now + self._interval_ms
        return look

    def _end_step(self, verb: str) -> Look:
        look, self._under_way = self._under_way, None
        if look is None:
            raise IllegalTransition(f"no step of this draft is active, so none can be {verb}", value=verb)
        return look


def settled(draft: str) -> str:
    """Return the part of a draft that later versions will not change."""
    text = draft.rstrip()
    match = _CLOSING_FENCE.search(text)
    return text if match is None else text[: match.start()].rstrip()


def grows_from(draft: str, text: str) -> bool:
    """Return whether a text equals the draft or continues the draft."""
    return text.startswith(settled(draft))
