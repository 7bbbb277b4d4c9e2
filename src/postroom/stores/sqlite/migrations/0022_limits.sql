-- Limits that hold for all workers of a database: what they count by, and when the last runs of each began.

ALTER TABLE run_dispatches ADD COLUMN limit_key TEXT NOT NULL DEFAULT '';
CREATE TABLE run_starts (
  scope TEXT NOT NULL,
  number INTEGER NOT NULL,
  started_at INTEGER NOT NULL,
  PRIMARY KEY (scope, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX run_starts_old ON run_starts (started_at);
