CREATE UNIQUE INDEX agents_token ON agents (token_hash) WHERE token_hash IS NOT NULL;

CREATE INDEX attachments_blob ON attachments (sha256);

CREATE INDEX attachments_preview ON attachments (preview_sha256) WHERE preview_sha256 IS NOT NULL;

CREATE INDEX attempts_run ON attempts (run_id, id);

CREATE INDEX attempts_time ON attempts (agent_id, began_at);

CREATE INDEX chat_addresses_chat ON chat_addresses (platform, chat_id);

CREATE INDEX chat_conversations_active ON chat_conversations (session_key, active_at DESC, thread_id);

CREATE UNIQUE INDEX chat_conversations_title ON chat_conversations (session_key, title) WHERE title IS NOT NULL;

CREATE INDEX chat_files_bytes ON chat_files (sha256);

CREATE INDEX client_sessions_agent ON client_sessions (agent_id);

CREATE INDEX client_sessions_bound ON client_sessions (bound_at);

CREATE INDEX contacts_to ON contacts (to_id);

CREATE UNIQUE INDEX events_key ON events (writer_id, key) WHERE writer_id IS NOT NULL;

CREATE INDEX file_pieces_blob ON file_pieces (piece);

CREATE INDEX file_pieces_stored ON file_pieces (stored_at) WHERE position = 0;

CREATE INDEX file_reservations_ending ON file_reservations (project_id, expires_at) WHERE released_at IS NULL;

CREATE INDEX file_reservations_held ON file_reservations (agent_id) WHERE released_at IS NULL;

CREATE INDEX file_reservations_in ON file_reservations (reserved_in) WHERE released_at IS NULL AND reserved_in <> '';

CREATE INDEX file_reservations_live ON file_reservations (project_id, prefix) WHERE released_at IS NULL;

CREATE INDEX file_reservations_project ON file_reservations (project_id, id);

CREATE INDEX file_reservations_time ON file_reservations (project_id, created_at);

CREATE INDEX file_views_due ON file_views (agent_id) WHERE notice = 1;

CREATE INDEX file_views_used ON file_views (used_at);

CREATE INDEX idempotency_age ON idempotency (created_at);

CREATE INDEX inbound_messages_ended ON inbound_messages (updated_at, inbound_id, status) WHERE is_open = 0;

CREATE UNIQUE INDEX inbound_messages_key ON inbound_messages (platform, account, chat_id, message_id);

CREATE INDEX inbound_messages_newest ON inbound_messages (platform, inbound_id);

CREATE INDEX inbound_messages_open ON inbound_messages (inbound_id, status) WHERE is_open = 1;

CREATE INDEX inbound_messages_open_of_session ON inbound_messages (session_key, inbound_id, status) WHERE is_open = 1;

CREATE INDEX linked_chats_code ON linked_chats (code_hash) WHERE code_hash IS NOT NULL;

CREATE INDEX linked_chats_person ON linked_chats (person) WHERE person IS NOT NULL;

CREATE INDEX messages_cut ON messages (project_id, id) WHERE length(CAST(body_md AS BLOB)) - length(body_md) > 32000;

CREATE INDEX messages_project ON messages (project_id, id);

CREATE INDEX messages_recalled ON messages (id) WHERE recalled_at IS NOT NULL;

CREATE INDEX messages_sender ON messages (sender_id, id);

CREATE INDEX messages_thread ON messages (project_id, thread_id, id);

CREATE INDEX messages_time ON messages (project_id, created_ts, id);

CREATE INDEX notes_active ON notes (project_id, ends_at);

CREATE INDEX notes_given_at ON notes_given (given_at, place, note_id);

CREATE INDEX outbox_dead ON outbox (outbox_id, kind) WHERE status = 'dead_letter';

CREATE INDEX outbox_delivered ON outbox (created_at, place) WHERE status = 'delivered';

CREATE INDEX outbox_in_line ON outbox (kind, target, order_key, place)
  WHERE status IN ('pending', 'claimed') AND order_key IS NOT NULL;

CREATE UNIQUE INDEX outbox_key ON outbox (kind, target, dedupe_key) WHERE dedupe_key IS NOT NULL;

CREATE INDEX outbox_open ON outbox (kind, target, place, available_at, lease_until)
  WHERE status IN ('pending', 'claimed');

CREATE INDEX outbox_unordered ON outbox (kind, target, (coalesce(lease_until, available_at)), place)
  WHERE status IN ('pending', 'claimed') AND order_key IS NULL;

CREATE UNIQUE INDEX pending_messages_id ON pending_messages (thread_id, pending_id);

CREATE UNIQUE INDEX pending_messages_place ON pending_messages (thread_id, place);

CREATE INDEX projects_spelling ON projects (spelling);

CREATE INDEX push_subscriptions_of_session ON push_subscriptions (form_token);

CREATE INDEX recipients_unread ON recipients (agent_id, seq) WHERE read_at IS NULL;

