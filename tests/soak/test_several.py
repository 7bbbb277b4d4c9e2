"""Three servers on one PostgreSQL with Caddy as proxy, under all faults: no message is lost or doubled, no work done twice at once.

`make soak-servers` is the long one.
"""

import asyncio
import json
import os
import signal
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from balancer import missing_balancer
from channels.fake_telegram import TOKEN
from networks import missing_networks
from postgres_server import is_given
from soak.killing import Soak
from soak.peers import Peers
from soak.several import soak_several
from soak.world import ECHO, TWO_AT_ONCE, Environment, Server
from store_kinds import refuse_missing

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.skipif(missing_balancer() is not None, reason=str(missing_balancer()))
@pytest.mark.parametrize("in_networks", [False, True], ids=["by proxies", "in networks of their own"])
async def test_several_servers_lose_and_double_nothing_and_never_do_two_what_is_one_s(
    tmp_path: Path, *, in_networks: bool
) -> None:
    refuse_missing("postgres")
    if is_given():
        pytest.skip("the server that was given is not ours to stop")
    said: list[str] = []
    if in_networks and (why := missing_networks()):
        pytest.skip(why)
    chosen = Soak(kills=0, seconds=20, servers=3, sessions=10, networks=in_networks)
    done = await soak_several(chosen, tmp_path / "soak", said.append)
    assert list(done.findings) == []
    assert (done.standstills, done.outages) == (1, 2)
    assert done.kills > 0
    assert {one.channel for one in done.asked if one.heard.texts} == {
        "mail",
        "command",
        "telegram",
        "webhook",
        "api",
    }


Asked = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def post(url: str, path: str, body: dict[str, Any]) -> Asked:
    """Send a request, and do not wait for its answer."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    writer.write(f"POST {path} HTTP/1.1\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
    return reader, writer


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0)


async def test_two_servers_that_ask_telegram_for_news_at_once_are_seen() -> None:
    async with Peers().serving(2) as around:
        telegram, asked = around.telegram, []

        async def ask(server: int) -> None:
            before = telegram.pollers[server]
            asked.append(await post(around.telegram_urls[server], f"/bot{TOKEN}/getUpdates", {}))
            await until(lambda: telegram.pollers[server] > before)

        await ask(0)
        asked[0][1].close()  # as a server that was killed
        await ask(1)
        telegram.still.add(1)  # what one asked that stands still stays open
        await ask(0)
        assert telegram.two_at_once == []
        telegram.still.clear()
        await ask(1)
        await until(lambda: bool(telegram.two_at_once))
        assert telegram.two_at_once == ["server 1 asks Telegram for news while 0 does"]
        for _, writer in asked:
            writer.close()
            await writer.wait_closed()


async def test_two_runs_of_a_conversation_at_once_are_seen_by_the_model() -> None:
    async with Peers().serving() as around:
        asked = []
        for number, other in ((0, 1), (2, 20), (3, 4)):
            for one in (number, other):
                said = [{"role": "user", "content": f"Say nonce-api-7-{one}"}]
                asked.append(await post(around.model_url, "/v1/chat/completions", {"messages": said}))
            if number == 0:
                asked[0][1].close()  # as a server that was killed
                await asked[1][0].read()
                assert around.two_at_once == []
        await until(lambda: bool(around.two_at_once))
        assert set(around.two_at_once) == {"api-7-0 has two runs at once: both ask the model"}
        for reader, writer in asked[1:]:
            await reader.read()
            writer.close()
            await writer.wait_closed()


async def test_two_programs_of_a_thread_at_once_are_noted_by_the_second(tmp_path: Path) -> None:
    async def program(said: str) -> asyncio.subprocess.Process:
        environment = {**os.environ, "POSTROOM_THREAD": "a thread"}
        started = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            ECHO,
            cwd=tmp_path,
            env=environment,
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
        )
        assert started.stdin is not None
        started.stdin.write(said.encode())
        started.stdin.close()
        return started

    noted, journal = tmp_path / TWO_AT_ONCE, tmp_path / "journal"
    first = await program("Say nonce-mail-1-1-slow")
    await until(journal.exists)
    os.killpg(first.pid, signal.SIGKILL)
    await first.wait()
    await (await program("Say nonce-mail-1-2")).communicate()
    assert not noted.exists()
    slow = await program("Say nonce-mail-1-3-slow")
    await until(lambda: "nonce-mail-1-3" in journal.read_text())
    await (await program("Say nonce-mail-1-4")).communicate()
    assert noted.read_text() == "a thread\n"
    os.killpg(slow.pid, signal.SIGKILL)
    await slow.wait()


async def test_a_server_can_be_given_a_clock_that_is_wrong(tmp_path: Path) -> None:
    server = Server(tmp_path, Environment(wrong_by=-3_600))
    await server.spawn()
    try:
        await server.ready()
        began = json.loads((server.data_dir / "server.json").read_text())["started_at"] / 1_000
        assert 3_000 < time.time() - began < 4_000
    finally:
        await server.kill()
