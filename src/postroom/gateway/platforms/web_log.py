"""What one person's chat shows: a bounded log of entries, each as it stands now, and who watches it.

Each change of an entry has a number of its own; who watched up to a number is told what changed since. An
entry that changed often is told once, as it stands. The log is in memory; a restart begins a new one, whose
name (`epoch`) is part of each number, so that numbers of different logs are never mixed up.
"""

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from postroom import sse
from postroom.contracts.records import replace
from postroom.gateway.drafts import grows_from
from postroom.gateway.events import Card
from postroom.gateway.platforms.http_adapter import Refused

MOST_ENTRIES: Final = 500
MOST_CHARACTERS: Final = 5_000_000
MOST_WATCHERS: Final = 16
RETRY_MS: Final = 2_000
_EVENT_ID: Final = re.compile(r"([0-9a-f]{8})-([0-9]{1,15})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFile:
    """A file that an entry shows; its bytes are in the store."""

    sha256: str
    name: str
    media_type: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that the chat shows."""

    entry_id: str
    kind: str
    """`message`: said by the person; `answer` and `card`: said to the person."""
    text: str
    at: int
    order: int = 0
    """Where it stands: above those with a greater one. Later logs go on where earlier ones ended."""
    version: int = 0
    draft: bool = False
    gone: bool = False
    edited: bool = False
    answered: bool = False
    """Of a message: an answer to it has begun, or a question about it is asked."""
    answers: tuple[str, ...] = ()
    said_as: str = ""
    """Of an answer: the id it was given when it was said, whatever place it took."""
    buttons: tuple[tuple[str, str], ...] = ()
    files: tuple["ShownFile", ...] = ()

    def shown(self) -> dict[str, Any]:
        """Return what the page is told."""
        return {
            "id": self.entry_id,
            "kind": self.kind,
            "text": self.text,
            "at": self.at,
            "order": self.order,
            "draft": self.draft,
            "gone": self.gone,
            "edited": self.edited,
            "answered": self.answered,
            "buttons": [{"label": label, "value": value} for label, value in self.buttons],
            "files": [
                {"id": file.sha256, "name": file.name, "type": file.media_type, "size": file.size}
                for file in self.files
            ],
        }


class Watcher:
    """One open page."""

    def __init__(self) -> None:
        self.is_typing = False
        self.beats = False
        self.ended = False
        self.news = asyncio.Event()


class ChatLog:
    """The log of one chat."""

    def __init__(self, epoch: str) -> None:
        self._epoch = epoch
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._version = 0
        self._order = 0
        self._forgotten = 0
        """The greatest number of an entry that fell away."""
        self._characters = 0
        self._watchers: set[Watcher] = set()

    # What it shows.

    def find(self, entry_id: str) -> Entry | None:
        """Return an entry as it stands."""
        return self._entries.get(entry_id)

    def file(self, sha256: str) -> ShownFile | None:
        """Return a file that some entry shows."""
        shown = (file for entry in self._entries.values() for file in entry.files)
        return next((file for file in shown if file.sha256 == sha256), None)

    def put(self, entry: Entry) -> None:
        """Show an entry: a new one at the end, one that is known in its place."""
        self._version += 1
        old = self._entries.get(entry.entry_id)
        if old is None:
            # The time, so that it grows over restarts too.
            self._order = max(self._order + 1, entry.at)
        order = self._order if old is None else old.order
        self._entries[entry.entry_id] = replace(entry, order=order, version=self._version)
        self._characters += len(entry.text) - (0 if old is None else len(old.text))
        while len(self._entries) > MOST_ENTRIES or (
            self._characters > MOST_CHARACTERS and len(self._entries) > 1
        ):
            _, gone = self._entries.popitem(last=False)
            self._characters -= len(gone.text)
            self._forgotten = max(self._forgotten, gone.version)
        self._wake()

    def change(self, entry_id: str, **fields: Any) -> bool:
        """Show an entry otherwise, and say whether it is known."""
        found = self._entries.get(entry_id)
        if found is not None:
            self.put(replace(found, **fields))
        return found is not None

    def answer(self, entry_id: str, text: str, answers: Iterable[str], *, final: bool, at: int) -> str:
        """Show a part of an answer, in the place of the draft that it grew from, and return its id."""
        answered = tuple(answers)
        self.read(answered)
        drafts = [one for one in self._entries.values() if one.draft and set(one.answers) & set(answered)]
        grown = drafts[-1] if drafts and grows_from(drafts[-1].text, text) else None
        said = [one for one in self._entries.values() if one.said_as == entry_id]
        grown = said[-1] if said else grown
        shown_as = entry_id if grown is None else grown.entry_id
        for draft in drafts:
            if final and draft is not grown:
                self.change(draft.entry_id, draft=False)
        self.put(
            Entry(
                entry_id=shown_as,
                kind="answer",
                text=text,
                at=at,
                draft=bool(answered) and not final,
                answers=answered,
                said_as=entry_id,
            )
        )
        return shown_as

    def read(self, message_ids: Iterable[str]) -> None:
        """Show that messages were read, so that they cannot be changed any more."""
        for message_id in message_ids:
            message = self._entries.get(message_id)
            if message is not None and not message.answered:
                self.change(message_id, answered=True)

    def card(self, entry_id: str, card: Card, *, at: int) -> None:
        """Show a card, or a known one as it stands now."""
        buttons = tuple((one.label, one.value) for one in card.buttons)
        self.put(Entry(entry_id=entry_id, kind="card", text=card.text, at=at, buttons=buttons))

    # Who watches.

    def typing(self) -> None:
        """Show that an answer is being written."""
        for watcher in self._watchers:
            watcher.is_typing = True
        self._wake()

    def beat(self) -> None:
        """Let each page have a sign of life, and those whose session has ended go."""
        for watcher in self._watchers:
            watcher.beats = True
        self._wake()

    def end(self) -> None:
        """End all that watch."""
        for watcher in self._watchers:
            watcher.ended = True
        self._wake()

    def watch(self) -> Watcher:
        """Begin to watch.

        Raises:
            Refused: too many do.
        """
        if len(self._watchers) >= MOST_WATCHERS:
            raise Refused(429, "too_many_pages", f"{MOST_WATCHERS} pages are open already", retry_after=10)
        watcher = Watcher()
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Watch no longer; harmless when done twice."""
        self._watchers.discard(watcher)

    async def events(
        self, watcher: Watcher, last_id: str | None, *, may_watch: Callable[[], bool]
    ) -> AsyncGenerator[str]:
        """Yield what changed since `last_id`, then every change as it comes, until nobody may watch."""
        yield sse.retry(RETRY_MS)
        seen, is_whole = self._seen(last_id)
        if not is_whole:
            yield sse.entry("reset", "{}")
        while not watcher.ended and may_watch():
            watcher.news.clear()
            changed = [one for one in self._entries.values() if one.version > seen]
            for entry in sorted(changed, key=lambda one: one.version):
                seen = entry.version
                yield sse.entry("entry", json.dumps(entry.shown()), number=f"{self._epoch}-{seen}")
            if watcher.is_typing:
                watcher.is_typing = False
                yield sse.entry("typing", "{}")
            if watcher.beats:
                watcher.beats = False
                yield sse.beat()
            await watcher.news.wait()

    def _seen(self, last_id: str | None) -> tuple[int, bool]:
        """Return the number up to which a page has seen this log, and whether it missed nothing since."""
        if last_id is None:
            return 0, True
        found = _EVENT_ID.fullmatch(last_id)
        if found is None or found[1] != self._epoch or int(found[2]) > self._version:
            return 0, False
        seen = int(found[2])
        return (seen, True) if seen >= self._forgotten else (0, False)

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.news.set()
