"""The recent entries of one person's conversations, and the pages that watch them.

Each change of an entry has a number. A page that saw the changes up to a number gets the later ones. It gets
an entry that changed several times once, in its latest state. The log is in memory and holds the newest
entries and the drafts; the store holds every entry except drafts. A restart begins a new log, whose name
(`epoch`) is part of each number, so that the numbers of two logs differ.
"""

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from postroom import sse
from postroom.contracts.messages import Json
from postroom.contracts.records import Record, replace
from postroom.gateway.drafts import grows_from
from postroom.gateway.platforms.http_adapter import Refused

MOST_ENTRIES: Final = 500
MOST_CHARACTERS: Final = 5_000_000
MOST_WATCHERS: Final = 16
CHARACTERS_A_MS: Final = 32
"""Characters of a draft for which the server waits 1 ms before it sends the next state of the draft.

The server renders the whole draft each time, so it renders a long draft less often."""
LONGEST_WAIT_MS: Final = 1_000
_ALIVE: Final = sse.entry("alive", "{}")
MAIN: Final = "main"
"""The conversation for mail, reminders and notices, which belong to no other conversation."""
_EVENT_ID: Final = re.compile(r"([0-9a-f]{8})-([0-9]{1,15})")


class ShownFile(Record, frozen=True, kw_only=True):
    """A file that an entry shows; its bytes are in the store."""

    sha256: str
    name: str
    media_type: str
    size: int

    def shown(self) -> dict[str, Json]:
        """Return the file as the page gets it."""
        return {"id": self.sha256, "name": self.name, "type": self.media_type, "size": self.size}


class Entry(Record, frozen=True, kw_only=True):
    """A message, an answer or a question that the page shows."""

    entry_id: str
    kind: str
    """`message`: said by the person; `answer` and `card`: said to the person."""
    text: str
    reasoning: str = ""
    """In an answer: the reasoning of the model, which is not part of the text."""
    at: int
    conversation: str = MAIN
    order: int = 0
    """The position. Entries are shown in this order, and a restart does not begin the positions again."""
    version: int = 0
    draft: bool = False
    gone: bool = False
    edited: bool = False
    failed: bool = False
    """Whether the answer reports a failure, so that the page offers to try again."""
    answered: bool = False
    """In a message: whether an agent has begun to answer it or has asked a question about it."""
    answers: tuple[str, ...] = ()
    said_as: str = ""
    """In an answer: the id with which the gateway sent it, even if it replaced a draft."""
    buttons: tuple[tuple[str, str], ...] = ()
    asks: bool = True
    """In a card: whether a run waits until a button is pressed. False for the answer to a command."""
    files: tuple[ShownFile, ...] = ()

    @property
    def length(self) -> int:
        """The characters of its text and its reasoning."""
        return len(self.text) + len(self.reasoning)

    def shown(self) -> dict[str, Any]:
        """Return the entry as the page gets it, without HTML."""
        return {
            "id": self.entry_id,
            "conversation": self.conversation,
            "kind": self.kind,
            "text": self.text,
            "reasoning": self.reasoning,
            "at": self.at,
            "order": self.order,
            "draft": self.draft,
            "gone": self.gone,
            "edited": self.edited,
            "failed": self.failed,
            "answered": self.answered,
            "asks": self.asks,
            "buttons": [{"label": label, "value": value} for label, value in self.buttons],
            "files": [file.shown() for file in self.files],
        }

    def to_body(self) -> dict[str, Json]:
        """Return the entry as the store keeps it."""
        body: dict[str, Json] = msgspec.to_builtins(self)
        return body

    @classmethod
    def from_body(cls, body: dict[str, Json]) -> "Entry":
        """Return the entry from a body that `to_body` made, with version 0."""
        return replace(msgspec.convert(body, cls), version=0)


class Watcher:
    """One open page."""

    def __init__(self) -> None:
        self.waiting: dict[str, None] = {}
        """The events without a number that the page did not get yet, each once."""
        self.ended = False
        self.news = asyncio.Event()


