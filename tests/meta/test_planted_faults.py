"""Each known fault of the system we learned from, planted in a copy of postroom, is found by a test.

The numbers are those of the list of faults; a fault is a text of the source and what it is replaced with.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Planted:
    """A fault, and the test that must fail of it."""

    file: str
    text: str
    fault: str
    test: str


MAILBOX = "tests/dispatch"
DISPATCHES = "tests/conformance/test_dispatch"
FAULTS = {
    "1 nobody polls for due work": Planted(
        "dispatch/recovery.py",
        "        limit = min(slots.free + len(slots.waiting), _MAX_DUE) if is_open else 0\n",
        "        limit = 0\n",
        f"{MAILBOX}/test_recovery.py::test_a_delayed_dispatch_starts_at_its_instant_and_not_before_also_by_itself",
    ),
    "2 a run past its first step is not executed again": Planted(
        "dispatch/completion.py",
        "waiting.since_dispatch_id != dispatch.dispatch_id\n    return run.status is not RunStatus.DONE\n",
        "waiting.since_dispatch_id != dispatch.dispatch_id\n"
        "    return run.status is not RunStatus.DONE and not run.steps\n",
        f"{MAILBOX}/test_execution.py::test_a_run_past_its_first_step_goes_on_as_its_executor_says_and_comes_to_its_end",
    ),
    "3 two dispatches share one waiting run": Planted(
        "dispatch/submission.py",
        "    row = None if existing.dispatch_id is None else tx.runs.dispatches.load(existing.dispatch_id)\n",
        "    row = None\n",
        f"{MAILBOX}/test_waiting.py::test_a_second_message_joins_the_dispatch_that_is_queued",
    ),
    "4 renewal gives up after one error": Planted(
        "dispatch/worker.py",
        "now = until if isinstance(error, TimeoutError) else core.now()",
        "now = until",
        f"{MAILBOX}/test_leases.py::test_renewal_is_tried_again_when_the_store_fails_and_the_run_goes_on",
    ),
    "5 a phase error leaves its run as it was": Planted(
        "dispatch/completion.py",
        "        if run is not None and (is_cancelled or is_left_open(run, dispatch)):\n",
        "        if run is not None and is_left_open(run, dispatch) and result.response:\n",
        f"{MAILBOX}/test_execution.py::test_a_failure_that_leaves_nothing_to_try_is_consumed_and_ends_the_run",
    ),
    "6 backoff is off by one": Planted(
        "dispatch/completion.py",
        "failed, normal = dispatch.attempt_count + 1, config",
        "failed, normal = dispatch.attempt_count, config",
        f"{MAILBOX}/test_records.py::test_nack_backoff_progression",
    ),
    "6 retry-after is not honoured": Planted(
        "dispatch/completion.py",
        ", retry_after_ms or 0)",
        ", 0)",
        f"{MAILBOX}/test_execution.py::test_a_failed_run_is_executed_again_after_the_delay_that_was_asked_for",
    ),
    "7 a refused foreground submission has interrupted": Planted(
        "dispatch/submission.py",
        "        core, thread_id = self._core, request.thread_id\n        claims, was_free =",
        "        core, thread_id = self._core, request.thread_id\n        await core.dispatches.interrupt(thread_id)\n        claims, was_free =",
        "tests/embedded/test_cancels_are_kept.py::test_a_refused_submission_leaves_the_active_run_to_finish",
    ),
    "8 a requeued row keeps its completion": Planted(
        "contracts/dispatch.py",
        "            updated_at=now,\n            **_NOTHING_REPORTED,\n",
        '            updated_at=now,\n            **{**_NOTHING_REPORTED, "completed_at": self.completed_at},\n',
        f"{DISPATCHES}_writes.py::test_what_is_queued_again_reads_back_after_a_result[sqlite]",
    ),
    "9 two rows of a thread are claimed": Planted(
        "stores/runs/dispatches.py",
        "        if claimed is not None or held_by not in (None, dispatch.run_id):\n            return None\n",
        "",
        f"{DISPATCHES}_claims.py::test_a_thread_has_one_claim_at_a_time",
    ),
    "10 a duplicate id overwrites": Planted(
        "stores/runs/dispatches.py",
        '            raise DuplicateRecord(f"dispatch {conflicting!r} already exists", value=conflicting)\n',
        "            continue\n",
        f"{DISPATCHES}_queue.py::test_an_id_is_used_once_whatever_became_of_it[sqlite]",
    ),
    "11 a lost acknowledgement of a waiting run resumes it": Planted(
        "dispatch/completion.py",
        "        return run.waiting is None or run.waiting.since_dispatch_id != dispatch.dispatch_id\n",
        "        return True\n",
        f"{MAILBOX}/test_execution.py::test_a_run_that_came_to_wait_is_not_resumed_by_its_own_lost_acknowledgement",
    ),
    "12 reconciliation does not look at whose the run is": Planted(
        "dispatch/completion.py",
        "    is_its = run.thread_id == dispatch.thread_id and run.dispatch_id in (None, dispatch.dispatch_id)\n",
        "    is_its = run.thread_id == dispatch.thread_id\n",
        f"{MAILBOX}/test_recovery.py::test_a_row_that_was_ended_does_not_end_a_run_that_another_dispatch_has_by_now",
    ),
    "13 a failure that is tried again tells an end": Planted(
        "dispatch/completion.py",
        "        await job.told.emit(retrying)\n",
        "        await self._tell_failure(row, job.told, outcome.error)\n",
        f"{MAILBOX}/test_event_capture.py::test_a_failure_that_is_tried_again_tells_no_end_and_the_reader_stays",
    ),
    "14 a purge resets the epoch": Planted(
        "stores/sql/dispatches.sql",
        "DELETE FROM unreadable_rows\n WHERE kind = 'dispatch' AND NOT EXISTS (SELECT 1 FROM run_dispatches WHERE dispatch_id = unreadable_rows.id);",
        "DELETE FROM dispatch_epochs;",
        f"{DISPATCHES}_claims.py::test_an_epoch_is_never_lower_than_it_was",
    ),
    "15 two instances that recover write one dispatch twice": Planted(
        "dispatch/recovery.py",
        "            return 0  # another process was faster\n",
        "            return 1\n",
        f"{MAILBOX}/test_recovery.py::test_a_dispatch_that_another_instance_writes_meanwhile_is_written_and_counted_once",
    ),
    "16 one bad run blocks the start": Planted(
        "dispatch/events.py",
        "        try:\n            for first_seq, messages in _stretches(records):\n",
        "        if len(records) != len(ids):\n            raise InternalError('a run that cannot be told of')\n        try:\n            for first_seq, messages in _stretches(records):\n",
        f"{MAILBOX}/test_event_capture.py::test_one_run_that_cannot_be_told_of_does_not_keep_the_others_from_recovery",
    ),
    "17 a busy signal is the last look at a dispatch": Planted(
        "dispatch/worker.py",
        "            self._rest(job)\n            if job.next is not None:\n                return await self._begin_next(job.next, job.kept_since)\n",
        "            self._rest(job)\n            return None\n",
        f"{MAILBOX}/test_lifecycle.py::test_dispatch_signal_busy_ack_still_runs_queued_dispatch_after_current_finishes",
    ),
    "18 a live target must match exactly": Planted(
        "contracts/live.py",
        "all(mine is None or theirs is None or mine == theirs for mine, theirs in pairs)",
        "all(mine == theirs for mine, theirs in pairs)",
        "tests/unit/test_live_channels.py::test_a_command_reaches_all_whom_it_is_for_and_nobody_else[one-process]",
    ),
    "19 instants of two units": Planted(
        "dispatch/submission.py",
        "            status=RunStatus.CREATED,\n            parent_run_id=activation.trace.parent_run_id,\n            created_at=now,\n",
        "            status=RunStatus.CREATED,\n            parent_run_id=activation.trace.parent_run_id,\n            created_at=now // 1000,\n",
        f"{MAILBOX}/test_records.py::test_instants_of_runs_messages_and_dispatches_are_of_one_unit",
    ),
    "20 the mailbox's own work is pinned to no configuration": Planted(
        "dispatch/core.py",
        "            pinned = None if manifest is None else str(manifest.publication_id)\n",
        "            pinned = None\n",
        f"{MAILBOX}/test_records.py::test_work_that_the_mailbox_submits_itself_is_pinned_to_the_latest_publication",
    ),
}


def run_tests(test: str, source: Path, *, patience: int = 30) -> subprocess.CompletedProcess[str]:
    """Run a test, on SQLite only, against the postroom at `source`; compiled files are kept."""
    words = [
        "-m",
        "pytest",
        "-q",
        "-x",
        *("-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout"),
        "-o",
        f"timeout={3 * patience}",  # the test's own patience ends first, and leaves nothing half done
        "-o",
        "pythonpath=tests",
        test,
    ]
    environment = os.environ | {
        "PYTHONPATH": str(source),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(source.parent / "compiled"),
        "PYTEST_XDIST_WORKER": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "yes",
        "POSTROOM_PATIENCE": str(patience),
    }
    return subprocess.run(
        [sys.executable, *words, "-k", "not postgres"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source in a separate folder: one for all faults, so that unchanged files are compiled once."""
    source = tmp_path_factory.mktemp("planted") / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    return source


