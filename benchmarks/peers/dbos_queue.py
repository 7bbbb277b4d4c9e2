"""Drains a partitioned DBOS queue with one partition a thread; prints one line of JSON.

python dbos_queue.py <system database url> <jobs> <threads>
"""

import json
import logging
import sys
import threading
import time

from dbos import DBOS, DBOSConfig, SetEnqueueOptions

WORKERS = 64
POLL = 0.02
_ended = threading.Semaphore(0)
_started: dict[int, float] = {}


@DBOS.workflow()
def job(number: int) -> str:
    """Do nothing, durably."""
    _started[number] = time.perf_counter()
    _ended.release()
    return "ok"


def main() -> None:
    """Enqueue all, wait until all have run, and print the rates."""
    url, jobs, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    logging.disable(logging.CRITICAL)
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "max_executor_threads": WORKERS,
        "console_log_level": "CRITICAL",
    }
    DBOS(config=config)
    DBOS.launch()
    DBOS.register_queue(
        "jobs", worker_concurrency=WORKERS, partition_concurrency=1, polling_interval_sec=POLL
    )
    asked: dict[int, float] = {}
    began = time.perf_counter()
    handles = []
    for number in range(jobs):
        asked[number] = time.perf_counter()
        with SetEnqueueOptions(queue_partition_key=f"thread-{number % threads}"):
            handles.append(DBOS.enqueue_workflow("jobs", job, number))
    enqueued = time.perf_counter() - began
    for handle in handles:
        handle.get_result()
    took = time.perf_counter() - began
    waits = sorted(_started[number] - asked[number] for number in asked)
    print(
        json.dumps(
            {
                "jobs_per_s": jobs / took,
                "enqueues_per_s": jobs / enqueued,
                "p50_ms": waits[len(waits) // 2] * 1000,
                "p99_ms": waits[int(len(waits) * 0.99)] * 1000,
            }
        ),
        flush=True,
    )
    DBOS.destroy()


if __name__ == "__main__":
    main()
