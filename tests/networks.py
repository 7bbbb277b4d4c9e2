"""Separate networks on this machine, each with a cable to it, by which the database is reached.

What a test serves to those in a network is served on the loopback there (`listening`), and what listens on
their loopback is found on that of this machine and of the others (`found_from_everywhere`). So all is at the same
addresses as without networks, and none of it goes by the cable but the database.

They need the right to make networks (`ip netns`), as root has it on most machines.
"""

import asyncio
import ctypes
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from typing_extensions import override

from faults.cutting_proxy import CuttingProxy

LOOPBACK: Final = "127.0.0.1"
_LIBRARY: Final = ctypes.CDLL(None, use_errno=True)
_OF_NETWORKS: Final = 0x40000000
"""CLONE_NEWNET; Python 3.12 has it, and `os.setns`."""
_NUMBERS: Final = count()


@dataclass(frozen=True)
class Network:
    """One of them."""

    name: str
    here: str
    """Where this machine is found by the cable."""

    @property
    def within(self) -> tuple[str, ...]:
        """The words that start a program there."""
        return ("ip", "netns", "exec", self.name)

    def listening(self, port: int = 0) -> socket.socket:
        """Return a socket that listens on the loopback of that network, for this process."""
        return self._made_there(lambda: socket.create_server((LOOPBACK, port)))

    async def connected(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection to what listens on the loopback there.

        Raises:
            OSError: nothing does.
        """
        made = self._made_there(socket.socket)
        made.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(made, (LOOPBACK, port))
        except OSError:
            made.close()
            raise
        return await asyncio.open_connection(sock=made)

    def cut_off(self) -> None:
        """Pull the cable out: no data passes, in either direction, and no process is notified."""
        _ip("link", "set", self.name, "down")

    def join(self) -> None:
        """Put it back in."""
        _ip("link", "set", self.name, "up")

    def _made_there(self, make: Callable[[], socket.socket]) -> socket.socket:
        """Return a socket that a thread has made there; it stays there when the thread ends."""

        def go() -> socket.socket:
            with Path("/run/netns", self.name).open() as there:
                if _LIBRARY.setns(there.fileno(), _OF_NETWORKS):
                    raise OSError(ctypes.get_errno(), f"no thread may be in network {self.name}")
            return make()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(go).result()


class _Door(CuttingProxy):
    """Passes on what comes to a port, to the same port in a network."""

    def __init__(self, there: Network, port: int) -> None:
        super().__init__(LOOPBACK, port)
        self._there, self._port = there, port

    @override
    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await self._there.connected(self._port)


@asynccontextmanager
async def found_from_everywhere(apart: Sequence[Network], ports: Sequence[int]) -> AsyncIterator[None]:
    """Pass on to each network what comes to its port here, or in another network."""
    async with AsyncExitStack() as stack:
        for one, port in zip(apart, ports, strict=True):
            door = _Door(one, port)
            others = [other.listening(port) for other in apart if other is not one]
            for listening in (socket.create_server((LOOPBACK, port)), *others):
                server = await asyncio.start_server(door.serve, sock=listening)
                stack.callback(server.close)
            stack.callback(door.cut_all)
        yield


def missing_networks() -> str | None:
    """Return why no network can be made here, or None."""
    try:
        with networks(1) as [one]:
            one.listening().close()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network of one's own can be made: {error}"
    return None


@contextmanager
def networks(number: int) -> Iterator[list[Network]]:
    """Yield this many networks, and remove them.

    Raises:
        OSError, CalledProcessError: they cannot be made.
    """
    # No name comes twice: a process that was left in an earlier one is found by its name (`forked`).
    mark, block = f"pr{os.getpid() % 100_000}x{next(_NUMBERS)}", f"10.213.{os.getpid() % 250}"
    with ExitStack() as stack:
        found = []
        for place in range(number):
            one = Network(f"{mark}n{place}", f"{block}.{4 * place + 1}")
            _made(stack, "netns", one.name)
            _made(stack, "link", one.name, "type", "veth", "peer", "name", "cable", "netns", one.name)
            _ip("address", "add", f"{one.here}/30", "dev", one.name)
            _ip("link", "set", one.name, "up")
            _ip("-n", one.name, "address", "add", f"{block}.{4 * place + 2}/30", "dev", "cable")
            for device in ("cable", "lo"):
                _ip("-n", one.name, "link", "set", device, "up")
            found.append(one)
        yield found


def _made(stack: ExitStack, kind: str, name: str, *words: str) -> None:
    _ip(kind, "add", name, *words)
    stack.callback(_take_down, kind, name)


def _take_down(kind: str, name: str) -> None:
    with suppress(subprocess.CalledProcessError):  # a cable goes with its network
        _ip(kind, "delete", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
