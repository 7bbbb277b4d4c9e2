-- What happened in each project, numbered without gaps; written with the change that it tells of. The next
-- number is one more than the newest, so the newest entry of a project is never removed.

CREATE TABLE project_events (
  project_id     INTEGER NOT NULL REFERENCES projects (id),
  seq            INTEGER NOT NULL CHECK (seq > 0),
  at             INTEGER NOT NULL,
  kind           TEXT NOT NULL,
  agent_id       INTEGER,
  message_id     INTEGER,
  reservation_id INTEGER,
  run_id         TEXT,
  detail         TEXT NOT NULL DEFAULT '{}',
  PRIMARY KEY (project_id, seq)
) STRICT, WITHOUT ROWID;
