-- Named tokens: what each lets its holder do. The token is not here, only its SHA-256.

-- `scopes`: words with a space between them. `replaced_at`: when a newer one took the name; until it expires, the
-- older one is good as well.
CREATE TABLE tokens (
  id           TEXT PRIMARY KEY,
  name         TEXT NOT NULL,
  hash         TEXT NOT NULL UNIQUE CHECK (length(hash) = 64),
  scopes       TEXT NOT NULL CHECK (scopes <> ''),
  project_id   INTEGER REFERENCES projects (id),
  created_at   INTEGER NOT NULL,
  expires_at   INTEGER,
  replaced_at  INTEGER,
  revoked_at   INTEGER,
  last_used_at INTEGER,
  CHECK (project_id IS NULL OR instr(' ' || scopes || ' ', ' admin ') = 0)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX tokens_current ON tokens (name) WHERE replaced_at IS NULL AND revoked_at IS NULL;
CREATE INDEX tokens_name ON tokens (name, created_at);
