-- lock
WITH locked AS (
  SELECT epoch FROM dispatch_epochs WHERE thread_id = $1::text FOR NO KEY UPDATE
), made AS (
  INSERT INTO dispatch_epochs AS e (thread_id, epoch)
  SELECT $1::text, 0 WHERE NOT EXISTS (SELECT FROM locked)
      ON CONFLICT (thread_id) DO UPDATE SET epoch = e.epoch
  RETURNING epoch
)
SELECT coalesce($2::bigint, {now}) FROM (SELECT * FROM locked UNION ALL SELECT * FROM made) held

-- lock_several
SELECT thread_id FROM dispatch_epochs WHERE thread_id = ANY ($1::text[]) ORDER BY thread_id FOR NO KEY UPDATE

-- lock_lineage
SELECT pg_advisory_xact_lock(hashtextextended('postroom lineage ' || current_schema(), 0))

-- facts
SELECT t.*, n.body AS named, o.body AS open, l.run_id, l.body AS latest, s.run_id, s.body AS started,
       p.places, p.ids, p.revisions, p.modes, p.bodies, p.created, p.updated
  FROM (SELECT FROM (VALUES (1)) v) one
  LEFT JOIN run_threads t ON t.thread_id = $1::text
  LEFT JOIN runs n ON n.run_id = $2::text
  LEFT JOIN runs o ON o.run_id = t.open_run_id
  LEFT JOIN LATERAL (SELECT run_id, body FROM runs WHERE thread_id = $1::text
                      ORDER BY thread_id DESC, updated_at DESC, created_at DESC, run_id DESC LIMIT 1) l ON true
  LEFT JOIN LATERAL (SELECT run_id, body FROM runs WHERE thread_id = $1::text AND status <> 'created'
                      ORDER BY thread_id DESC, updated_at DESC, created_at DESC, run_id DESC LIMIT 1) s ON true
 CROSS JOIN LATERAL (
       SELECT array_agg(place ORDER BY place) AS places, array_agg(pending_id ORDER BY place) AS ids,
              array_agg(revision ORDER BY place) AS revisions, array_agg(mode ORDER BY place) AS modes,
              array_agg(body ORDER BY place) AS bodies, array_agg(created_at ORDER BY place) AS created,
              array_agg(updated_at ORDER BY place) AS updated
         FROM pending_messages WHERE thread_id = $1::text) p

-- load
SELECT * FROM run_threads WHERE thread_id = $1::text

-- lineage
WITH RECURSIVE above (thread_id, parent_thread_id) AS (
  SELECT thread_id, parent_thread_id FROM run_threads WHERE thread_id = $1::text
   UNION
  SELECT t.thread_id, t.parent_thread_id FROM above a JOIN run_threads t ON t.thread_id = a.parent_thread_id
)
SELECT thread_id FROM above

-- save
INSERT INTO run_threads
       (thread_id, title, resource_id, parent_thread_id, custom, active_run_id, open_run_id, latest_run_id,
        latest_run_updated_at, message_count, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0, $10, $11)
    ON CONFLICT (thread_id) DO UPDATE
   SET title = excluded.title, resource_id = excluded.resource_id, parent_thread_id = excluded.parent_thread_id,
       custom = excluded.custom, active_run_id = excluded.active_run_id, open_run_id = excluded.open_run_id,
       latest_run_id = excluded.latest_run_id, latest_run_updated_at = excluded.latest_run_updated_at,
       created_at = excluded.created_at, updated_at = excluded.updated_at

-- point
UPDATE run_threads
   SET active_run_id = $2::text, open_run_id = $3::text, latest_run_id = $4::text,
       latest_run_updated_at = $5::bigint, updated_at = $6::bigint
 WHERE thread_id = $1::text

-- make
INSERT INTO run_threads (thread_id, custom, message_count, created_at, updated_at)
VALUES ($1::text, '{}', 0, $2::bigint, $2::bigint)
    ON CONFLICT DO NOTHING

-- children
SELECT thread_id FROM run_threads WHERE parent_thread_id = $1::text ORDER BY thread_id

