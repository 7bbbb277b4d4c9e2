"""What a chat is shown while an answer is written: a decision for each delta and instant, without any I/O.

                     Show / Edit                     failed(retry_after_ms): waits so long, then goes on
    collecting ─────────────────▶ under way ──done──▶ collecting
        │                             └─────failed──▶ final only: nothing more is shown
        └──finish──▶ Final, once; everything after that is Nothing

How an answer is presented is chosen once, from what the channel can do. A step that was returned is under way
until `done` or `failed` says what became of it; in between there is nothing to do, whatever comes in.

A draft is the first part of what is known of the answer. It only ever grows, holds no open fence and no half
line of one, and stands still when it is full. What follows comes with the final, whose first part may be cut
at a better place than the draft was.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from postroom.contracts.errors import IllegalTransition, InvalidArgument
from postroom.gateway.capabilities import ChannelCapabilities
from postroom.gateway.splitting import cut, split

_MAY_BE_FENCE = re.compile(r" {0,3}(?:`{1,2}|~{1,2}|`{3,}[^`\n]*|~{3,}[^\n]*)")
_CLOSING_FENCE = re.compile(r"(?:\A|\n) {0,3}(?:`{3,}|~{3,})\s*\Z")
_BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)*")


class Presentation(StrEnum):
    """How an answer appears in a chat."""

    STREAM = "stream"
    """As a draft that is no message; the final is sent whole."""
    EDIT = "edit"
    """As a message that is edited until it is the first part of the final."""
    FINAL_ONLY = "final_only"
    """When it is finished."""

    @classmethod
    def of(cls, capabilities: ChannelCapabilities) -> "Presentation":
        """Return the liveliest that the channel can do."""
        if capabilities.streams:
            return cls.STREAM
        return cls.EDIT if capabilities.edits else cls.FINAL_ONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRules:
    """How often a draft is worth a look, and whether the parts of a final are numbered.

    Raises:
        InvalidArgument: `least_new` is under 1.
    """

    least_new: int = 24
    """Characters that must have come since the last look."""
    numbered: bool = False

    def __post_init__(self) -> None:
        if self.least_new < 1:
            raise InvalidArgument(f"least_new is {self.least_new}: give 1 or more", value=self.least_new)


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """Show this draft: nothing was shown yet."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Show this instead of the draft."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """Do nothing."""

    again_at: int | None = None
    """When there will be something to show, should nothing else come before; in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """Deliver the answer in these parts, in order; there is none when the answer is blank."""

    parts: tuple[str, ...]
    edits_first: bool = False
    """The first part takes the draft's place by an edit; otherwise all are sent."""
    first_is_shown: bool = False
    """The draft reads as the first part already: there is nothing to edit."""
    not_before: int | None = None
    """The platform asked to be left alone until then."""


Step: TypeAlias = Show | Edit | Nothing | Final


@dataclass(frozen=True, slots=True)
class _Look:
    """A draft as it is shown: its text, how far into the answer it reaches, and whether more would fit."""

    text: str
    end: int
    is_full: bool


