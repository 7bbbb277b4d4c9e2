-- Runs: dispatches, threads, runs, messages committed and pending, events, effects.
--
-- Instants are integer milliseconds since the epoch. `STRICT` holds the types, the CHECKs repeat what a record
-- refuses. Work that is open stands in partial indexes, so that finding it costs what is open and never what
-- ever was; a dispatch that has ended stands in three indexes.

-- A CHECK is run with every change of what it names. Hence no IN over more than two values, for which SQLite
-- builds a table each time, and trim() only for what does not begin with a letter or the like.
CREATE TABLE run_dispatches (
  dispatch_id          TEXT NOT NULL PRIMARY KEY
                        CHECK (dispatch_id > '!' OR trim(dispatch_id, char(9, 10, 13, 32)) <> ''),
  thread_id            TEXT NOT NULL CHECK (thread_id > '!' OR trim(thread_id, char(9, 10, 13, 32)) <> ''),
  run_id               TEXT NOT NULL CHECK (run_id > '!' OR trim(run_id, char(9, 10, 13, 32)) <> ''),
  created_at           INTEGER NOT NULL,
  available_at         INTEGER NOT NULL,
  updated_at           INTEGER NOT NULL,
  status               TEXT NOT NULL,
  priority             INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 255),
  dedupe_key           TEXT CHECK (dedupe_key > '!' OR trim(dedupe_key, char(9, 10, 13, 32)) <> ''),
  dispatch_epoch       INTEGER NOT NULL CHECK (dispatch_epoch >= 0),
  attempt_count        INTEGER NOT NULL,
  max_attempts         INTEGER NOT NULL,
  deadline_at          INTEGER,
  tenant               TEXT NOT NULL,
  last_error           TEXT,
  claim_token          TEXT,
  claimed_by           TEXT,
  claimed_at           INTEGER,
  lease_until          INTEGER,
  dispatch_instance_id TEXT,
  run_status           TEXT,
  termination          TEXT,
  run_response         TEXT,
  run_error            TEXT,
  completed_at         INTEGER,
  reconciled           INTEGER NOT NULL CHECK (reconciled IN (0, 1)),
  is_open              INTEGER NOT NULL,
  CHECK (attempt_count BETWEEN 0 AND max_attempts AND max_attempts >= 1),
  CHECK (run_status IN ('running', 'done') OR run_status IN ('waiting', 'created')),
  CHECK (CASE
         WHEN status = 'Claimed' THEN is_open = 1 AND lease_until IS NOT NULL
              AND claim_token IS NOT NULL AND claim_token <> ''
              AND claimed_by IS NOT NULL
              AND (claimed_by > '!' OR trim(claimed_by, char(9, 10, 13, 32)) <> '')
         WHEN status = 'Queued' THEN is_open = 1 AND lease_until IS NULL AND claim_token IS NULL
              AND claimed_by IS NULL
         WHEN status IN ('Acked', 'Cancelled') OR status IN ('Superseded', 'DeadLetter') THEN is_open = 0
              AND lease_until IS NULL AND claim_token IS NULL AND claimed_by IS NULL
         ELSE 0
         END),
  CHECK (CASE
         WHEN status = 'Claimed' THEN 1
         WHEN status = 'Queued' THEN completed_at IS NULL AND run_status IS NULL AND termination IS NULL
              AND (dispatch_instance_id IS NULL OR dispatch_instance_id = '')
              AND (run_response IS NULL OR run_response = '') AND (run_error IS NULL OR run_error = '')
         ELSE completed_at IS NOT NULL
         END)
) STRICT;

-- What must never be twice.
CREATE UNIQUE INDEX run_dispatches_claimed ON run_dispatches (thread_id) WHERE status = 'Claimed';
CREATE UNIQUE INDEX run_dispatches_dedupe ON run_dispatches (thread_id, dedupe_key)
  WHERE is_open = 1 AND dedupe_key IS NOT NULL;
CREATE UNIQUE INDEX run_dispatches_run ON run_dispatches (run_id) WHERE is_open = 1;

