-- set_aside
INSERT INTO run_quarantine (kind, id, reason, at)
VALUES (:kind, :id, :reason, :at)
ON CONFLICT (kind, id) DO NOTHING
RETURNING kind;

-- probe
INSERT INTO probe (id, written_at)
VALUES (1, :now)
ON CONFLICT (id) DO UPDATE SET written_at = excluded.written_at
RETURNING written_at;

-- rehearse
SAVEPOINT rehearsal;

-- forget_rehearsal
ROLLBACK TO SAVEPOINT rehearsal;

-- end_rehearsal
RELEASE SAVEPOINT rehearsal;

-- id
SELECT store_id FROM store_identity WHERE id = 1;

-- identity
SELECT (SELECT store_id FROM store_identity),
       max((SELECT coalesce(max(id), 0) FROM messages), (SELECT indexed_to FROM search_index_progress)),
       EXISTS (SELECT 1 FROM projects) OR EXISTS (SELECT 1 FROM runs);

-- identity @postgres
SELECT (SELECT store_id FROM store_identity),
       coalesce(pg_sequence_last_value(CAST(pg_get_serial_sequence('messages', 'id') AS regclass)), 0),
       EXISTS (SELECT 1 FROM projects) OR EXISTS (SELECT 1 FROM runs);

-- identify
INSERT INTO store_identity (id, store_id) VALUES (1, :store_id)
ON CONFLICT (id) DO NOTHING;

-- has_slugs
SELECT slug FROM projects WHERE slug IN {texts :slugs} LIMIT 1;
