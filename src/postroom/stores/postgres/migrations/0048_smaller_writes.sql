-- after: 0048
--
-- A run writes less. All servers are stopped for this step, because the indexes are made anew.
--
-- The dispatch of an active run is found by its thread, so the index by run has queued dispatches only. Ids of messages and
-- runs begin with the time, so an index that begins with them grows at its end. Queued runs are found by the deadline
-- that they have missed.

DROP INDEX run_dispatches_run, run_messages_id, run_messages_run;
CREATE UNIQUE INDEX run_dispatches_run ON run_dispatches (run_id) WHERE status = 'Queued' AND run_id > '';
CREATE UNIQUE INDEX run_messages_id ON run_messages (message_id, thread_id);
CREATE INDEX run_messages_run ON run_messages (run_id, thread_id, seq) WHERE run_id IS NOT NULL;
CREATE INDEX run_dispatches_late ON run_dispatches (deadline_at)
  WHERE status = 'Queued' AND deadline_at IS NOT NULL AND attempt_count = 0 AND interruption_count = 0;

-- The message that asked a run's question is found by the run.
CREATE INDEX run_answers_run ON run_answers (run_id, message_id);
