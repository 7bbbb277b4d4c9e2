-- schema
SELECT type, name, sql FROM sqlite_schema
 WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY type DESC, name;

-- steps
SELECT version, name, applied_at FROM schema_migrations ORDER BY version;

-- states
SELECT status, count(*) FROM run_dispatches GROUP BY status ORDER BY status;

-- queue
SELECT dispatch_id, run_id, status, attempt_count, max_attempts, created_at, available_at, updated_at
  FROM run_dispatches WHERE status IN ('Queued', 'Claimed', 'DeadLetter')
 ORDER BY updated_at, dispatch_id LIMIT :limit;