class ChatLog:
    """The log of one person."""

    def __init__(self, epoch: str) -> None:
        self._epoch = epoch
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._version = 0
        self.newest_order = 0
        """The greatest position of any entry of this person, in the log or in the store."""
        self._forgotten = 0
        """The greatest number of an entry that the log dropped to make room."""
        self._characters = 0
        self._watchers: set[Watcher] = set()

    # What it shows.

    @property
    def number(self) -> str:
        """The number of the newest change."""
        return f"{self._epoch}-{self._version}"

    def find(self, entry_id: str) -> Entry | None:
        """Return an entry; None if the log does not hold it."""
        return self._entries.get(entry_id)

    def drafts(self, conversation: str) -> list[Entry]:
        """Return the drafts of a conversation."""
        return [one for one in self._entries.values() if one.draft and one.conversation == conversation]

    def has_answer(self, message_id: str) -> bool:
        """Return whether an answer to a message is shown."""
        return any(message_id in one.answers for one in self._entries.values())

    def file(self, sha256: str) -> ShownFile | None:
        """Return a file that some entry shows."""
        shown = (file for entry in self._entries.values() for file in entry.files)
        return next((file for file in shown if file.sha256 == sha256), None)

    def next_order(self, at: int) -> int:
        """Reserve the position of a new entry and return it."""
        self.newest_order = max(self.newest_order + 1, at)
        return self.newest_order

    def placed(self, entry: Entry) -> Entry:
        """Return an entry with its position: that of the known entry with its id, or a new one."""
        known = self._entries.get(entry.entry_id)
        if known is not None:
            return replace(entry, order=known.order)
        return entry if entry.order else replace(entry, order=self.next_order(entry.at))

    def put(self, entry: Entry) -> None:
        """Show an entry to the pages that watch; it replaces the entry with its id."""
        self._version += 1
        entry = self.placed(entry)
        old = self._entries.get(entry.entry_id)
        self._entries[entry.entry_id] = replace(entry, version=self._version)
        self._characters += entry.length - (0 if old is None else old.length)
        while len(self._entries) > MOST_ENTRIES or (
            self._characters > MOST_CHARACTERS and len(self._entries) > 1
        ):
            _, gone = self._entries.popitem(last=False)
            self._characters -= gone.length
            self._forgotten = max(self._forgotten, gone.version)
        self._wake()

    def forget(self, conversation: str) -> None:
        """Remove the entries of a deleted conversation."""
        for entry_id in [key for key, one in self._entries.items() if one.conversation == conversation]:
            self._characters -= self._entries.pop(entry_id).length

    def answer(
        self,
        entry_id: str,
        text: str,
        answers: Iterable[str],
        *,
        draft: bool,
        at: int,
        reasoning: str = "",
        **fields: Any,
    ) -> list[Entry]:
        """Return the entries that a part of an answer changes: the drafts that it ends, and last the answer.

        The answer replaces the draft that it grew from, and keeps its reasoning if it brings none. The caller
        shows the entries.
        """
        answered = tuple(answers)
        drafts = [one for one in self._entries.values() if one.draft and set(one.answers) & set(answered)]
        grown = drafts[-1] if drafts and grows_from(drafts[-1].text, text) else None
        said = [one for one in self._entries.values() if one.said_as == entry_id]
        grown = said[-1] if said else grown
        ended = [replace(one, draft=False) for one in drafts if not draft and one is not grown]
        entry = Entry(
            entry_id=entry_id if grown is None else grown.entry_id,
            kind="answer",
            text=text,
            reasoning=reasoning or ("" if grown is None else grown.reasoning),
            at=at,
            draft=draft,
            answers=answered,
            said_as=entry_id,
            **fields,
        )
        return [*ended, entry]

    # Who watches.

    def typing(self, conversation: str) -> None:
        """Show that an answer is being written in a conversation."""
        self._tell(sse.entry("typing", json.dumps({"conversation": conversation})))

    def list_anew(self) -> None:
        """Make the pages read the list of conversations again."""
        self._tell(sse.entry("conversations", "{}"))

    def beat(self) -> None:
        """Send each page a heartbeat, and disconnect those whose session has ended."""
        self._tell(_ALIVE)

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
            raise Refused(
                429, "too_many_pages", f"{MOST_WATCHERS} pages are already open, the maximum", retry_after=10
            )
        watcher = Watcher()
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Watch no longer; harmless when done twice."""
        self._watchers.discard(watcher)

    async def events(
        self,
        watcher: Watcher,
        last_id: str | None,
        *,
        may_watch: Callable[[], Awaitable[bool]],
        render: Callable[[Sequence[Entry]], Awaitable[list[dict[str, Any]]]],
        wait: Callable[[int], Awaitable[None]],
    ) -> AsyncGenerator[str]:
        """Yield what changed since `last_id`, then every change as it comes, until nobody may watch.

        `may_watch` is asked at each beat; `render` returns entries as the page gets them; `wait` waits for a
        number of milliseconds.
        """
        seen, is_whole = self._seen(last_id)
        if not is_whole:
            yield sse.entry("reset", "{}")
        while not watcher.ended:
            watcher.news.clear()
            others, watcher.waiting = watcher.waiting, {}
            if _ALIVE in others and not await may_watch():
                return
            changed = [one for one in self._entries.values() if one.version > seen]
            changed.sort(key=lambda one: one.version)
            for entry, told in zip(changed, await render(changed), strict=True):
                seen = entry.version
                yield sse.entry("entry", json.dumps(told), number=f"{self._epoch}-{seen}")
            for event in others:
                yield event
            drawn = sum(one.length for one in changed if one.draft)
            if pause := min(drawn // CHARACTERS_A_MS, LONGEST_WAIT_MS):
                await wait(pause)
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

    def _tell(self, event: str) -> None:
        for watcher in self._watchers:
            watcher.waiting[event] = None
        self._wake()

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.news.set()
