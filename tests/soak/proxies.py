"""A proxy before the database as a separate process: its traffic does not wait for callers of the storm.

`python -m soak.proxies <dsn> <host>` prints its address and does as each line that it reads says.
"""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from faults.cutting_proxy import a_proxy

CUT_OFF, JOINED = "cut off\n", "joined\n"


class Proxy:
    """One that runs; `running` gives it."""

    def __init__(self, process: Process, dsn: str) -> None:
        self._process = process
        self.dsn = dsn
        """Where the database is found through it."""

    def cut_off(self) -> None:
        """Pass nothing on, and break nothing: as a cable that was pulled out."""
        self._say(CUT_OFF)

    def join(self) -> None:
        """Pass new connections on, and break all that there are."""
        self._say(JOINED)

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word.encode())


@asynccontextmanager
async def running(dsn: str, host: str = "127.0.0.1") -> AsyncIterator[Proxy]:
    """Run one before a database while the block lasts, at an address of this machine."""
    words = (sys.executable, "-m", "soak.proxies", dsn, host)
    finds = {"PYTHONPATH": str(Path(__file__).parents[1])}
    process = await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, env=os.environ | finds)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Proxy(process, (await process.stdout.readline()).decode().strip())
    finally:
        process.stdin.close()
        await process.wait()


async def main(dsn: str, host: str) -> None:
    """Serve until no client sends anything."""
    asked = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin)
    async with a_proxy(dsn, host) as (proxy, at):
        print(at, flush=True)
        while word := (await asked.readline()).decode():
            proxy.is_cut_off = word == CUT_OFF
            if word == JOINED:
                proxy.cut_all()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
