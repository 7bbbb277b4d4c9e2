"""A separate server that runs one program until it is killed: `owner_process.py FOLDER TEXT`.

At SIGUSR1 it lets its programs go on for 100 ms more, and prints that. A failure of the run is printed by name.
"""

import asyncio
import signal
import sys
from pathlib import Path

from executors.room import Room, script


async def main(folder: str, text: str) -> None:
    room = Room(Path(folder), script(text))

    def hold() -> None:
        room.executor.process_runner.hold(100)
        print("held 100", flush=True)

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, hold)
    run = asyncio.ensure_future(room.run())
    run.add_done_callback(lambda _: room.sink._more.set())
    while not run.done():
        said = room.sink.text
        room.sink.events.clear()
        print(said, end="", flush=True)
        room.sink._more.clear()
        await room.sink._more.wait()
    print(type(run.exception()).__name__, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
