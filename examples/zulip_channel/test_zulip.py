"""Test that the Zulip channel keeps the promises of every channel. Run `pytest` in this folder."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fake_zulip import FakeZulip, ZulipDriver

from postroom.testing.channels import ChannelDriver, ChannelPromises


class TestZulip(ChannelPromises):
    @asynccontextmanager
    async def driver(self, folder: Path) -> AsyncIterator[ChannelDriver]:
        async with FakeZulip().serving() as fake:
            yield ZulipDriver(fake)