-- `is_open` says what `status` does, for these and the last two: an index whose condition names a column that a
-- statement sets is written anew with it, and most moves leave this one as it is.

-- What is open: a thread's queue in its order, all queues in that order, what is due next. What is overdue is
-- looked for among what is claimed.
CREATE INDEX run_dispatches_queue ON run_dispatches (thread_id, priority, created_at, dispatch_id)
  WHERE status = 'Queued';
CREATE INDEX run_dispatches_urgent
  ON run_dispatches (priority, created_at, dispatch_id, available_at, thread_id) WHERE status = 'Queued';
CREATE INDEX run_dispatches_due ON run_dispatches (available_at, thread_id) WHERE status = 'Queued';
CREATE INDEX run_dispatches_unreconciled ON run_dispatches (updated_at, dispatch_id) WHERE reconciled = 0;

-- What has ended: by thread, and by age.
CREATE INDEX run_dispatches_history ON run_dispatches (thread_id, status, priority, created_at, dispatch_id)
  WHERE is_open = 0;
CREATE INDEX run_dispatches_ended ON run_dispatches (status, updated_at, dispatch_id)
  WHERE is_open = 0;

-- How many have ended in each way, so that a gauge need not count what ever was.
CREATE TABLE run_dispatch_counts (
  status TEXT NOT NULL PRIMARY KEY,
  number INTEGER NOT NULL CHECK (number >= 0)
) STRICT, WITHOUT ROWID;
INSERT INTO run_dispatch_counts (status, number)
VALUES ('Acked', 0), ('Cancelled', 0), ('Superseded', 0), ('DeadLetter', 0);

CREATE TRIGGER run_dispatches_ends AFTER UPDATE OF is_open ON run_dispatches
  WHEN NEW.is_open = 0 AND OLD.is_open = 1
BEGIN
  UPDATE run_dispatch_counts SET number = number + 1 WHERE status = NEW.status;
END;

CREATE TRIGGER run_dispatches_ended_before AFTER INSERT ON run_dispatches WHEN NEW.is_open = 0
BEGIN
  UPDATE run_dispatch_counts SET number = number + 1 WHERE status = NEW.status;
END;

CREATE TRIGGER run_dispatches_goes AFTER DELETE ON run_dispatches WHEN OLD.is_open = 0
BEGIN
  UPDATE run_dispatch_counts SET number = number - 1 WHERE status = OLD.status;
END;

-- A thread that was never interrupted has no row and the epoch 0. No row is ever deleted.
CREATE TABLE dispatch_epochs (
  thread_id TEXT NOT NULL PRIMARY KEY,
  epoch     INTEGER NOT NULL CHECK (epoch > 0)
) STRICT, WITHOUT ROWID;

