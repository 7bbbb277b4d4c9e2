-- lock
SELECT pg_advisory_xact_lock(hashtextextended($1::text, 0))

-- has_ledger
SELECT to_regclass('schema_migrations') IS NOT NULL

-- ledger
CREATE TABLE IF NOT EXISTS schema_migrations (
  version    integer PRIMARY KEY,
  name       text NOT NULL,
  checksum   text NOT NULL,
  applied_at bigint NOT NULL
)

-- applied
SELECT version, checksum FROM schema_migrations

-- record
INSERT INTO schema_migrations (version, name, checksum, applied_at) VALUES ($1, $2, $3, {now})
