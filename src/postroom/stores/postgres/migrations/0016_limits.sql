-- Limits that hold for all workers of a database: what they count by, and when the last runs of each began.

ALTER TABLE run_dispatches ADD COLUMN limit_key text COLLATE "C" NOT NULL DEFAULT '';
CREATE TABLE run_starts (
  scope text COLLATE "C" NOT NULL,
  number bigint NOT NULL,
  started_at bigint NOT NULL,
  PRIMARY KEY (scope, number)
);
CREATE INDEX run_starts_old ON run_starts (started_at);
