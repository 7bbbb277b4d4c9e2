"""In which order runs begin: those of one conversation in theirs, whichever process accepts and executes them."""

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

PROCESS = """
import asyncio, os, sys
from postroom import Mailbox, MailboxConfig
url, schema, name, path = sys.argv[1:]
book = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
async def work(run):
    os.write(book, f"begin {run.thread_id} {run.text}\\n".encode())
    await run.step("write", lambda: None)
    os.write(book, f"end {run.thread_id} {run.text}\\n".encode())
async def main():
    async with Mailbox.open(url, work, schema=schema, config=MailboxConfig(max_concurrent_runs=2)) as mailbox:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        handles = []
        for number in range(12):
            handles += await asyncio.gather(
                mailbox.enqueue("shared", f"{name}-{number:02}"), mailbox.enqueue(f"own-{name}", f"{name}-{number:02}")
            )
        for handle in handles:
            await handle.result(timeout=60)
        print("done", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        if name == "ada":
            for record in await mailbox.stores.threads.load_messages("shared"):
                if record.role == "user":
                    print(record.text(), flush=True)
asyncio.run(main())
"""


def test_two_processes_keep_the_order_within_each_conversation(postgres_dsn: str, tmp_path: Path) -> None:
    schema, book = f"order_{uuid4().hex}", tmp_path / "book.txt"
    words = [sys.executable, "-c", PROCESS, postgres_dsn, schema]
    names = ("ada", "ben")
    programs = [
        subprocess.Popen(
            [*words, name, str(book)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for name in names
    ]
    try:
        for told in ("ready", "done"):
            for program in programs:
                assert program.stdout is not None
                assert program.stdout.readline() == f"{told}\n"
            for program in programs:
                assert program.stdin is not None
                program.stdin.write("\n")
        accepted = programs[0].communicate(timeout=60)[0].split()
        programs[1].communicate(timeout=60)
    finally:
        for program in programs:
            program.kill()
            program.wait()
        with psycopg.connect(postgres_dsn, autocommit=True) as session:
            session.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())
    lines = [line.split() for line in book.read_text().splitlines()]
    threads: dict[str, list[tuple[str, str]]] = {}
    for step, thread, text in lines:
        threads.setdefault(thread, []).append((step, text))
    assert sorted(accepted) == [f"{name}-{number:02}" for name in names for number in range(12)]
    expected = {"shared": accepted} | {f"own-{one}": [f"{one}-{n:02}" for n in range(12)] for one in names}
    for thread, texts in expected.items():
        assert threads[thread] == [(step, text) for text in texts for step in ("begin", "end")]


pytestmark = pytest.mark.long
