"""A server of its own that runs one program until it is killed: `owner_process.py FOLDER SERVER_NAME TEXT RUN`."""

import asyncio
import sys
from pathlib import Path

from executors.room import Room, script


async def main(folder: str, server_name: str, text: str, run_id: str) -> None:
    room = Room(Path(folder), script(text), server_name=server_name)
    print("owner", flush=True)
    run = asyncio.ensure_future(room.run(run=run_id))
    while not run.done():
        said = room.sink.text
        room.sink.events.clear()
        print(said, end="", flush=True)
        room.sink._more.clear()
        await room.sink._more.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
