-- What one server does at a time, of all that work on one database: who does it, and until when.

CREATE TABLE leases (
  name TEXT PRIMARY KEY,
  holder TEXT NOT NULL,
  about TEXT NOT NULL,
  fence INTEGER NOT NULL,
  since INTEGER NOT NULL,
  until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
