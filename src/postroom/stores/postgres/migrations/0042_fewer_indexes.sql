-- after: 0042
--
-- A run writes to fewer indexes. All servers are stopped for this step, because a thread now names the run that was last
-- written after its start, in place of an index of all runs that have started. A summary names the first message that no
-- summary covers, in place of an index of all such messages. The ids of open runs are sorted when they are listed, but
-- for those of runs that wait. A renewed lease changes no column of an index, so that the row is changed in its place.

ALTER TABLE run_threads ADD COLUMN latest_started_run_id text COLLATE "C";
UPDATE run_threads
   SET latest_started_run_id = (SELECT run_id FROM runs
                                 WHERE runs.thread_id = run_threads.thread_id AND status <> 'created'
                                 ORDER BY updated_at DESC, created_at DESC, run_id DESC LIMIT 1);
ALTER TABLE run_summaries ADD COLUMN first_seq bigint NOT NULL DEFAULT 0;

DROP INDEX runs_started, runs_thread, runs_open, run_messages_unsummarized, run_threads_roots;
CREATE INDEX runs_waiting ON runs (run_id) WHERE status = 'waiting';

DROP INDEX run_dispatches_ended, run_dispatches_unreconciled;
CREATE INDEX run_dispatches_ended ON run_dispatches (status, completed_at, dispatch_id) WHERE is_open = 0;
CREATE INDEX run_dispatches_unreconciled ON run_dispatches (completed_at, dispatch_id) WHERE reconciled = 0;
