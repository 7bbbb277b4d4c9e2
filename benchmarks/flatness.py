"""Whether cost stays flat: the same calls with a thousand and with a million messages stored."""

import asyncio
import sys
from typing import Any

from benchmarks.application import PROJECT, fill, fresh_application, message_arguments
from benchmarks.figures import Table, median, ms, size, timed
from postroom.app.wiring import Application

SMALL = size(1_000, 100)
ROUNDS = size(300, 10)


async def main(large: int = size(1_000_000, 1_000)) -> None:
    """Print the table."""
    async with fresh_application() as small, fresh_application() as big:
        await fill(small, SMALL)
        await fill(big, large)
        await asyncio.sleep(1)  # let the disk finish what the filling left behind
        table = Table(f"Flatness: {SMALL:,} against {large:,} messages stored, medians, measured in turns")
        costs: dict[str, tuple[list[float], list[float]]] = {}
        for number in range(ROUNDS):
            for at, application in enumerate((small, big)):
                for what, call in _calls(application, number).items():
                    costs.setdefault(what, ([], []))[at].extend(await timed(1, call))
    for what, (few, many) in costs.items():
        table.add(
            what,
            ms(median(many)),
            f"{ms(median(few))} with {SMALL:,}",
            median(many) / median(few),
            "under 1.5",
        )


def _calls(application: Application, number: int) -> dict[str, Any]:
    me = {"project_key": PROJECT, "agent_name": "Reader4"}

    async def acknowledge() -> None:
        newest = await application.mail.call("fetch_inbox", {**me, "limit": 1, "include_bodies": False})
        await application.mail.call("acknowledge_message", {**me, "message_id": newest[0]["id"]})

    return {
        "send": lambda: application.mail.call("send_message", message_arguments("Sender", "Reader4")),
        "fetch (20 messages)": lambda: application.mail.call("fetch_inbox", {**me, "limit": 20}),
        "acknowledge (with the fetch that finds it)": acknowledge,
        "reserve": lambda: application.mail.call(
            "file_reservation_paths", {**me, "paths": [f"src/f{number}.py"]}
        ),
    }


if __name__ == "__main__":
    asyncio.run(main(*(int(word) for word in sys.argv[1:])))
