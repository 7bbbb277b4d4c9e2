CREATE UNIQUE INDEX agents_token ON agents (token_hash) WHERE token_hash IS NOT NULL;

CREATE INDEX attachments_blob ON attachments (sha256);

CREATE INDEX attachments_preview ON attachments (preview_sha256) WHERE preview_sha256 IS NOT NULL;

CREATE INDEX contacts_to ON contacts (to_id);

CREATE INDEX file_reservations_ending ON file_reservations (project_id, expires_at) WHERE released_at IS NULL;

CREATE INDEX file_reservations_held ON file_reservations (agent_id) WHERE released_at IS NULL;

CREATE INDEX file_reservations_live ON file_reservations (project_id, prefix) WHERE released_at IS NULL;

CREATE INDEX file_reservations_project ON file_reservations (project_id, id);

CREATE INDEX idempotency_age ON idempotency (created_at);

CREATE INDEX messages_thread ON messages (project_id, thread_id, id);

CREATE INDEX projects_spelling ON projects (spelling);

CREATE INDEX recipients_unread ON recipients (agent_id, seq) WHERE read_at IS NULL;

CREATE INDEX threads_newest ON threads (project_id, last_id);

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
  inbox_floor      INTEGER NOT NULL DEFAULT 0,
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

CREATE TABLE blobs (
  sha256  TEXT PRIMARY KEY,
  content BLOB NOT NULL
);

CREATE TABLE contacts (
  from_id    INTEGER NOT NULL REFERENCES agents (id),
  to_id      INTEGER NOT NULL REFERENCES agents (id),
  status     TEXT NOT NULL CHECK (status IN ('pending', 'approved', 'blocked')),
  reason     TEXT NOT NULL DEFAULT '',
  created_at INTEGER NOT NULL,
  decided_at INTEGER,
  PRIMARY KEY (from_id, to_id)
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
);

CREATE TABLE idempotency (
  scope      TEXT NOT NULL,
  key        TEXT NOT NULL,
  digest     TEXT NOT NULL,
  answer     BLOB NOT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (scope, key)
);

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
);

CREATE VIRTUAL TABLE messages_fts USING fts5 (
  subject, body_md, sender_name, topic,
  content = 'messages', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
);

CREATE TABLE outbox (
  id         INTEGER PRIMARY KEY,
  topic      TEXT NOT NULL,
  key        TEXT NOT NULL,
  project_id INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  attempts   INTEGER NOT NULL DEFAULT 0,
  last_error TEXT NOT NULL DEFAULT ''
);

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

CREATE TABLE recipients (
  message_id INTEGER NOT NULL REFERENCES messages (id),
  agent_id   INTEGER NOT NULL REFERENCES agents (id),
  kind       TEXT NOT NULL CHECK (kind IN ('to', 'cc', 'bcc')),
  seq        INTEGER NOT NULL CHECK (seq > 0),
  read_at    INTEGER,
  acked_at   INTEGER,
  position   INTEGER NOT NULL DEFAULT 0,
  CHECK (acked_at IS NULL OR read_at IS NOT NULL),
  PRIMARY KEY (agent_id, seq),
  UNIQUE (message_id, agent_id)
) WITHOUT ROWID;

CREATE TABLE schema_migrations (
  version    INTEGER PRIMARY KEY,
  name       TEXT NOT NULL,
  checksum   TEXT NOT NULL,
  applied_at INTEGER NOT NULL
);

CREATE TABLE settled (
  id         INTEGER PRIMARY KEY CHECK (id = 1),
  settled_to INTEGER NOT NULL
);

CREATE TABLE threads (
  project_id INTEGER NOT NULL,
  thread_id  TEXT NOT NULL,
  first_id   INTEGER NOT NULL,
  last_id    INTEGER NOT NULL,
  messages   INTEGER NOT NULL,
  PRIMARY KEY (project_id, thread_id)
) WITHOUT ROWID;

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
  WHEN OLD.id <= (SELECT settled_to FROM settled)
BEGIN
  INSERT INTO messages_fts (messages_fts, rowid, subject, body_md, sender_name, topic)
  VALUES ('delete', OLD.id, OLD.subject, OLD.body_md, OLD.sender_name, OLD.topic);
  INSERT INTO messages_fts (rowid, subject, body_md, sender_name, topic)
  VALUES (NEW.id, NEW.subject, NEW.body_md, NEW.sender_name, NEW.topic);
END;

CREATE TRIGGER projects_instants AFTER INSERT ON projects WHEN typeof(NEW.created_at) = 'text'
BEGIN
  UPDATE projects SET created_at = CAST(round((julianday(NEW.created_at) - 2440587.5) * 86400000) AS INTEGER)
   WHERE id = NEW.id;
END;

