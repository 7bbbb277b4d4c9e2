-- set_aside
INSERT INTO unreadable_rows (kind, id, release, reason, at)
VALUES (:kind, :id, {release}, :reason, :at)
ON CONFLICT (kind, id, release) DO NOTHING
RETURNING kind;

-- unreadable
SELECT kind, id, reason, at FROM unreadable_rows WHERE release = {release} AND at <= :until
 ORDER BY at, kind, id LIMIT :limit;

-- read_again
DELETE FROM unreadable_rows WHERE release = {release} AND at <= :until;

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
SELECT (SELECT store_id FROM store_identity), EXISTS (SELECT 1 FROM projects) OR EXISTS (SELECT 1 FROM runs);

-- identify
INSERT INTO store_identity (id, store_id) VALUES (1, :store_id)
ON CONFLICT (id) DO NOTHING;

-- newest_entries
SELECT slug, (SELECT coalesce(max(seq), 0) FROM event_scopes WHERE scope = 'project:' || projects.id),
       created_at
  FROM projects WHERE slug IN {texts :slugs};

-- merged
SELECT human_key FROM project_aliases WHERE human_key IN {texts :slugs};