CREATE INDEX run_answers_run ON run_answers (run_id, message_id);

CREATE INDEX run_dispatches_again ON run_dispatches (available_at, tenant, limit_key)
  WHERE status = 'Queued' AND attempt_count + interruption_count > 0;

CREATE UNIQUE INDEX run_dispatches_claimed ON run_dispatches (thread_id) WHERE status = 'Claimed';

CREATE UNIQUE INDEX run_dispatches_dedupe ON run_dispatches (thread_id, dedupe_key)
  WHERE is_open = 1 AND dedupe_key IS NOT NULL;

CREATE INDEX run_dispatches_due ON run_dispatches (available_at, thread_id) WHERE status = 'Queued';

CREATE INDEX run_dispatches_ended ON run_dispatches (status, completed_at, dispatch_id, is_open) WHERE is_open = 0;

CREATE INDEX run_dispatches_held ON run_dispatches (held_until, held_by) WHERE held_until > 0;

CREATE INDEX run_dispatches_late ON run_dispatches (deadline_at)
  WHERE status = 'Queued' AND deadline_at IS NOT NULL AND attempt_count = 0 AND interruption_count = 0;

CREATE INDEX run_dispatches_of_tenant ON run_dispatches (tenant, priority, created_at, dispatch_id)
  WHERE status = 'Queued' AND tenant <> '';

CREATE INDEX run_dispatches_of_thread ON run_dispatches (thread_id, priority, created_at, dispatch_id);

CREATE INDEX run_dispatches_queue ON run_dispatches (thread_id, priority, created_at, dispatch_id)
  WHERE status = 'Queued';

CREATE UNIQUE INDEX run_dispatches_run ON run_dispatches (run_id) WHERE status = 'Queued';

CREATE INDEX run_dispatches_unreconciled ON run_dispatches (completed_at, dispatch_id) WHERE reconciled = 0;

CREATE INDEX run_dispatches_urgent
  ON run_dispatches (priority, created_at, dispatch_id, available_at, thread_id) WHERE status = 'Queued';

CREATE UNIQUE INDEX run_messages_id ON run_messages (message_id, thread_id);

CREATE UNIQUE INDEX run_messages_place ON run_messages (thread_id, seq);

CREATE INDEX run_messages_run ON run_messages (run_id, thread_id, seq) WHERE run_id IS NOT NULL;

CREATE INDEX run_questions_answered ON run_questions (home, answered_at) WHERE answered_at IS NOT NULL;

CREATE INDEX run_questions_ends ON run_questions (ends_at, run_id) WHERE ends_at IS NOT NULL;

CREATE INDEX run_questions_number ON run_questions (number);

CREATE INDEX run_questions_open ON run_questions (home, asked_at, run_id) WHERE answered_at IS NULL;

CREATE INDEX run_spending_asked ON run_spending (window_end) WHERE asked_by <> '';

CREATE INDEX run_spending_old ON run_spending (window_end) WHERE window_end > 0;

CREATE INDEX run_starts_old ON run_starts (started_at);

CREATE INDEX run_threads_children ON run_threads (parent_thread_id, thread_id) WHERE parent_thread_id IS NOT NULL;

CREATE INDEX run_threads_resource ON run_threads (resource_id, thread_id) WHERE resource_id IS NOT NULL;

CREATE INDEX runners_claiming ON runners (agent_id) WHERE claims_tasks = 1;

CREATE INDEX runs_asked ON runs (updated_at, run_id) WHERE status = 'waiting';

CREATE INDEX runs_holding ON runs (thread_id) WHERE status <> 'done' AND holds_others = 1;

CREATE INDEX runs_latest ON runs (thread_id, updated_at, created_at, run_id);

CREATE INDEX runs_open_of_thread ON runs (thread_id, run_id) WHERE status <> 'done';

CREATE INDEX runs_unnumbered ON runs (run_id) WHERE status = 'waiting' AND numbered_at <> updated_at;

CREATE INDEX runs_waiting ON runs (run_id) WHERE status = 'waiting';

CREATE INDEX schedules_due ON schedules (kind, next_at);

CREATE INDEX snoozed_until ON snoozed_questions (until);

CREATE INDEX subscriptions_of_agent ON subscriptions (agent_id);

CREATE INDEX subscriptions_of_project ON subscriptions (project_id, cursor);

CREATE INDEX task_dependents ON task_dependencies (depends_on);

CREATE INDEX tasks_ended ON tasks (project_id, state, changed_at, id) WHERE state IN ('done', 'cancelled');

CREATE INDEX tasks_held ON tasks (holder_id) WHERE state = 'claimed';

CREATE INDEX tasks_in_run ON tasks (run_id) WHERE state = 'claimed' AND run_id <> '';

CREATE INDEX tasks_leases ON tasks (project_id, lease_ends_at) WHERE state = 'claimed';

CREATE INDEX tasks_listed ON tasks (project_id, state, priority, id);