-- descendants
WITH RECURSIVE below (thread_id) AS (
  SELECT $1::text COLLATE "C"
   UNION
  SELECT t.thread_id FROM below b JOIN run_threads t ON t.parent_thread_id = b.thread_id
)
SELECT thread_id FROM below

-- detach
UPDATE run_threads SET parent_thread_id = NULL WHERE parent_thread_id = $1::text

-- drop
WITH messages AS (DELETE FROM run_messages WHERE thread_id = ANY ($1::text[])),
     waiting AS (DELETE FROM pending_messages WHERE thread_id = ANY ($1::text[])),
     ran AS (DELETE FROM runs WHERE thread_id = ANY ($1::text[])),
     states AS (DELETE FROM thread_states WHERE thread_id = ANY ($1::text[]))
DELETE FROM run_threads WHERE thread_id = ANY ($1::text[])

-- list
SELECT * FROM run_threads
 WHERE thread_id > $1::text AND thread_id >= $2::text AND thread_id < $3::text
 ORDER BY thread_id LIMIT $4::bigint

-- list_of_resource
SELECT * FROM run_threads
 WHERE resource_id = $5::text AND thread_id > $1::text AND thread_id >= $2::text AND thread_id < $3::text
 ORDER BY resource_id, thread_id LIMIT $4::bigint

-- list_children
SELECT * FROM run_threads
 WHERE parent_thread_id = $5::text AND thread_id > $1::text AND thread_id >= $2::text AND thread_id < $3::text
   AND ($6::text IS NULL OR resource_id = $6::text)
 ORDER BY parent_thread_id, thread_id LIMIT $4::bigint

-- list_roots
SELECT * FROM run_threads
 WHERE parent_thread_id IS NULL AND thread_id > $1::text AND thread_id >= $2::text AND thread_id < $3::text
   AND ($5::text IS NULL OR resource_id = $5::text)
 ORDER BY thread_id LIMIT $4::bigint

-- create_run
INSERT INTO runs (run_id, thread_id, status, created_at, updated_at, body)
VALUES ($1::text, $2::text, $3::text, $4::bigint, $5::bigint, $6::text)
    ON CONFLICT DO NOTHING
RETURNING run_id

-- load_run
SELECT run_id, body FROM runs WHERE run_id = $1::text

-- latest_run
SELECT run_id, body FROM runs WHERE thread_id = $1::text
 ORDER BY thread_id DESC, updated_at DESC, created_at DESC, run_id DESC LIMIT 1

-- latest_runs
SELECT run_id, body FROM runs WHERE thread_id = $1::text
 ORDER BY thread_id DESC, updated_at DESC, created_at DESC, run_id DESC LIMIT $2::bigint

-- runs
SELECT run_id, body FROM runs
 WHERE run_id > $1::text AND run_id >= $2::text AND run_id < $3::text AND status = ANY ($5::text[])
 ORDER BY run_id LIMIT $4::bigint

-- runs_open
SELECT run_id, body FROM runs
 WHERE status <> 'done' AND run_id > $1::text AND run_id >= $2::text AND run_id < $3::text
   AND status = ANY ($5::text[])
   AND NOT EXISTS (SELECT FROM run_quarantine q WHERE q.kind = 'run' AND q.id = run_id)
 ORDER BY run_id LIMIT $4::bigint

-- runs_of_thread
SELECT run_id, body FROM runs
 WHERE thread_id = $6::text AND run_id > $1::text AND run_id >= $2::text AND run_id < $3::text
   AND status = ANY ($5::text[])
 ORDER BY thread_id, run_id LIMIT $4::bigint

-- runs_open_of_thread
SELECT run_id, body FROM runs
 WHERE thread_id = $6::text AND status <> 'done' AND run_id > $1::text AND run_id >= $2::text
   AND run_id < $3::text AND status = ANY ($5::text[])
 ORDER BY thread_id, run_id LIMIT $4::bigint

