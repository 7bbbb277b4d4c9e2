-- Rows that a release cannot read: left out by what looks for work in that release, so that they stop no other row.
-- A newer release, which can read them, is not affected. Older releases note them in `run_quarantine`.
CREATE TABLE unreadable_rows (
  kind    TEXT NOT NULL,
  id      TEXT NOT NULL,
  release TEXT NOT NULL,
  reason  TEXT NOT NULL,
  at      INTEGER NOT NULL,
  PRIMARY KEY (kind, id, release)
) STRICT, WITHOUT ROWID;
