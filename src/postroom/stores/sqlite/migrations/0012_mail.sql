-- An id of the outbox is never used twice, whatever was removed: finishing a row twice must not remove another.

CREATE TABLE outbox_numbered (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  topic      TEXT NOT NULL,
  key        TEXT NOT NULL,
  project_id INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  attempts   INTEGER NOT NULL DEFAULT 0,
  last_error TEXT NOT NULL DEFAULT ''
);
INSERT INTO outbox_numbered (id, topic, key, project_id, created_at, attempts, last_error)
SELECT id, topic, key, project_id, created_at, attempts, last_error FROM outbox;
DROP TABLE outbox;
ALTER TABLE outbox_numbered RENAME TO outbox;
