"""What reading costs on top of an empty tool: an inbox, a search, a reservation check."""

import asyncio

from fastmcp import Client

from benchmarks.application import PROJECT, fill, fresh_application, with_empty_tool
from benchmarks.figures import Table, median, ms, p95, size, timed

MESSAGES = size(100_000, 500)
LIVE = size(5_000, 500)
ROUNDS = size(200, 6)
SEARCHES = (
    "word42",
    "common",
    '"words here"',
    "rare77* OR word9",
    "subject:module5 AND word12",
    "common NOT word1",
)


async def main() -> None:
    """Print the table."""
    table = Table(f"Reading, with {MESSAGES:,} messages and {LIVE:,} live reservations stored")
    async with fresh_application() as application:
        await fill(application, MESSAGES)
        for first in range(0, LIVE, 500):
            globs = [_pattern(number) for number in range(first, first + 500)]
            await application.mail.call(
                "file_reservation_paths",
                {"project_key": PROJECT, "agent_name": "Reader1", "paths": globs, "exclusive": False},
            )
        async with Client(with_empty_tool(application)) as client:
            empty = await timed(ROUNDS, lambda: client.call_tool("empty", {}))
            inbox = {"project_key": PROJECT, "agent_name": "Reader3", "limit": 50}
            await _row(table, "fetch_inbox, 50 messages with bodies", empty, client, "fetch_inbox", [inbox])
            for order in ("newest", "best"):
                asked = [{"project_key": PROJECT, "query": query, "order": order} for query in SEARCHES]
                await _row(table, f"search, {order} first", empty, client, "search_messages", asked)
            checks = [
                {"project_key": PROJECT, "agent_name": "Reader2", "paths": [path]}
                for path in ("src/m17/sub3/file7.py", "src/m17/**/*.py", "**/test_*.py", "docs/a.md")
            ]
            await _row(
                table, "check against the live reservations", empty, client, "check_file_reservations", checks
            )


def _pattern(number: int) -> str:
    match number % 4:
        case 0:
            return f"src/m{number % 50}/sub{number % 7}/file{number}.py"
        case 1:
            return f"src/m{number % 50}/part{number}/**/*.py"
        case 2:
            return f"docs/chapter{number}/*.md"
        case _:
            return f"**/name_{number}_*.rs"


async def _row(
    table: Table, what: str, empty: list[float], client: Client, tool: str, asked: list[dict]
) -> None:
    taken = []
    for number in range(ROUNDS):
        taken += await timed(1, lambda number=number: client.call_tool(tool, asked[number % len(asked)]))
    table.add(
        what,
        f"p95 {ms(p95(taken))} (median {ms(median(taken))})",
        f"empty tool {ms(median(empty))}",
        p95(taken) / median(empty),
        f"p95 at most 10 ms on top: {ms(p95(taken) - median(empty))}",
    )


if __name__ == "__main__":
    asyncio.run(main())