class Draft:
    """One answer on its way into one chat. Instants are in milliseconds; it has no clock of its own."""

    def __init__(self, capabilities: ChannelCapabilities, rules: DraftRules | None = None) -> None:
        self._capabilities = capabilities
        self._rules = rules or DraftRules()
        self._presentation = Presentation.of(capabilities)
        self._deltas: list[str] = []
        self._length = 0
        self._looked_at = 0
        """How much of the answer had come at the last look."""
        self._shown: _Look | None = None
        self._under_way: _Look | None = None
        self._next_look = 0
        self._left_alone_until = 0
        self._finish: str | None = None
        self._is_over = False

    @property
    def presentation(self) -> Presentation:
        """How the answer is presented from now on."""
        return self._presentation

    def add(self, delta: str, *, now: int) -> Step:
        """Take the next piece of the answer and say what to do; after `finish` it changes nothing."""
        if self._finish is None:
            self._deltas.append(delta)
            self._length += len(delta)
        return self.step(now=now)

    def step(self, *, now: int) -> Step:
        """Say what to do at this instant, nothing having come."""
        if self._is_over or self._under_way is not None:
            return Nothing()
        if self._finish is not None:
            return self._final(self._finish, now)
        if self._presentation is Presentation.FINAL_ONLY or (self._shown is not None and self._shown.is_full):
            return Nothing()
        if self._length - self._looked_at < self._rules.least_new:
            return Nothing()
        due = max(self._next_look, self._left_alone_until)
        return Nothing(again_at=due) if now < due else self._look(now)

    def done(self, *, now: int) -> Step:
        """Take note that the draft is shown as the last step said, and say what to do.

        Raises:
            IllegalTransition: no step is under way.
        """
        self._shown = self._end_step("done")
        return self.step(now=now)

    def failed(self, *, now: int, retry_after_ms: int | None = None) -> Step:
        """Take note that the draft could not be shown, and say what to do.

        With `retry_after_ms` the platform is left alone for so long, then shown what there is by then.
        Without, nothing but the final follows, and that edits nothing.

        Raises:
            IllegalTransition: no step is under way.
        """
        self._end_step("failed")
        if retry_after_ms is None:
            self._presentation = Presentation.FINAL_ONLY
        else:
            self._left_alone_until = max(self._left_alone_until, now + retry_after_ms)
            self._looked_at = 0 if self._shown is None else self._shown.end
        return self.step(now=now)

    def finish(self, text: str | None = None, *, now: int) -> Step:
        """Take the end of the answer and say what to do: the final, at once or when a step has ended.

        `text` is the whole answer where it is known better than from the deltas. Only the first call counts.
        """
        if self._finish is None:
            self._finish = self._text() if text is None else text
        return self.step(now=now)

    def _end_step(self, verb: str) -> _Look:
        look, self._under_way = self._under_way, None
        if look is None:
            raise IllegalTransition(f"no step of the draft is under way that could be {verb}", value=verb)
        return look

    def _text(self) -> str:
        self._deltas = ["".join(self._deltas)]
        return self._deltas[0]

    def _look(self, now: int) -> Step:
        """Show what there is, if it is more than what is shown."""
        self._looked_at = self._length
        look, shown = self._draw(), self._shown
        if look is None or (shown is not None and look.end <= shown.end and not look.is_full):
            return Nothing()
        if shown is not None and (look.end <= shown.end or look.text == shown.text):
            self._shown = _Look(shown.text, max(look.end, shown.end), look.is_full)
            return Nothing()
        self._under_way = look
        self._next_look = now + self._capabilities.min_edit_interval_ms
        return Show(text=look.text) if shown is None else Edit(text=look.text)

    def _draw(self) -> _Look | None:
        """Return the first part of what has come, or None when that is blank.

        It reads no more of the answer than can matter for one part.
        """
        text = self._text()
        lead = _BLANK_LINES.match(text)
        start = lead.end() if lead else 0
        text = text[start : start + 2 * self._capabilities.limit]
        line = text.rfind("\n") + 1
        settled = text[:line] if _MAY_BE_FENCE.fullmatch(text, line) else text
        settled = settled.rstrip()
        pieces = cut(settled, limit=self._capabilities.limit, unit=self._capabilities.unit)
        if not pieces:
            return None
        return _Look(pieces[0].of(settled), start + pieces[0].end, len(pieces) > 1)

    def _final(self, text: str, now: int) -> Final:
        self._is_over = True
        limit, unit = self._capabilities.limit, self._capabilities.unit
        parts = split(text, limit=limit, unit=unit, numbered=self._rules.numbered)
        edits = self._presentation is Presentation.EDIT and self._shown is not None and bool(parts)
        return Final(
            parts=parts,
            edits_first=edits,
            first_is_shown=edits and self._shown is not None and self._shown.text == parts[0],
            not_before=self._left_alone_until if self._left_alone_until > now else None,
        )


def settled(draft: str) -> str:
    """Return what of a draft surely stays: without white space and a fence that closes it for show."""
    text = draft.rstrip()
    found = _CLOSING_FENCE.search(text)
    return text if found is None else text[: found.start()].rstrip()


def grows_from(draft: str, text: str) -> bool:
    """Say whether a text is the draft, grown or finished."""
    return text.startswith(settled(draft))
