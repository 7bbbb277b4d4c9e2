-- The version of a file that each agent last read and last wrote, as hooks of client programs reported it.

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
CREATE INDEX file_views_due ON file_views (agent_id) WHERE notice = 1;
CREATE INDEX file_views_used ON file_views (used_at);
