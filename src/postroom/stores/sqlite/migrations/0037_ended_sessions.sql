-- Sessions of the pages that were logged out, until they would have ended anyway: no server takes their cookies.

CREATE TABLE ended_sessions (
  hash TEXT PRIMARY KEY,
  ends_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