CREATE INDEX tasks_ready ON tasks (project_id, assignee, priority, id) WHERE state = 'ready';

CREATE INDEX threads_newest ON threads (project_id, last_id);

CREATE UNIQUE INDEX tokens_current ON tokens (name) WHERE replaced_at IS NULL AND revoked_at IS NULL;

CREATE INDEX tokens_name ON tokens (name, created_at);

CREATE INDEX web_conversations_newest ON web_conversations (person, active_at);

CREATE INDEX web_entries_newest ON web_entries (person, conversation_id, position);

CREATE TABLE "active_runs" (
  run_id   TEXT PRIMARY KEY,
  agent_id INTEGER NOT NULL REFERENCES agents (id),
  began_at INTEGER NOT NULL
);

CREATE TABLE agent_nudges (
  agent_id INTEGER PRIMARY KEY REFERENCES agents (id),
  held_seq INTEGER NOT NULL,
  notified_at  INTEGER NOT NULL
) STRICT;

CREATE TABLE agents (
  id               INTEGER PRIMARY KEY,
  project_id       INTEGER NOT NULL REFERENCES projects (id),
  name             TEXT NOT NULL,
  name_key         TEXT NOT NULL,
  program          TEXT NOT NULL,
  model            TEXT NOT NULL,
  task_description TEXT NOT NULL DEFAULT '',
  contact_policy   TEXT NOT NULL DEFAULT 'open'
                   CHECK (contact_policy IN ('open', 'same_owner', 'approval', 'closed')),
  created_at       INTEGER NOT NULL,
  last_active_at   INTEGER NOT NULL,
  retired_at       INTEGER,
  token_hash       TEXT,
  inbox_seq        INTEGER NOT NULL DEFAULT 0,
  inbox_floor      INTEGER NOT NULL DEFAULT 0, runs_at_once INTEGER NOT NULL DEFAULT 1 CHECK (runs_at_once >= 1),
  CHECK (inbox_floor <= inbox_seq),
  UNIQUE (project_id, name_key)
);

CREATE TABLE attachments (
  message_id     INTEGER NOT NULL REFERENCES messages (id),
  position       INTEGER NOT NULL,
  sha256         TEXT NOT NULL REFERENCES blobs (sha256),
  name           TEXT NOT NULL,
  media_type     TEXT NOT NULL,
  size           INTEGER NOT NULL,
  preview_sha256 TEXT REFERENCES blobs (sha256),
  PRIMARY KEY (message_id, position)
) WITHOUT ROWID;

CREATE TABLE attempts (
  id           INTEGER PRIMARY KEY,
  run_id       TEXT NOT NULL,
  agent_id     INTEGER NOT NULL,
  queued_at    INTEGER NOT NULL,
  began_at     INTEGER NOT NULL,
  ended_at     INTEGER,
  outcome      TEXT NOT NULL DEFAULT ''
               CHECK (outcome IN ('', 'done', 'failed', 'cancelled', 'waiting', 'cut_off')),
  waited_until INTEGER,
  error        TEXT NOT NULL DEFAULT '',
  CHECK ((ended_at IS NULL) = (outcome = ''))
);

CREATE TABLE blobs (
  sha256  TEXT PRIMARY KEY,
  content BLOB NOT NULL
);

CREATE TABLE chat_addresses (
  agent_id   INTEGER PRIMARY KEY REFERENCES agents (id),
  platform   TEXT NOT NULL,
  chat_id    TEXT NOT NULL,
  updated_at INTEGER NOT NULL
);

CREATE TABLE chat_conversations (
  thread_id   TEXT NOT NULL PRIMARY KEY
              CHECK (thread_id > '!' OR trim(thread_id, char(9, 10, 13, 32)) <> ''),
  session_key TEXT NOT NULL CHECK (session_key > '!' OR trim(session_key, char(9, 10, 13, 32)) <> ''),
  title       TEXT,
  created_at  INTEGER NOT NULL,
  active_at   INTEGER NOT NULL
) STRICT;

CREATE TABLE chat_files (
  thread_id  TEXT NOT NULL,
  message_id TEXT NOT NULL,
  position   INTEGER NOT NULL,
  name       TEXT NOT NULL,
  media_type TEXT NOT NULL,
  size       INTEGER NOT NULL,
  sha256     TEXT,
  missing    TEXT,
  transcript TEXT,
  PRIMARY KEY (thread_id, message_id, position),
  CHECK (sha256 IS NOT NULL OR missing IS NOT NULL)
) WITHOUT ROWID;

