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
    """A version of a draft to show in a chat.

    `end` is the number of the answer's characters that the version shows. `is_full` is true if no more text
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

    The caller passes the current time to each method, in milliseconds.
    """

    def __init__(self, capabilities: ChannelCapabilities, *, least_new: int, interval_ms: int) -> None:
        """Show a new version after `least_new` new characters and `interval_ms` since the last version."""
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
        """Discard the received text, because another attempt begins. The chat still shows the old text.

        The old text is replaced when the new attempt has written more text than the chat shows, or by the
        final answer.
        """
        self._deltas.clear()
        self._thoughts.clear()
        self._length = self._looked_at = 0

    def stands(self) -> None:
        """Record that the chat already shows a draft of another process."""
        self._shown = Look("", 0, is_full=False)

    def add(self, delta: str, *, now: int) -> Step:
        """Add the next piece of the answer and return the next step."""
        self._deltas.append(delta)
        self._length += len(delta)
        return self.step(now)

    def think(self, delta: str) -> None:
        """Add the next piece of the reasoning. The next call of `step` shows the piece."""
        self._thoughts.append(delta)
        self._length += len(delta)

    def done(self, *, now: int) -> Step:
        """Record that the chat shows the draft of the last step, and return the next step.

        Raises:
            IllegalTransition: No step is in progress.
        """
        self._shown = self._end_step("done")
        return self.step(now)

    def failed(self, *, now: int, retry_after_ms: int | None = None) -> Step:
        """Record that the draft could not be shown, and return the next step.

        After `retry_after_ms`, the newest version is shown. If `retry_after_ms` is None, the draft ends, and
        nothing more is shown.

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
        """End the draft, and return whether it can be edited into the answer.

        If the draft cannot be edited into the answer, the answer must be sent as a new message.
        """
        stands = not self._is_over and self._under_way is None and self._shown is not None
        self._is_over = True
        return stands

    def left_ms(self, now: int) -> int | None:
        """Return the milliseconds until a new version may be shown, or None without enough new text."""
        is_full = self._shown is not None and self._shown.is_full
        few = self._length - self._looked_at < self._least_new
        if self._is_over or self._under_way is not None or is_full or few:
            return None
        return max(self._next_look - now, 0)

    def step(self, now: int) -> Step:
        """Return the step that is due at time `now`."""
        return self._look(now) if self.left_ms(now) == 0 else None

    def _end_step(self, verb: str) -> Look:
        look, self._under_way = self._under_way, None
        if look is None:
            raise IllegalTransition(f"no step of this draft is active, so none can be {verb}", value=verb)
        return look

    def _look(self, now: int) -> Step:
        """Return a step that shows the received text, if the chat shows less text."""
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


def settled(draft: str) -> str:
    """Return the part of a draft that later versions will not change.

    White space at the end is removed, and so is a closing fence that was added only for display.
    """
    text = draft.rstrip()
    match = _CLOSING_FENCE.search(text)
    return text if match is None else text[: match.start()].rstrip()


def grows_from(draft: str, text: str) -> bool:
    """Return whether a text equals the draft or continues it."""
    return text.startswith(settled(draft))