@contextmanager
def planted(copy: Path, file: str, text: str) -> Iterator[None]:
    """Put a text in the place of a file of the copy for as long as the context lasts."""
    (copy / file).write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        shutil.copy2(
            ROOT / "src" / file, copy / file
        )  # with its old instant: what was compiled of it is good


SOON = 4
"""Seconds after which a test of a planted fault fails that waits for what does not come."""


def test_each_fault_has_one_place_in_the_source() -> None:
    """CI leaves the faults to the night, but notices at once that a fault must be planted again."""
    counts = {
        name: (ROOT / "src/postroom" / one.file).read_text(encoding="utf-8").count(one.text)
        for name, one in FAULTS.items()
    }
    assert counts == dict.fromkeys(FAULTS, 1)


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name: str, copy: Path) -> None:
    fault = FAULTS[name]
    file = f"postroom/{fault.file}"
    text = (copy / file).read_text(encoding="utf-8")
    with planted(copy, file, text.replace(fault.text, fault.fault)):
        done = run_tests(fault.test, copy, patience=SOON)
    assert done.returncode == 1, f"nobody noticed: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert " failed" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(180)
def test_the_copy_is_what_is_tested(copy: Path) -> None:
    """Without a fault the same tests pass, and with a broken copy none does."""
    assert run_tests(f"{MAILBOX}/test_event_capture.py", copy).returncode == 0
    with planted(copy, "postroom/dispatch/mailbox.py", "raise ImportError('this copy is broken')\n"):
        assert run_tests(f"{MAILBOX}/test_event_capture.py", copy).returncode > 1
