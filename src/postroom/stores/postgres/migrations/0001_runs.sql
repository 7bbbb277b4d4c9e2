-- Runs: dispatches, threads, runs, messages committed and pending, events, effects, live commands.
--
-- Instants are integer milliseconds since the epoch. The CHECKs repeat what a record refuses. Names are compared
-- by code points, whatever the database's language is. Work that is open stands in partial indexes, so that
-- finding it costs what is open and never what ever was; a row that has ended stands in three.

CREATE TABLE run_dispatches (
  dispatch_id          text COLLATE "C" PRIMARY KEY CHECK (btrim(dispatch_id, E' \t\n\r\f\v') <> ''),
  thread_id            text COLLATE "C" NOT NULL CHECK (btrim(thread_id, E' \t\n\r\f\v') <> ''),
  run_id               text COLLATE "C" NOT NULL CHECK (btrim(run_id, E' \t\n\r\f\v') <> ''),
  created_at           bigint NOT NULL,
  available_at         bigint NOT NULL,
  updated_at           bigint NOT NULL,
  status               text COLLATE "C" NOT NULL
                       CHECK (status IN ('Queued', 'Claimed', 'Acked', 'Cancelled', 'Superseded', 'DeadLetter')),
  priority             smallint NOT NULL CHECK (priority BETWEEN 0 AND 255),
  dedupe_key           text COLLATE "C" CHECK (btrim(dedupe_key, E' \t\n\r\f\v') <> ''),
  dispatch_epoch       bigint NOT NULL CHECK (dispatch_epoch >= 0),
  attempt_count        integer NOT NULL CHECK (attempt_count >= 0),
  max_attempts         integer NOT NULL CHECK (max_attempts >= 1),
  deadline_at          bigint,
  tenant               text NOT NULL,
  last_error           text,
  claim_token          text,
  claimed_by           text,
  claimed_at           bigint,
  lease_until          bigint,
  dispatch_instance_id text,
  run_status           text CHECK (run_status IN ('created', 'running', 'waiting', 'done')),
  termination          text,
  run_response         text,
  run_error            text,
  completed_at         bigint,
  reconciled           boolean NOT NULL,
  -- The thread's epoch, as an interrupt writes it into the row that is claimed: a write of the owner looks at one
  -- row, and waits for an interrupt that is under way.
  thread_epoch         bigint NOT NULL CHECK (thread_epoch >= dispatch_epoch),
  -- Null while the row is open. `updated_at` itself is in no index, so that the writes of an owner move no entry.
  ended_at             bigint GENERATED ALWAYS AS
                       (CASE WHEN status IN ('Queued', 'Claimed') THEN NULL ELSE updated_at END) STORED,
  CHECK (attempt_count <= max_attempts),
  CHECK (CASE status
         WHEN 'Claimed' THEN lease_until IS NOT NULL AND coalesce(claim_token, '') <> ''
                             AND btrim(coalesce(claimed_by, ''), E' \t\n\r\f\v') <> ''
         ELSE lease_until IS NULL AND claim_token IS NULL AND claimed_by IS NULL
         END),
  CHECK (CASE status
         WHEN 'Claimed' THEN true
         WHEN 'Queued' THEN completed_at IS NULL AND run_status IS NULL AND termination IS NULL
                            AND coalesce(dispatch_instance_id, run_response, run_error, '') = ''
         ELSE completed_at IS NOT NULL
         END)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- What must never be twice.
CREATE UNIQUE INDEX run_dispatches_claimed ON run_dispatches (thread_id) WHERE status = 'Claimed';
CREATE UNIQUE INDEX run_dispatches_dedupe ON run_dispatches (thread_id, dedupe_key)
  WHERE status IN ('Queued', 'Claimed') AND dedupe_key IS NOT NULL;
CREATE UNIQUE INDEX run_dispatches_run ON run_dispatches (run_id) WHERE status IN ('Queued', 'Claimed');

-- What is queued: a thread's in their order, all in that order, and what is due next.
CREATE INDEX run_dispatches_queue ON run_dispatches (thread_id, priority, created_at, dispatch_id)
  WHERE status = 'Queued';
CREATE INDEX run_dispatches_urgent ON run_dispatches (priority, created_at, dispatch_id)
  INCLUDE (available_at, thread_id) WHERE status = 'Queued';
CREATE INDEX run_dispatches_due ON run_dispatches (available_at) INCLUDE (thread_id) WHERE status = 'Queued';

-- What has ended: by thread, by age, and whose runs are to be told.
CREATE INDEX run_dispatches_history ON run_dispatches (thread_id, priority, created_at, dispatch_id)
  WHERE ended_at IS NOT NULL;
CREATE INDEX run_dispatches_ended ON run_dispatches (status, ended_at, dispatch_id) WHERE ended_at IS NOT NULL;
CREATE INDEX run_dispatches_unreconciled ON run_dispatches (ended_at, dispatch_id) WHERE NOT reconciled;

-- One row a thread that anything was ever written to; it is the thread's lock, and no row is ever deleted.
CREATE TABLE dispatch_epochs (
  thread_id text COLLATE "C" PRIMARY KEY,
  epoch     bigint NOT NULL CHECK (epoch >= 0)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

-- Rows that do not read back: left out by whatever looks for work, so that they stop no other.
CREATE TABLE run_quarantine (
  kind   text COLLATE "C" NOT NULL,
  id     text COLLATE "C" NOT NULL,
  reason text NOT NULL,
  at     bigint NOT NULL,
  PRIMARY KEY (kind, id)
);

CREATE TABLE run_threads (
  thread_id             text COLLATE "C" PRIMARY KEY CHECK (btrim(thread_id, E' \t\n\r\f\v') <> ''),
  title                 text,
  resource_id           text COLLATE "C",
  parent_thread_id      text COLLATE "C" REFERENCES run_threads (thread_id) CHECK (parent_thread_id <> thread_id),
  custom                text NOT NULL,
  active_run_id         text COLLATE "C",
  open_run_id           text COLLATE "C",
  latest_run_id         text COLLATE "C",
  latest_run_updated_at bigint,
  message_count         bigint NOT NULL CHECK (message_count >= 0),
  created_at            bigint NOT NULL,
  updated_at            bigint NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX run_threads_children ON run_threads (parent_thread_id, thread_id)
  WHERE parent_thread_id IS NOT NULL;
CREATE INDEX run_threads_roots ON run_threads (thread_id) WHERE parent_thread_id IS NULL;
CREATE INDEX run_threads_resource ON run_threads (resource_id, thread_id) WHERE resource_id IS NOT NULL;

CREATE TABLE runs (
  run_id     text COLLATE "C" PRIMARY KEY CHECK (btrim(run_id, E' \t\n\r\f\v') <> ''),
  thread_id  text COLLATE "C" NOT NULL,
  status     text COLLATE "C" NOT NULL CHECK (status IN ('created', 'running', 'waiting', 'done')),
  created_at bigint NOT NULL,
  updated_at bigint NOT NULL,
  body       text NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX runs_thread ON runs (thread_id, run_id);
CREATE INDEX runs_latest ON runs (thread_id, updated_at, created_at, run_id);
CREATE INDEX runs_started ON runs (thread_id, updated_at, created_at, run_id) WHERE status <> 'created';
CREATE INDEX runs_open ON runs (run_id) WHERE status <> 'done';
CREATE INDEX runs_open_thread ON runs (thread_id, run_id) WHERE status <> 'done';

CREATE TABLE run_messages (
  thread_id  text COLLATE "C" NOT NULL,
  seq        bigint NOT NULL CHECK (seq > 0),
  message_id text COLLATE "C" NOT NULL CHECK (message_id <> ''),
  run_id     text COLLATE "C",
  visibility text COLLATE "C" NOT NULL,
  created_at bigint NOT NULL,
  body       text NOT NULL,
  PRIMARY KEY (thread_id, seq)
);
CREATE UNIQUE INDEX run_messages_id ON run_messages (thread_id, message_id);
CREATE INDEX run_messages_run ON run_messages (thread_id, run_id, seq) WHERE run_id IS NOT NULL;

-- `place` only orders: positions are counted when they are read, so that taking one moves no other.
CREATE TABLE pending_messages (
  thread_id  text COLLATE "C" NOT NULL,
  place      bigint NOT NULL CHECK (place > 0),
  pending_id text COLLATE "C" NOT NULL CHECK (pending_id <> ''),
  revision   bigint NOT NULL CHECK (revision > 0),
  mode       text NOT NULL,
  body       text NOT NULL,
  created_at bigint NOT NULL,
  updated_at bigint NOT NULL,
  PRIMARY KEY (thread_id, place)
);
CREATE UNIQUE INDEX pending_messages_id ON pending_messages (thread_id, pending_id);

CREATE TABLE thread_states (
  thread_id text COLLATE "C" PRIMARY KEY,
  body      text NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE run_events (
  event_id       text COLLATE "C" PRIMARY KEY,
  event_kind     text NOT NULL,
  payload        text NOT NULL,
  sequences      text NOT NULL,
  created_at     bigint NOT NULL,
  causation_id   text,
  correlation_id text,
  origin         text NOT NULL,
  visibility     text NOT NULL,
  schema_version integer NOT NULL,
  writer_id      text COLLATE "C",
  key            text COLLATE "C",
  digest         text,
  CHECK ((writer_id IS NULL) = (key IS NULL) AND (key IS NULL) = (digest IS NULL))
);
CREATE UNIQUE INDEX run_events_key ON run_events (writer_id, key) WHERE writer_id IS NOT NULL;

CREATE TABLE run_event_scopes (
  scope    text COLLATE "C" NOT NULL,
  seq      bigint NOT NULL CHECK (seq > 0),
  event_id text COLLATE "C" NOT NULL,
  PRIMARY KEY (scope, seq)
);

CREATE TABLE run_event_counters (
  scope  text COLLATE "C" PRIMARY KEY,
  newest bigint NOT NULL CHECK (newest > 0)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE run_outbox (
  place         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  outbox_id     text COLLATE "C" NOT NULL UNIQUE,
  lane          text COLLATE "C" NOT NULL,
  target        text COLLATE "C" NOT NULL,
  payload       text NOT NULL,
  status        text COLLATE "C" NOT NULL CHECK (status IN ('pending', 'claimed', 'delivered', 'dead_letter')),
  available_at  bigint NOT NULL,
  created_at    bigint NOT NULL,
  dedupe_key    text COLLATE "C",
  attempt_count integer NOT NULL CHECK (attempt_count >= 0),
  max_attempts  integer NOT NULL,
  claim_token   text,
  lease_until   bigint,
  last_error    text,
  CHECK ((status = 'claimed') = (claim_token IS NOT NULL) AND (status = 'claimed') = (lease_until IS NOT NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
CREATE UNIQUE INDEX run_outbox_key ON run_outbox (lane, target, dedupe_key) WHERE dedupe_key IS NOT NULL;
CREATE INDEX run_outbox_open ON run_outbox (lane, target, place) WHERE status IN ('pending', 'claimed');

CREATE TABLE run_spending (
  scope       text COLLATE "C" PRIMARY KEY,
  runs        bigint NOT NULL DEFAULT 0,
  wall_ms     bigint NOT NULL DEFAULT 0,
  tokens      bigint NOT NULL DEFAULT 0,
  cost_micros bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- Live commands between processes. A crash may lose them: whoever sent one takes the durable way then, and
-- listeners register anew.
CREATE UNLOGGED TABLE run_live_listeners (
  listener_id text COLLATE "C" PRIMARY KEY,
  process_id  text COLLATE "C" NOT NULL,
  thread_id   text COLLATE "C" NOT NULL,
  run_id      text COLLATE "C",
  dispatch_id text COLLATE "C",
  expires_at  bigint NOT NULL,
  replaced    boolean NOT NULL DEFAULT false
) WITH (fillfactor = 70);
CREATE INDEX run_live_listeners_thread ON run_live_listeners (thread_id);

CREATE UNLOGGED TABLE run_live_commands (
  place       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  delivery_id text COLLATE "C" NOT NULL,
  listener_id text COLLATE "C" NOT NULL,
  process_id  text COLLATE "C" NOT NULL,
  body        text NOT NULL,
  status      text COLLATE "C" NOT NULL CHECK (status IN ('sent', 'taken', 'accepted', 'dropped')),
  expires_at  bigint NOT NULL
);
CREATE INDEX run_live_commands_sent ON run_live_commands (process_id, place) WHERE status = 'sent';
CREATE INDEX run_live_commands_delivery ON run_live_commands (delivery_id);
