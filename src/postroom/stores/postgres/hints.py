"""Hints that something happened, within this process and, by LISTEN and NOTIFY, between processes.

Losing a hint costs latency and never correctness: whoever waits for one looks again after a while by itself.
That is why they are sent after the commit, many at once, on a session of their own that does not wait for the
disk: NOTIFY within a transaction would let only one transaction of the database commit at a time.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import blake2b

import structlog

from postroom.concurrency import Tasks
from postroom.contracts.errors import ConfigError, StoreError
from postroom.stores.postgres.database import Database
from postroom.stores.postgres.driver import Clash, Connection, Contended, Notice

_LOG = structlog.get_logger(__name__)

WORK = "w"
"""Something may be claimable."""

LOOK_AGAIN_AFTER = timedelta(seconds=5)
"""How long a waiter trusts that no hint was lost, and how long a lost session stays away at most."""
TOGETHER_WITHIN = timedelta(milliseconds=10)
"""Hints are sent at most once in this time."""
_SEND = "SELECT pg_notify($1::text, word) FROM unnest($2::text[]) AS word"


def about(kind: str, name: str) -> str:
    """Return the short word for something that has a name."""
    return kind + blake2b(name.encode(errors="surrogatepass"), digest_size=8).hexdigest()


class Hint:
    """Whether a word was said since it was last asked for."""

    def __init__(self) -> None:
        self._said = asyncio.Event()

    def come(self) -> None:
        """Wake whoever waits; harmless when nobody does."""
        self._said.set()

    async def wait(self, at_most: timedelta = LOOK_AGAIN_AFTER) -> None:
        """Return when the word was said since the last call, or when it is time to look again."""
        try:
            async with asyncio.timeout(at_most.total_seconds()):
                await self._said.wait()
        except TimeoutError:
            return
        self._said.clear()


class Hints:
    """Who waits for which word, and the session on which words come and go."""

    def __init__(self, database: Database, tasks: Tasks) -> None:
        self._database = database
        self._tasks = tasks
        self.channel = about("postroom_", database.schema)
        self._waiting: dict[str, set[Hint]] = {}
        self._owed: set[str] = set()
        self._changed = asyncio.Event()
        self._listening = asyncio.Event()

    def start(self) -> None:
        """Begin to hear other processes, and keep at it through whatever becomes of the session."""
        self._tasks.start(self._keep_listening(), name="hints")

    @property
    def is_listening(self) -> bool:
        """Whether other processes are heard now."""
        return self._listening.is_set()

    async def listening(self) -> None:
        """Return when other processes are heard."""
        await self._listening.wait()

    def tell(self, word: str, *, elsewhere: bool = True) -> None:
        """Wake those who wait for a word here and, unless it matters here alone, in other processes."""
        self._wake(word)
        if elsewhere and self._listening.is_set():
            self._owed.add(word)
            self._changed.set()

    def hear(self, word: str) -> Hint:
        """Hear a word from now on."""
        hint = Hint()
        self._waiting.setdefault(word, set()).add(hint)
        return hint

    def forget(self, word: str, hint: Hint) -> None:
        """Hear it no more; harmless when done twice."""
        there = self._waiting.get(word, set())
        there.discard(hint)
        if not there:
            self._waiting.pop(word, None)

    @contextmanager
    def heard(self, word: str) -> Iterator[Hint]:
        """Hear a word within the block."""
        hint = self.hear(word)
        try:
            yield hint
        finally:
            self.forget(word, hint)

    def _wake(self, word: str) -> None:
        for hint in self._waiting.get(word, ()):
            hint.come()

    def _wake_all(self) -> None:
        for word in self._waiting:
            self._wake(word)

    async def _keep_listening(self) -> None:
        pause = TOGETHER_WITHIN
        while True:
            try:
                await self._listen_once()
                pause = TOGETHER_WITHIN
            except (StoreError, ConfigError, Clash, Contended) as error:
                _LOG.warning("store.hints_lost", reason=str(error))
            self._listening.clear()
            self._wake_all()
            await asyncio.sleep(pause.total_seconds())
            pause = min(pause * 2, LOOK_AGAIN_AFTER)

    async def _listen_once(self) -> None:
        session = await self._database.connect(synchronous_commit="off")
        try:
            await session.listen(self.channel, self._heard, self._changed.set)
            self._listening.set()
            self._wake_all()  # what was said while nobody listened
            while not session.closed:
                await self._send_some(session)
        finally:
            await session.end()

    async def _send_some(self, session: Connection) -> None:
        """Send what is owed; nothing at all now and then, to notice a session that is gone."""
        try:
            async with asyncio.timeout(LOOK_AGAIN_AFTER.total_seconds()):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()
        words, self._owed = sorted(self._owed), set()
        await session.rows(_SEND, self.channel, words)
        await asyncio.sleep(TOGETHER_WITHIN.total_seconds())

    def _heard(self, notice: Notice) -> None:
        if not notice.own:
            self._wake(notice.word)
