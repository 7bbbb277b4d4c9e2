"""The promises of the public channel kit, on the wire of every platform's fake."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from channels.drivers import DRIVERS, Driver
from postroom.testing.channels import ChannelPromises


def promises_of(kind: type[Driver]) -> type[ChannelPromises]:
    """Return the tests of a platform, without those of abilities that it lacks."""

    class Kept(ChannelPromises):
        @asynccontextmanager
        async def driver(self, folder: Path) -> AsyncIterator[Driver]:
            async with AsyncExitStack() as stack:
                driver = kind(folder, stack)
                await driver.begin()
                yield driver

    for name, test in vars(ChannelPromises).items():
        if not kind.lacks.keys().isdisjoint(getattr(test, "abilities", ())):
            setattr(Kept, name, None)
    return Kept


for _kind in DRIVERS:
    globals()[f"Test{_kind.__name__.removesuffix('Driver')}"] = promises_of(_kind)