CREATE TABLE chat_people (
  platform TEXT NOT NULL CHECK (platform > '!' OR trim(platform, char(9, 10, 13, 32)) <> ''),
  user_id  TEXT NOT NULL CHECK (user_id > '!' OR trim(user_id, char(9, 10, 13, 32)) <> ''),
  role     TEXT NOT NULL CHECK (role IN ('owner', 'operator') OR role IN ('member', 'viewer')),
  name     TEXT,
  added_at INTEGER NOT NULL,
  PRIMARY KEY (platform, user_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE chat_requests (
  platform   TEXT NOT NULL CHECK (platform > '!' OR trim(platform, char(9, 10, 13, 32)) <> ''),
  user_id    TEXT NOT NULL CHECK (user_id > '!' OR trim(user_id, char(9, 10, 13, 32)) <> ''),
  code_hash  TEXT NOT NULL CHECK (code_hash > '!' OR trim(code_hash, char(9, 10, 13, 32)) <> ''),
  name       TEXT,
  asked_at   INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  PRIMARY KEY (platform, user_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE chat_sessions (
  session_key TEXT NOT NULL PRIMARY KEY
              CHECK (session_key > '!' OR trim(session_key, char(9, 10, 13, 32)) <> ''),
  thread_id   TEXT NOT NULL UNIQUE CHECK (thread_id > '!' OR trim(thread_id, char(9, 10, 13, 32)) <> ''),
  source      TEXT NOT NULL,
  title       TEXT,
  settings    TEXT NOT NULL,
  created_at  INTEGER NOT NULL,
  updated_at  INTEGER NOT NULL,
  active_at   INTEGER NOT NULL,
  revision    INTEGER NOT NULL CHECK (revision > 0)
) STRICT;

CREATE TABLE client_sessions (
  client     TEXT NOT NULL,
  session_id TEXT NOT NULL,
  agent_id   INTEGER NOT NULL REFERENCES agents (id),
  bound_at   INTEGER NOT NULL,
  PRIMARY KEY (client, session_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE contacts (
  from_id    INTEGER NOT NULL REFERENCES agents (id),
  to_id      INTEGER NOT NULL REFERENCES agents (id),
  status     TEXT NOT NULL CHECK (status IN ('pending', 'approved', 'blocked')),
  reason     TEXT NOT NULL DEFAULT '',
  created_at INTEGER NOT NULL,
  decided_at INTEGER,
  PRIMARY KEY (from_id, to_id)
) WITHOUT ROWID;

CREATE TABLE dispatch_epochs (
  thread_id TEXT NOT NULL PRIMARY KEY,
  epoch     INTEGER NOT NULL CHECK (epoch > 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE ended_sessions (
  hash TEXT PRIMARY KEY,
  ends_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE "event_scopes" (
  scope    TEXT NOT NULL,
  seq      INTEGER NOT NULL CHECK (seq > 0),
  event_id TEXT NOT NULL,
  PRIMARY KEY (scope, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE "events" (
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
  digest         TEXT, answer_of TEXT,
  CHECK ((writer_id IS NULL) = (key IS NULL) AND (key IS NULL) = (digest IS NULL))
) STRICT;

CREATE TABLE file_pieces (
  sha256   TEXT NOT NULL,
  position INTEGER NOT NULL,
  piece    TEXT NOT NULL REFERENCES blobs (sha256), stored_at INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (sha256, position)
) WITHOUT ROWID;

CREATE TABLE file_reservations (
  id             INTEGER PRIMARY KEY,
  project_id     INTEGER NOT NULL REFERENCES projects (id),
  agent_id       INTEGER NOT NULL REFERENCES agents (id),
  pattern        TEXT NOT NULL,
  prefix         TEXT NOT NULL,
  exclusive      INTEGER NOT NULL,
  reason         TEXT NOT NULL DEFAULT '',
  created_at     INTEGER NOT NULL,
  expires_at     INTEGER NOT NULL,
  ttl            INTEGER NOT NULL CHECK (ttl > 0),
  released_at    INTEGER,
  released_by    TEXT NOT NULL DEFAULT '',
  release_reason TEXT NOT NULL DEFAULT ''
, reserved_in TEXT NOT NULL DEFAULT '');

CREATE TABLE file_views (
  file         TEXT NOT NULL,
  agent_id     INTEGER NOT NULL,
  seen_blob    TEXT NOT NULL,
  written_blob TEXT NOT NULL,
  written_at   INTEGER NOT NULL,
  changed_blob TEXT NOT NULL,
  changed_by   INTEGER,
  changed_at   INTEGER NOT NULL,
  notice       INTEGER NOT NULL CHECK (notice IN (0, 1, 2)),
  used_at      INTEGER NOT NULL,
  PRIMARY KEY (file, agent_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency (
  scope      TEXT NOT NULL,
  key        TEXT NOT NULL,
  digest     TEXT NOT NULL,
  answer     BLOB NOT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (scope, key)
);

CREATE TABLE "inbound_messages" (
  inbound_id     INTEGER PRIMARY KEY AUTOINCREMENT,
  platform    TEXT NOT NULL CHECK (platform > '!' OR trim(platform, char(9, 10, 13, 32)) <> ''),
  account     TEXT NOT NULL CHECK (account > '!' OR trim(account, char(9, 10, 13, 32)) <> ''),
  chat_id     TEXT NOT NULL CHECK (chat_id > '!' OR trim(chat_id, char(9, 10, 13, 32)) <> ''),
  message_id  TEXT NOT NULL CHECK (message_id > '!' OR trim(message_id, char(9, 10, 13, 32)) <> ''),
  session_key TEXT NOT NULL CHECK (session_key > '!' OR trim(session_key, char(9, 10, 13, 32)) <> ''),
  sender_id   TEXT,
  body        TEXT NOT NULL,
  status      TEXT NOT NULL,
  received_at INTEGER NOT NULL,
  updated_at  INTEGER NOT NULL,
  revision    INTEGER NOT NULL CHECK (revision > 0),
  thread_id   TEXT,
  reason      TEXT,
  is_open     INTEGER NOT NULL,
  CHECK (CASE
         WHEN status IN ('waiting', 'handed_over') THEN is_open = 1
         WHEN status IN ('done', 'failed') OR status IN ('rejected', 'retracted') THEN is_open = 0
         ELSE 0
         END)
) STRICT;

CREATE TABLE leases (
  name TEXT PRIMARY KEY,
  holder TEXT NOT NULL,
  about TEXT NOT NULL,
  fence INTEGER NOT NULL,
  since INTEGER NOT NULL,
  until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE linked_chats (
  platform     TEXT NOT NULL,
  chat_id      TEXT NOT NULL,
  person       TEXT,
  shares       INTEGER NOT NULL CHECK (shares IN (0, 1)),
  code_hash    TEXT,
  code_until   INTEGER NOT NULL,
  failures     INTEGER NOT NULL,
  locked_until INTEGER NOT NULL,
  PRIMARY KEY (platform, chat_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE login_codes (
  hash TEXT PRIMARY KEY,
  ends_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE "message_runs" (
  message_id  INTEGER NOT NULL,
  agent_id    INTEGER NOT NULL,
  run_id      TEXT NOT NULL,
  delivered_at INTEGER NOT NULL,
  ended_at    INTEGER,
  failure     TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (message_id, agent_id),
  FOREIGN KEY (message_id, agent_id) REFERENCES recipients (message_id, agent_id)
) WITHOUT ROWID;

CREATE TABLE messages (
  id           INTEGER PRIMARY KEY,
  project_id   INTEGER NOT NULL,
  sender_id    INTEGER NOT NULL,
  subject      TEXT NOT NULL,
  body_md      TEXT NOT NULL,
  importance   TEXT NOT NULL DEFAULT 'normal' CHECK (importance IN ('low', 'normal', 'high', 'urgent')),
  ack_required INTEGER NOT NULL DEFAULT 0,
  created_ts   INTEGER NOT NULL,
  sender_name  TEXT NOT NULL DEFAULT '',
  thread_id    TEXT NOT NULL DEFAULT '',
  topic        TEXT NOT NULL DEFAULT '',
  broadcast    INTEGER NOT NULL DEFAULT 0,
  reply_to     INTEGER,
  recalled_at  INTEGER
, check_value INTEGER);

CREATE VIRTUAL TABLE messages_fts USING fts5 (subject, body_md, sender_name, topic, content = '', tokenize = 'ascii');

CREATE TABLE notes (
  id          INTEGER PRIMARY KEY,
  project_id  INTEGER NOT NULL,
  subject     TEXT NOT NULL,
  body        TEXT NOT NULL,
  paths       TEXT NOT NULL,
  task_id     INTEGER,
  author_id   INTEGER NOT NULL,
  run_id      TEXT NOT NULL,
  commit_name TEXT NOT NULL,
  replaces    TEXT NOT NULL,
  replaced_by INTEGER,
  created_at  INTEGER NOT NULL,
  ends_at     INTEGER NOT NULL
) STRICT;

CREATE TABLE notes_given (
  place    TEXT NOT NULL,
  note_id  INTEGER NOT NULL,
  given_at INTEGER NOT NULL,
  PRIMARY KEY (place, note_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE outbox (
  place            INTEGER PRIMARY KEY,
  outbox_id        TEXT NOT NULL UNIQUE,
  kind             TEXT NOT NULL,
  target           TEXT NOT NULL,
  order_key        TEXT,
  payload          TEXT NOT NULL,
  status           TEXT NOT NULL CHECK (status IN ('pending', 'claimed')
                                         OR status IN ('delivered', 'dead_letter')),
  available_at     INTEGER NOT NULL,
  created_at       INTEGER NOT NULL,
  dedupe_key       TEXT,
  attempt_count    INTEGER NOT NULL CHECK (attempt_count >= 0),
  max_attempts     INTEGER NOT NULL,
  claim_token      TEXT,
  lease_until      INTEGER,
  last_error       TEXT,
  may_have_arrived INTEGER NOT NULL DEFAULT 0 CHECK (may_have_arrived IN (0, 1)), steps_done INTEGER NOT NULL DEFAULT 0 CHECK (steps_done >= 0),
  CHECK ((status = 'claimed') = (claim_token IS NOT NULL)
         AND (status = 'claimed') = (lease_until IS NOT NULL))
) STRICT;

CREATE TABLE "pairing_failures" (
  platform     TEXT NOT NULL PRIMARY KEY,
  failures        INTEGER NOT NULL CHECK (failures >= 0),
  locked_until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

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

CREATE TABLE probe (id INTEGER PRIMARY KEY CHECK (id = 1), written_at INTEGER NOT NULL);

CREATE TABLE project_aliases (
  human_key  TEXT PRIMARY KEY,
  project_id INTEGER NOT NULL REFERENCES projects (id)
) WITHOUT ROWID;

CREATE TABLE projects (
  id           INTEGER PRIMARY KEY,
  slug         TEXT NOT NULL UNIQUE,
  human_key    TEXT NOT NULL UNIQUE,
  created_at   INTEGER NOT NULL,
  spelling     TEXT NOT NULL DEFAULT '',
  git_identity TEXT NOT NULL DEFAULT '',
  owner        TEXT NOT NULL DEFAULT ''
);

CREATE TABLE push_notices (
  subscription_id TEXT NOT NULL,
  item            TEXT NOT NULL,
  created_at      INTEGER NOT NULL,
  closed_at       INTEGER,
  PRIMARY KEY (subscription_id, item)
) STRICT, WITHOUT ROWID;

CREATE TABLE push_subscriptions (
  id           TEXT PRIMARY KEY,
  endpoint     TEXT NOT NULL UNIQUE,
  p256dh       TEXT NOT NULL,
  auth         TEXT NOT NULL,
  person       TEXT NOT NULL,
  form_token   TEXT NOT NULL,
  server_key   TEXT NOT NULL,
  created_at   INTEGER NOT NULL,
  ends_at      INTEGER NOT NULL,
  seen_at      INTEGER NOT NULL,
  delivered_at INTEGER,
  error        TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE questions (
  run_id      TEXT NOT NULL REFERENCES "active_runs" (run_id) ON DELETE CASCADE,
  question_id TEXT NOT NULL,
  text        TEXT NOT NULL,
  asked_at    INTEGER NOT NULL, timeout_ms INTEGER CHECK (timeout_ms > 0), on_timeout TEXT NOT NULL DEFAULT 'wait'
  CHECK (on_timeout IN ('wait', 'cancel', 'no') AND (timeout_ms IS NULL) = (on_timeout = 'wait')), asked TEXT NOT NULL DEFAULT '{}',
  PRIMARY KEY (run_id, question_id)
) WITHOUT ROWID;

CREATE TABLE recipients (
  message_id INTEGER NOT NULL REFERENCES messages (id),
  agent_id   INTEGER NOT NULL REFERENCES agents (id),
  kind       TEXT NOT NULL CHECK (kind IN ('to', 'cc', 'bcc')),
  seq        INTEGER NOT NULL CHECK (seq > 0),
  read_at    INTEGER,
  acked_at   INTEGER,
  position   INTEGER NOT NULL DEFAULT 0, announced_at INTEGER, announced_by TEXT CHECK ((announced_by IS NULL) = (announced_at IS NULL)),
  CHECK (acked_at IS NULL OR read_at IS NOT NULL),
  PRIMARY KEY (agent_id, seq),
  UNIQUE (message_id, agent_id)
) WITHOUT ROWID;

CREATE TABLE run_answers (
  message_id INTEGER PRIMARY KEY REFERENCES messages (id),
  run_id     TEXT NOT NULL
);

CREATE TABLE run_commands (
  dispatch_id TEXT NOT NULL,
  call_id TEXT NOT NULL,
  body TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (dispatch_id, call_id)
) STRICT, WITHOUT ROWID;

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
  is_open              INTEGER NOT NULL, limit_key TEXT NOT NULL DEFAULT '', held_by TEXT NOT NULL DEFAULT '', held_until INTEGER NOT NULL DEFAULT 0, answer_of TEXT, interruption_count INTEGER NOT NULL DEFAULT 0 CHECK (interruption_count >= 0), max_interruptions INTEGER CHECK (max_interruptions >= 0),
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

CREATE TABLE run_messages (
  thread_id  TEXT NOT NULL REFERENCES run_threads (thread_id),
  seq        INTEGER NOT NULL CHECK (seq > 0),
  message_id TEXT NOT NULL CHECK (message_id <> ''),
  run_id     TEXT,
  visibility TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  body       TEXT NOT NULL
, summary INTEGER, given_to TEXT, answer_of TEXT) STRICT;

CREATE TABLE run_quarantine (
  kind   TEXT NOT NULL,
  id     TEXT NOT NULL,
  reason TEXT NOT NULL,
  at     INTEGER NOT NULL,
  PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE run_questions (
  run_id      TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
  number      TEXT NOT NULL,
  call_id     TEXT NOT NULL,
  home        TEXT NOT NULL,
  asked_at    INTEGER NOT NULL,
  answered_at INTEGER,
  ends_at     INTEGER,
  PRIMARY KEY (run_id, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE run_spending (
  scope       TEXT NOT NULL PRIMARY KEY,
  runs        INTEGER NOT NULL,
  wall_ms     INTEGER NOT NULL,
  tokens      INTEGER NOT NULL,
  cost_micros INTEGER NOT NULL
, window_end INTEGER NOT NULL DEFAULT 0, asked_by TEXT NOT NULL DEFAULT '', is_refused INTEGER NOT NULL DEFAULT 0 CHECK (is_refused IN (0, 1))) STRICT, WITHOUT ROWID;

CREATE TABLE run_starts (
  scope TEXT NOT NULL,
  number INTEGER NOT NULL,
  started_at INTEGER NOT NULL,
  PRIMARY KEY (scope, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE run_summaries (
  thread_id TEXT NOT NULL,
  number INTEGER NOT NULL CHECK (number > 0),
  since INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  body TEXT NOT NULL, first_seq INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (thread_id, number)
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
, latest_started_run_id TEXT) STRICT;

CREATE TABLE runners (
  agent_id    INTEGER PRIMARY KEY REFERENCES agents (id),
  runner      TEXT NOT NULL,
  declared_by TEXT NOT NULL CHECK (declared_by IN ('operator', 'file')),
  updated_at  INTEGER NOT NULL
, claims_tasks INTEGER NOT NULL DEFAULT 0);

CREATE TABLE runs (
  run_id     TEXT NOT NULL PRIMARY KEY
                        CHECK (run_id > '!' OR trim(run_id, char(9, 10, 13, 32)) <> ''),
  thread_id  TEXT NOT NULL REFERENCES run_threads (thread_id),
  status     TEXT NOT NULL CHECK (status IN ('created', 'running') OR status IN ('waiting', 'done')),
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  body       TEXT NOT NULL
, holds_others INTEGER NOT NULL DEFAULT 0 CHECK (holds_others IN (0, 1)), numbered_at INTEGER NOT NULL DEFAULT 0) STRICT;

CREATE TABLE schedules (
  schedule_id TEXT PRIMARY KEY,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  cron TEXT,
  every_ms INTEGER,
  zone TEXT NOT NULL,
  payload TEXT NOT NULL,
  missed TEXT NOT NULL,
  overlap TEXT NOT NULL,
  jitter_ms INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  starts_at INTEGER NOT NULL,
  tick_at INTEGER NOT NULL,
  next_at INTEGER,
  submitted INTEGER NOT NULL,
  passed_over INTEGER NOT NULL,
  last_at INTEGER,
  last_id TEXT,
  last_error TEXT,
  UNIQUE (kind, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE schema_migrations (
  version    INTEGER PRIMARY KEY,
  name       TEXT NOT NULL,
  checksum   TEXT NOT NULL,
  applied_at INTEGER NOT NULL
);

CREATE TABLE "search_index_progress" (
  id         INTEGER PRIMARY KEY CHECK (id = 1),
  indexed_to INTEGER NOT NULL
);

CREATE TABLE snoozed_questions (
  run_id      TEXT NOT NULL,
  question_id TEXT NOT NULL,
  until       INTEGER NOT NULL,
  snoozed_by  TEXT NOT NULL,
  PRIMARY KEY (run_id, question_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE sqlite_sequence(name,seq);

CREATE TABLE store_identity (
  id       INTEGER PRIMARY KEY CHECK (id = 1),
  store_id TEXT NOT NULL
);

CREATE TABLE subscriptions (
  id         INTEGER PRIMARY KEY,
  project_id INTEGER NOT NULL,
  agent_id   INTEGER NOT NULL,
  kind       TEXT NOT NULL,
  about      TEXT NOT NULL,
  is_once    INTEGER NOT NULL CHECK (is_once IN (0, 1)),
  cursor     INTEGER NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE task_dependencies (
  task_id    INTEGER NOT NULL REFERENCES tasks (id),
  depends_on INTEGER NOT NULL REFERENCES tasks (id),
  PRIMARY KEY (task_id, depends_on)
) STRICT, WITHOUT ROWID;

CREATE TABLE tasks (
  id                INTEGER PRIMARY KEY,
  project_id        INTEGER NOT NULL,
  title             TEXT NOT NULL,
  body_md           TEXT NOT NULL,
  paths             TEXT NOT NULL,
  priority          INTEGER NOT NULL,
  assignee          TEXT NOT NULL,
  acceptance        TEXT NOT NULL,
  state             TEXT NOT NULL CHECK (state IN ('ready', 'claimed', 'review', 'blocked', 'waiting', 'done', 'cancelled')),
  open_dependencies INTEGER NOT NULL CHECK (open_dependencies >= 0),
  author_id         INTEGER NOT NULL,
  holder_id         INTEGER,
  epoch             INTEGER NOT NULL DEFAULT 0,
  lease_ms          INTEGER NOT NULL DEFAULT 0,
  lease_ends_at     INTEGER,
  claimed_at        INTEGER,
  run_id            TEXT NOT NULL DEFAULT '',
  reason            TEXT NOT NULL DEFAULT '',
  commit_name       TEXT NOT NULL DEFAULT '',
  output            TEXT NOT NULL DEFAULT '',
  result            TEXT NOT NULL DEFAULT '',
  created_at        INTEGER NOT NULL,
  changed_at        INTEGER NOT NULL,
  changed_by        INTEGER,
  CHECK ((state = 'claimed') = (lease_ends_at IS NOT NULL)),
  CHECK (state <> 'claimed' OR holder_id IS NOT NULL)
) STRICT;

CREATE TABLE thread_places (
  thread_id TEXT PRIMARY KEY,
  place TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE thread_states (
  thread_id TEXT NOT NULL PRIMARY KEY,
  body      TEXT NOT NULL
) STRICT;

CREATE TABLE threads (
  project_id INTEGER NOT NULL,
  thread_id  TEXT NOT NULL,
  first_id   INTEGER NOT NULL,
  last_id    INTEGER NOT NULL,
  messages   INTEGER NOT NULL,
  PRIMARY KEY (project_id, thread_id)
) WITHOUT ROWID;

CREATE TABLE tokens (
  id           TEXT PRIMARY KEY,
  name         TEXT NOT NULL,
  hash         TEXT NOT NULL UNIQUE CHECK (length(hash) = 64),
  scopes       TEXT NOT NULL CHECK (scopes <> ''),
  project_id   INTEGER REFERENCES projects (id),
  created_at   INTEGER NOT NULL,
  expires_at   INTEGER,
  replaced_at  INTEGER,
  revoked_at   INTEGER,
  last_used_at INTEGER,
  CHECK (project_id IS NULL OR instr(' ' || scopes || ' ', ' admin ') = 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE traces (
  name        TEXT PRIMARY KEY,
  traceparent TEXT NOT NULL CHECK (length(traceparent) = 55)
) STRICT, WITHOUT ROWID;

CREATE TABLE unreadable_rows (
  kind    TEXT NOT NULL,
  id      TEXT NOT NULL,
  release TEXT NOT NULL,
  reason  TEXT NOT NULL,
  at      INTEGER NOT NULL,
  PRIMARY KEY (kind, id, release)
) STRICT, WITHOUT ROWID;

CREATE TABLE web_conversations (
  person          TEXT NOT NULL,
  conversation_id TEXT NOT NULL,
  title           TEXT NOT NULL,
  created_at      INTEGER NOT NULL,
  active_at       INTEGER NOT NULL,
  PRIMARY KEY (person, conversation_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE web_entries (
  person          TEXT NOT NULL,
  entry_id        TEXT NOT NULL,
  conversation_id TEXT NOT NULL,
  position        INTEGER NOT NULL,
  body            TEXT NOT NULL,
  PRIMARY KEY (person, entry_id)
) STRICT;

CREATE TRIGGER messages_foreign AFTER INSERT ON messages
  WHEN NEW.thread_id = '' OR typeof(NEW.created_ts) = 'text'
BEGIN
  UPDATE messages
     SET thread_id = CASE WHEN NEW.thread_id = '' THEN 'msg-' || NEW.id ELSE NEW.thread_id END,
         created_ts = CASE WHEN typeof(NEW.created_ts) = 'text'
                           THEN CAST(round((julianday(NEW.created_ts) - 2440587.5) * 86400000) AS INTEGER)
                           ELSE NEW.created_ts END
   WHERE id = NEW.id;
END;

CREATE TRIGGER messages_reindexed AFTER UPDATE OF subject, body_md, sender_name, topic ON messages
  WHEN OLD.id <= (SELECT indexed_to FROM search_index_progress)
BEGIN
  INSERT INTO messages_fts (messages_fts, rowid, subject, body_md, sender_name, topic)
  VALUES ('delete', OLD.id, indexed_text(OLD.subject), indexed_text(OLD.body_md), indexed_text(OLD.sender_name),
          indexed_text(OLD.topic));
  INSERT INTO messages_fts (rowid, subject, body_md, sender_name, topic)
  VALUES (NEW.id, indexed_text(NEW.subject), indexed_text(NEW.body_md), indexed_text(NEW.sender_name),
          indexed_text(NEW.topic));
END;

CREATE TRIGGER projects_instants AFTER INSERT ON projects WHEN typeof(NEW.created_at) = 'text'
BEGIN
  UPDATE projects SET created_at = CAST(round((julianday(NEW.created_at) - 2440587.5) * 86400000) AS INTEGER)
   WHERE id = NEW.id;
END;