-- Rows that do not read back: left out by whatever looks for work, so that they stop no other.
CREATE TABLE run_quarantine (
  kind   TEXT NOT NULL,
  id     TEXT NOT NULL,
  reason TEXT NOT NULL,
  at     INTEGER NOT NULL,
  PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE run_threads (
  thread_id             TEXT NOT NULL PRIMARY KEY
                        CHECK (thread_id > '!' OR trim(thread_id, char(9, 10, 13, 32)) <> ''),
  title                 TEXT,
  resource_id           TEXT,
  parent_thread_id      TEXT CHECK (parent_thread_id <> thread_id),
  custom                TEXT NOT NULL,
  active_run_id         TEXT,
  open_run_id           TEXT,
  latest_run_id         TEXT,
  latest_run_updated_at INTEGER,
  message_count         INTEGER NOT NULL CHECK (message_count >= 0),
  created_at            INTEGER NOT NULL,
  updated_at            INTEGER NOT NULL
) STRICT;
CREATE INDEX run_threads_children ON run_threads (parent_thread_id, thread_id);
CREATE INDEX run_threads_resource ON run_threads (resource_id, thread_id) WHERE resource_id IS NOT NULL;

CREATE TABLE runs (
  run_id     TEXT NOT NULL PRIMARY KEY
                        CHECK (run_id > '!' OR trim(run_id, char(9, 10, 13, 32)) <> ''),
  thread_id  TEXT NOT NULL REFERENCES run_threads (thread_id),
  status     TEXT NOT NULL CHECK (status IN ('created', 'running') OR status IN ('waiting', 'done')),
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  body       TEXT NOT NULL
) STRICT;
CREATE INDEX runs_thread ON runs (thread_id, run_id);
CREATE INDEX runs_latest ON runs (thread_id, updated_at, created_at, run_id);
CREATE INDEX runs_open ON runs (run_id) WHERE status <> 'done';
CREATE INDEX runs_open_of_thread ON runs (thread_id, run_id) WHERE status <> 'done';

CREATE TABLE run_messages (
  thread_id  TEXT NOT NULL REFERENCES run_threads (thread_id),
  seq        INTEGER NOT NULL CHECK (seq > 0),
  message_id TEXT NOT NULL CHECK (message_id <> ''),
  run_id     TEXT,
  visibility TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  body       TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX run_messages_place ON run_messages (thread_id, seq);
CREATE UNIQUE INDEX run_messages_id ON run_messages (thread_id, message_id);
CREATE INDEX run_messages_run ON run_messages (thread_id, run_id, seq) WHERE run_id IS NOT NULL;

-- `place` only orders: positions are counted when they are read, so that taking one moves no other.
CREATE TABLE pending_messages (
  thread_id  TEXT NOT NULL,
  place      INTEGER NOT NULL CHECK (place > 0),
  pending_id TEXT NOT NULL CHECK (pending_id <> ''),
  revision   INTEGER NOT NULL CHECK (revision > 0),
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  mode       TEXT NOT NULL,
  body       TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX pending_messages_place ON pending_messages (thread_id, place);
CREATE UNIQUE INDEX pending_messages_id ON pending_messages (thread_id, pending_id);

CREATE TABLE thread_states (
  thread_id TEXT NOT NULL PRIMARY KEY,
  body      TEXT NOT NULL
) STRICT;

CREATE TABLE run_spending (
  scope       TEXT NOT NULL PRIMARY KEY,
  runs        INTEGER NOT NULL,
  wall_ms     INTEGER NOT NULL,
  tokens      INTEGER NOT NULL,
  cost_micros INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE run_events (
  event          INTEGER PRIMARY KEY,
  event_id       TEXT NOT NULL UNIQUE,
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
CREATE UNIQUE INDEX run_events_key ON run_events (writer_id, key) WHERE writer_id IS NOT NULL;

CREATE TABLE run_event_scopes (
  scope TEXT NOT NULL,
  seq   INTEGER NOT NULL CHECK (seq > 0),
  event INTEGER NOT NULL REFERENCES run_events (event),
  PRIMARY KEY (scope, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE run_outbox (
  place         INTEGER PRIMARY KEY,
  outbox_id     TEXT NOT NULL UNIQUE,
  lane          TEXT NOT NULL,
  target        TEXT NOT NULL,
  payload       TEXT NOT NULL,
  status        TEXT NOT NULL CHECK (status IN ('pending', 'claimed')
                                      OR status IN ('delivered', 'dead_letter')),
  available_at  INTEGER NOT NULL,
  created_at    INTEGER NOT NULL,
  dedupe_key    TEXT,
  attempt_count INTEGER NOT NULL CHECK (attempt_count >= 0),
  max_attempts  INTEGER NOT NULL,
  claim_token   TEXT,
  lease_until   INTEGER,
  last_error    TEXT,
  CHECK ((status = 'claimed') = (claim_token IS NOT NULL)
         AND (status = 'claimed') = (lease_until IS NOT NULL))
) STRICT;
CREATE UNIQUE INDEX run_outbox_key ON run_outbox (lane, target, dedupe_key) WHERE dedupe_key IS NOT NULL;
CREATE INDEX run_outbox_open ON run_outbox (lane, target, place, available_at, lease_until)
  WHERE status IN ('pending', 'claimed');
