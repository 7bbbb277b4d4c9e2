-- A run writes to fewer indexes.
--
-- A thread names the run that was last written after its start, in place of an index of all runs that have started. A
-- summary names the first message that no summary covers, in place of an index of all such messages. The ids of open
-- runs are sorted when they are listed, but for those of runs that wait. A renewed lease changes no column of an index.

ALTER TABLE run_threads ADD COLUMN latest_started_run_id TEXT;
UPDATE run_threads
   SET latest_started_run_id = (SELECT run_id FROM runs
                                 WHERE runs.thread_id = run_threads.thread_id AND status <> 'created'
                                 ORDER BY updated_at DESC, created_at DESC, run_id DESC LIMIT 1);
ALTER TABLE run_summaries ADD COLUMN first_seq INTEGER NOT NULL DEFAULT 0;

DROP INDEX runs_started;
DROP INDEX runs_thread;
DROP INDEX runs_open;
DROP INDEX run_messages_unsummarized;
CREATE INDEX runs_waiting ON runs (run_id) WHERE status = 'waiting';

DROP INDEX run_threads_children;
CREATE INDEX run_threads_children ON run_threads (parent_thread_id, thread_id) WHERE parent_thread_id IS NOT NULL;

DROP INDEX run_dispatches_ended;
CREATE INDEX run_dispatches_ended ON run_dispatches (status, completed_at, dispatch_id, is_open) WHERE is_open = 0;
DROP INDEX run_dispatches_unreconciled;
CREATE INDEX run_dispatches_unreconciled ON run_dispatches (completed_at, dispatch_id) WHERE reconciled = 0;