-- messages
SELECT t.thread_id, m.seq, m.created_at, m.body
  FROM run_threads t LEFT JOIN run_messages m ON m.thread_id = t.thread_id
 WHERE t.thread_id = $1::text ORDER BY m.seq

-- messages_named
SELECT thread_id, seq, created_at, body FROM run_messages
 WHERE thread_id = $1::text AND message_id = ANY ($2::text[]) ORDER BY seq

-- messages_from
SELECT thread_id, seq, created_at, body FROM run_messages
 WHERE thread_id = $1::text AND seq > $2::bigint AND seq < $3::bigint
   AND ($5::text IS NULL OR visibility = $5::text)
 ORDER BY thread_id, seq LIMIT $4::bigint

-- messages_back
SELECT thread_id, seq, created_at, body FROM run_messages
 WHERE thread_id = $1::text AND seq > $2::bigint AND seq < $3::bigint
   AND ($5::text IS NULL OR visibility = $5::text)
 ORDER BY thread_id DESC, seq DESC LIMIT $4::bigint

-- messages_of_run_from
SELECT thread_id, seq, created_at, body FROM run_messages
 WHERE thread_id = $1::text AND run_id = $6::text AND seq > $2::bigint AND seq < $3::bigint
   AND ($5::text IS NULL OR visibility = $5::text)
 ORDER BY thread_id, run_id, seq LIMIT $4::bigint

-- messages_of_run_back
SELECT thread_id, seq, created_at, body FROM run_messages
 WHERE thread_id = $1::text AND run_id = $6::text AND seq > $2::bigint AND seq < $3::bigint
   AND ($5::text IS NULL OR visibility = $5::text)
 ORDER BY thread_id DESC, run_id DESC, seq DESC LIMIT $4::bigint

-- delete_messages
DELETE FROM run_messages WHERE thread_id = $1::text RETURNING seq

-- state
SELECT body FROM thread_states WHERE thread_id = $1::text

-- spending
SELECT scope, runs, wall_ms, tokens, cost_micros FROM run_spending WHERE scope = ANY ($1::text[])

-- pending
SELECT * FROM pending_messages WHERE thread_id = $1::text ORDER BY thread_id, place

-- pending_threads
WITH RECURSIVE found (thread_id, number) AS (
  (SELECT thread_id, 1 FROM pending_messages WHERE thread_id > $1::text ORDER BY thread_id LIMIT 1)
   UNION ALL
  SELECT n.thread_id, f.number + 1
    FROM found f
   CROSS JOIN LATERAL (SELECT thread_id FROM pending_messages WHERE thread_id > f.thread_id
                        ORDER BY thread_id LIMIT 1) n
   WHERE f.number < $2::bigint
)
SELECT thread_id FROM found ORDER BY thread_id LIMIT $2::bigint

-- on_the_thread
SELECT message_id, true AS committed FROM run_messages WHERE thread_id = $1::text AND message_id = ANY ($2::text[])
 UNION ALL
SELECT pending_id, false FROM pending_messages WHERE thread_id = $1::text AND pending_id = ANY ($2::text[])

-- append_pending
INSERT INTO pending_messages (thread_id, place, pending_id, revision, mode, body, created_at, updated_at)
SELECT $1::text, m.last + a.ord, a.pending_id, 1, $4::text, a.body, $5::bigint, $5::bigint
  FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS a (pending_id, body, ord),
       (SELECT coalesce(max(place), 0) AS last FROM pending_messages WHERE thread_id = $1::text) m

-- edit_pending
UPDATE pending_messages SET body = $3::text, revision = revision + 1, updated_at = $4::bigint
 WHERE thread_id = $1::text AND pending_id = $2::text

-- retract_pending
DELETE FROM pending_messages WHERE thread_id = $1::text AND pending_id = $2::text

-- reorder_pending
UPDATE pending_messages p SET place = m.last + a.ord
  FROM unnest($2::text[]) WITH ORDINALITY AS a (pending_id, ord),
       (SELECT max(place) AS last FROM pending_messages WHERE thread_id = $1::text) m
 WHERE p.thread_id = $1::text AND p.pending_id = a.pending_id
