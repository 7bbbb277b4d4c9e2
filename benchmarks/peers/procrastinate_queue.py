"""Drains a procrastinate queue with one lock a thread; prints one line of JSON.

python procrastinate_queue.py <dsn> <jobs> <threads>
"""

import asyncio
import json
import logging
import sys
import time

import procrastinate

WORKERS = 64


async def main() -> None:
    """Defer all, run them, and print the rate."""
    dsn, jobs, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    logging.disable(logging.CRITICAL)
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn, max_size=16))

    @app.task(name="job", queue="jobs")
    async def job(number: int) -> str:
        return "ok"

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        began = time.perf_counter()
        for number in range(jobs):
            await job.configure(lock=f"thread-{number % threads}").defer_async(number=number)
        enqueued = time.perf_counter() - began
        # Statistics as a database that has run for a while has them: without, it is far slower.
        await app.connector.execute_query_async("ANALYZE procrastinate_jobs")
        began = time.perf_counter()
        await app.run_worker_async(
            queues=["jobs"], concurrency=WORKERS, wait=False, install_signal_handlers=False
        )
        took = time.perf_counter() - began
    print(json.dumps({"jobs_per_s": jobs / (took + enqueued), "drained_per_s": jobs / took}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
