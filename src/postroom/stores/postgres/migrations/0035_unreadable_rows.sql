-- Rows that a release cannot read: left out by what looks for work in that release, so that they stop no other row.
-- A newer release, which can read them, is not affected. Older releases note them in `run_quarantine`.
CREATE TABLE unreadable_rows (
  kind    text COLLATE "C" NOT NULL,
  id      text COLLATE "C" NOT NULL,
  release text COLLATE "C" NOT NULL,
  reason  text COLLATE "C" NOT NULL,
  at      bigint NOT NULL,
  PRIMARY KEY (kind, id, release)
);
