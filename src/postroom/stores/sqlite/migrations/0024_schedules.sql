-- Schedules: what is submitted again and again. One that is paused has no next instant.

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
CREATE INDEX schedules_due ON schedules (kind, next_at);
