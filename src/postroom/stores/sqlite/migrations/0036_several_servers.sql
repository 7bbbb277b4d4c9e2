-- Servers that share a database: what one does at a time, who does it and until when; and which of them may run
-- a thread, where without a row any may; and the codes that open the pages once, at each of them.

CREATE TABLE leases (
  name TEXT PRIMARY KEY,
  holder TEXT NOT NULL,
  about TEXT NOT NULL,
  fence INTEGER NOT NULL,
  since INTEGER NOT NULL,
  until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE thread_places (
  thread_id TEXT PRIMARY KEY,
  place TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE login_codes (
  hash TEXT PRIMARY KEY,
  ends_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
