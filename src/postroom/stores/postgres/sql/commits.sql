-- lock
WITH locked AS (
  SELECT epoch FROM dispatch_epochs WHERE thread_id = $1::text FOR NO KEY UPDATE
), made AS (
  INSERT INTO dispatch_epochs AS e (thread_id, epoch)
  SELECT $1::text, 0 WHERE NOT EXISTS (SELECT FROM locked)
      ON CONFLICT (thread_id) DO UPDATE SET epoch = e.epoch
  RETURNING epoch
), held AS (
  SELECT epoch FROM locked UNION ALL SELECT epoch FROM made
), proof AS (
  SELECT thread_id, status = 'Claimed' AND claim_token = $4::text AS owned, dispatch_epoch < thread_epoch AS stale
    FROM run_dispatches
   WHERE dispatch_id = $3::text AND EXISTS (SELECT FROM held)
     FOR NO KEY UPDATE
)
SELECT coalesce($2::bigint, {now}), p.thread_id, p.owned, p.stale
  FROM held LEFT JOIN proof p ON true

-- facts
SELECT t.*, r.run_id, r.body,
       (SELECT j.thread_id = $1::text AND j.status = 'Queued' FROM run_dispatches j WHERE j.dispatch_id = $3::text),
       (SELECT m.message_id FROM run_messages m WHERE m.thread_id = $1::text AND m.message_id = ANY ($4::text[])
         LIMIT 1),
       (SELECT a.pending_id FROM unnest($5::text[], $6::bigint[]) AS a (pending_id, revision)
         WHERE NOT EXISTS (SELECT FROM pending_messages p
                            WHERE p.thread_id = $1::text AND p.pending_id = a.pending_id
                              AND p.revision = a.revision)
         LIMIT 1),
       EXISTS (SELECT FROM run_threads above WHERE above.thread_id = $7::text),
       EXISTS (SELECT FROM pending_messages w
                WHERE w.thread_id = $1::text AND NOT w.pending_id = ANY ($5::text[]))
  FROM (SELECT FROM (VALUES (1)) v) one
  LEFT JOIN run_threads t ON t.thread_id = $1::text
  LEFT JOIN runs r ON r.run_id = $2::text

-- delivery_facts
SELECT (SELECT dispatch_id FROM run_dispatches WHERE thread_id = $1::text AND status = 'Claimed'),
       (SELECT count(*) FROM (SELECT FROM run_dispatches WHERE thread_id = $1::text AND status = 'Queued'
                               LIMIT $6::bigint) q),
       c.rule, c.dispatch_id, c.run_id, c.dedupe_key
  FROM (SELECT FROM (VALUES (1)) v) one
  LEFT JOIN LATERAL (
       SELECT * FROM (
         SELECT 0 AS rule, dispatch_id, run_id, dedupe_key FROM run_dispatches WHERE dispatch_id = $2::text
          UNION ALL
         SELECT 1, dispatch_id, run_id, dedupe_key FROM run_dispatches
          WHERE thread_id = $1::text AND dedupe_key = $3::text AND status IN ('Queued', 'Claimed')
            AND NOT ($5::boolean AND status = 'Queued')
          UNION ALL
         SELECT 2, dispatch_id, run_id, dedupe_key FROM run_dispatches
          WHERE run_id = $4::text AND status IN ('Queued', 'Claimed')
            AND NOT ($5::boolean AND status = 'Queued' AND thread_id = $1::text)) any_rule
        ORDER BY rule LIMIT 1) c ON true

-- write
WITH thread AS (
  INSERT INTO run_threads
         (thread_id, parent_thread_id, custom, active_run_id, open_run_id, latest_run_id, latest_run_updated_at,
          message_count, created_at, updated_at)
  VALUES ($1::text, $2::text, '{}', $3::text, $4::text, $5::text, $6::bigint, $7::bigint, $8::bigint, $9::bigint)
      ON CONFLICT (thread_id) DO UPDATE
     SET active_run_id = excluded.active_run_id, open_run_id = excluded.open_run_id,
         latest_run_id = excluded.latest_run_id, latest_run_updated_at = excluded.latest_run_updated_at,
         message_count = excluded.message_count, updated_at = excluded.updated_at
), said AS (
  INSERT INTO run_messages (thread_id, seq, message_id, run_id, visibility, created_at, body)
  SELECT $1::text, a.seq, a.message_id, a.run_id, a.visibility, $10::bigint, a.body
    FROM unnest($11::bigint[], $12::text[], $13::text[], $14::text[], $15::text[])
      AS a (seq, message_id, run_id, visibility, body)
), consumed AS (
  DELETE FROM pending_messages WHERE thread_id = $1::text AND pending_id = ANY ($16::text[])
), state AS (
  INSERT INTO thread_states (thread_id, body) SELECT $1::text, $17::text WHERE $17::text IS NOT NULL
      ON CONFLICT (thread_id) DO UPDATE SET body = excluded.body
)
INSERT INTO runs AS r (run_id, thread_id, status, created_at, updated_at, body)
SELECT $18::text, $1::text, $19::text, $20::bigint, $21::bigint, $22::text WHERE $18::text IS NOT NULL
    ON CONFLICT (run_id) DO UPDATE
   SET status = excluded.status, created_at = excluded.created_at, updated_at = excluded.updated_at,
       body = excluded.body
 WHERE r.thread_id = excluded.thread_id
RETURNING run_id

-- spend
INSERT INTO run_spending (scope, runs, wall_ms, tokens, cost_micros)
SELECT scope, sum(runs)::bigint, sum(wall_ms)::bigint, sum(tokens)::bigint, sum(cost_micros)::bigint
  FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
       AS given (scope, runs, wall_ms, tokens, cost_micros)
 GROUP BY scope ORDER BY scope
    ON CONFLICT (scope) DO UPDATE
   SET runs = run_spending.runs + excluded.runs, wall_ms = run_spending.wall_ms + excluded.wall_ms,
       tokens = run_spending.tokens + excluded.tokens,
       cost_micros = run_spending.cost_micros + excluded.cost_micros
