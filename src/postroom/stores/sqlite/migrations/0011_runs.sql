-- Runs as both engines keep them: an event is named by its id, and what has ended is counted when it is asked for.

DROP TRIGGER run_dispatches_ends;
DROP TRIGGER run_dispatches_ended_before;
DROP TRIGGER run_dispatches_goes;
DROP TABLE run_dispatch_counts;

-- A thread's dispatches in their order, whatever became of them; no move of a dispatch touches it.
DROP INDEX run_dispatches_history;
CREATE INDEX run_dispatches_of_thread ON run_dispatches (thread_id, priority, created_at, dispatch_id);

-- With `is_open` in it, ended dispatches are counted in the index alone.
DROP INDEX run_dispatches_ended;
CREATE INDEX run_dispatches_ended ON run_dispatches (status, updated_at, dispatch_id, is_open)
  WHERE is_open = 0;

CREATE TABLE events_by_id (
  event_id       TEXT NOT NULL PRIMARY KEY,
  event_kind     TEXT NOT NULL,
  payload        TEXT NOT NULL,
  sequences      TEXT NOT NULL,
  created_at     INTEGER NOT NULL,
  causation_id   TEXT,
  correlation_id TEXT,
  origin         TEXT NOT NULL,
  visibility     TEXT NOT NULL,
  schema_version INTEGER NOT NULL,
  writer_id      TEXT,
  key            TEXT,
  digest         TEXT,
  CHECK ((writer_id IS NULL) = (key IS NULL) AND (key IS NULL) = (digest IS NULL))
) STRICT;
INSERT INTO events_by_id
SELECT event_id, event_kind, payload, sequences, created_at, causation_id, correlation_id, origin, visibility,
       schema_version, writer_id, key, digest
  FROM run_events ORDER BY event;

CREATE TABLE event_scopes_by_id (
  scope    TEXT NOT NULL,
  seq      INTEGER NOT NULL CHECK (seq > 0),
  event_id TEXT NOT NULL,
  PRIMARY KEY (scope, seq)
) STRICT, WITHOUT ROWID;
INSERT INTO event_scopes_by_id
SELECT s.scope, s.seq, e.event_id FROM run_event_scopes s JOIN run_events e ON e.event = s.event
 ORDER BY s.scope, s.seq;

DROP TABLE run_event_scopes;
DROP TABLE run_events;
ALTER TABLE events_by_id RENAME TO run_events;
ALTER TABLE event_scopes_by_id RENAME TO run_event_scopes;
CREATE UNIQUE INDEX run_events_key ON run_events (writer_id, key) WHERE writer_id IS NOT NULL;
