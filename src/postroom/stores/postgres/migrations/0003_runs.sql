-- Runs as both engines keep them: the columns of SQLite, truth values as the integers 0 and 1, names compared by
-- code points. Threads are locked by name and no longer by their row of dispatch_epochs.

ALTER TABLE run_dispatches DROP COLUMN ended_at, DROP COLUMN thread_epoch;
DROP INDEX IF EXISTS run_dispatches_unreconciled;
ALTER TABLE run_dispatches
  ALTER COLUMN priority TYPE bigint,
  ALTER COLUMN attempt_count TYPE bigint,
  ALTER COLUMN max_attempts TYPE bigint,
  ALTER COLUMN tenant TYPE text COLLATE "C",
  ALTER COLUMN last_error TYPE text COLLATE "C",
  ALTER COLUMN claim_token TYPE text COLLATE "C",
  ALTER COLUMN claimed_by TYPE text COLLATE "C",
  ALTER COLUMN dispatch_instance_id TYPE text COLLATE "C",
  ALTER COLUMN run_status TYPE text COLLATE "C",
  ALTER COLUMN termination TYPE text COLLATE "C",
  ALTER COLUMN run_response TYPE text COLLATE "C",
  ALTER COLUMN run_error TYPE text COLLATE "C",
  ALTER COLUMN reconciled TYPE bigint USING reconciled::integer,
  ADD COLUMN is_open bigint;
UPDATE run_dispatches SET is_open = (status IN ('Queued', 'Claimed'))::integer;
ALTER TABLE run_dispatches
  ALTER COLUMN is_open SET NOT NULL,
  ADD CHECK (reconciled IN (0, 1)),
  ADD CHECK (is_open = (status IN ('Queued', 'Claimed'))::integer);

DROP INDEX run_dispatches_dedupe, run_dispatches_run;
CREATE UNIQUE INDEX run_dispatches_dedupe ON run_dispatches (thread_id, dedupe_key)
  WHERE is_open = 1 AND dedupe_key IS NOT NULL;
CREATE UNIQUE INDEX run_dispatches_run ON run_dispatches (run_id) WHERE is_open = 1;
CREATE INDEX run_dispatches_of_thread ON run_dispatches (thread_id, priority, created_at, dispatch_id);
CREATE INDEX run_dispatches_ended ON run_dispatches (status, updated_at, dispatch_id) WHERE is_open = 0;
CREATE INDEX run_dispatches_unreconciled ON run_dispatches (updated_at, dispatch_id) WHERE reconciled = 0;

ALTER TABLE run_quarantine ALTER COLUMN reason TYPE text COLLATE "C";

ALTER TABLE run_threads
  ALTER COLUMN title TYPE text COLLATE "C",
  ALTER COLUMN custom TYPE text COLLATE "C";
ALTER TABLE runs ALTER COLUMN body TYPE text COLLATE "C";
ALTER TABLE run_messages ALTER COLUMN body TYPE text COLLATE "C";
ALTER TABLE pending_messages
  ALTER COLUMN mode TYPE text COLLATE "C",
  ALTER COLUMN body TYPE text COLLATE "C";
ALTER TABLE thread_states ALTER COLUMN body TYPE text COLLATE "C";

ALTER TABLE run_events
  ALTER COLUMN event_kind TYPE text COLLATE "C",
  ALTER COLUMN payload TYPE text COLLATE "C",
  ALTER COLUMN sequences TYPE text COLLATE "C",
  ALTER COLUMN causation_id TYPE text COLLATE "C",
  ALTER COLUMN correlation_id TYPE text COLLATE "C",
  ALTER COLUMN origin TYPE text COLLATE "C",
  ALTER COLUMN visibility TYPE text COLLATE "C",
  ALTER COLUMN digest TYPE text COLLATE "C",
  ALTER COLUMN schema_version TYPE bigint;
-- The end of a scope is read in the index of its places: nobody holds a counter that others wait for.
DROP TABLE run_event_counters;

ALTER TABLE run_outbox
  ALTER COLUMN payload TYPE text COLLATE "C",
  ALTER COLUMN claim_token TYPE text COLLATE "C",
  ALTER COLUMN last_error TYPE text COLLATE "C",
  ALTER COLUMN attempt_count TYPE bigint,
  ALTER COLUMN max_attempts TYPE bigint;
