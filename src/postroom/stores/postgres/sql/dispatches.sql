Statements about dispatches. Where a row is named by its id, its status is compared as `status || ''`: while the
partial indexes are nearly empty they look cheap to the planner, even to be read whole, and a plan is kept.

-- enqueue
WITH asked AS (
  SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::int[],
                       $8::text[], $9::int[], $10::int[], $11::bigint[], $12::text[], $13::text[], $14::bigint[],
                       $15::boolean[])
           WITH ORDINALITY AS a (dispatch_id, thread_id, run_id, created_at, available_at, updated_at, priority,
                                 dedupe_key, attempt_count, max_attempts, deadline_at, tenant, last_error,
                                 claimed_at, reconciled, ord)
), locked AS (
  SELECT thread_id, epoch FROM dispatch_epochs WHERE thread_id = ANY ($2::text[])
   ORDER BY thread_id FOR NO KEY UPDATE
), made AS (
  INSERT INTO dispatch_epochs AS e (thread_id, epoch)
  SELECT DISTINCT a.thread_id, 0 FROM asked a
   WHERE NOT EXISTS (SELECT FROM locked l WHERE l.thread_id = a.thread_id) ORDER BY a.thread_id
      ON CONFLICT (thread_id) DO UPDATE SET epoch = e.epoch
  RETURNING thread_id, epoch
)
INSERT INTO run_dispatches
       (dispatch_id, thread_id, run_id, created_at, available_at, updated_at, status, priority, dedupe_key,
        attempt_count, max_attempts, deadline_at, tenant, last_error, claimed_at, reconciled,
        dispatch_epoch, thread_epoch)
SELECT a.dispatch_id, a.thread_id, a.run_id, a.created_at, a.available_at, a.updated_at, 'Queued', a.priority,
       a.dedupe_key, a.attempt_count, a.max_attempts, a.deadline_at, a.tenant, a.last_error, a.claimed_at,
       a.reconciled, e.epoch, e.epoch
  FROM asked a
  JOIN (SELECT * FROM locked UNION ALL SELECT * FROM made) e ON e.thread_id = a.thread_id
 ORDER BY a.ord
    ON CONFLICT DO NOTHING
RETURNING dispatch_id, dispatch_epoch

-- conflict
SELECT d.rule, d.dispatch_id, d.run_id, d.dedupe_key
  FROM (SELECT 0 AS rule, dispatch_id, run_id, dedupe_key FROM run_dispatches WHERE dispatch_id = $1::text
         UNION ALL
        SELECT 1, dispatch_id, run_id, dedupe_key FROM run_dispatches
         WHERE thread_id = $2::text AND dedupe_key = $3::text AND status IN ('Queued', 'Claimed')
         UNION ALL
        SELECT 2, dispatch_id, run_id, dedupe_key FROM run_dispatches
         WHERE run_id = $4::text AND status IN ('Queued', 'Claimed')) d
 ORDER BY d.rule
 LIMIT 1

-- lock_threads
SELECT thread_id FROM dispatch_epochs WHERE thread_id = ANY ($1::text[]) ORDER BY thread_id FOR NO KEY UPDATE

-- lock_threads_of
SELECT thread_id FROM dispatch_epochs
 WHERE thread_id IN (SELECT thread_id FROM run_dispatches WHERE dispatch_id = ANY ($1::text[]))
 ORDER BY thread_id FOR NO KEY UPDATE

-- claim
WITH asked AS (
  SELECT a.*, coalesce(a.at, {now}) AS now
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])
      AS a (thread_id, consumer, token, lease_ms, at)
), picked AS (
  SELECT a.thread_id, a.consumer, a.token, a.lease_ms, a.now, n.dispatch_id, n.dispatch_epoch < e.epoch AS stale
    FROM asked a
    JOIN dispatch_epochs e ON e.thread_id = a.thread_id
   CROSS JOIN LATERAL (
         SELECT d.dispatch_id, d.dispatch_epoch FROM run_dispatches d
          WHERE d.thread_id = a.thread_id AND d.status = 'Queued' AND d.available_at <= a.now
            AND NOT EXISTS (SELECT FROM run_quarantine q WHERE q.kind = 'dispatch' AND q.id = d.dispatch_id)
          ORDER BY d.thread_id, d.priority, d.created_at, d.dispatch_id LIMIT 1) n
   WHERE NOT EXISTS (SELECT FROM run_dispatches c WHERE c.thread_id = a.thread_id AND c.status = 'Claimed')
), owned AS (
  UPDATE run_dispatches d
     SET status = 'Claimed', claim_token = p.token, claimed_by = p.consumer, claimed_at = p.now,
         lease_until = p.now + p.lease_ms, updated_at = p.now
    FROM picked p
   WHERE d.dispatch_id = p.dispatch_id AND d.status || '' = 'Queued' AND NOT p.stale
  RETURNING d.*
)
SELECT o.*, s.threads
  FROM (SELECT array_agg(thread_id) FILTER (WHERE stale) AS threads FROM picked) s
  LEFT JOIN owned o ON true

-- claim_dispatch
WITH asked AS (
  SELECT a.*, coalesce(a.at, {now}) AS now
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])
      AS a (dispatch_id, consumer, token, lease_ms, at)
), stale AS (
  UPDATE run_dispatches d
     SET status = 'Superseded', last_error = $6::text, completed_at = a.now, updated_at = a.now, reconciled = false
    FROM asked a, dispatch_epochs e
   WHERE d.dispatch_id = a.dispatch_id AND d.status || '' = 'Queued' AND e.thread_id = d.thread_id
     AND d.dispatch_epoch < e.epoch
), picked AS (
  SELECT DISTINCT ON (d.thread_id) a.*, e.epoch
    FROM asked a
    JOIN run_dispatches d ON d.dispatch_id = a.dispatch_id
    JOIN dispatch_epochs e ON e.thread_id = d.thread_id
   WHERE d.status || '' = 'Queued' AND d.dispatch_epoch = e.epoch
     AND NOT EXISTS (SELECT FROM run_dispatches c WHERE c.thread_id = d.thread_id AND c.status = 'Claimed')
   ORDER BY d.thread_id, a.dispatch_id
)
UPDATE run_dispatches d
   SET status = 'Claimed', claim_token = p.token, claimed_by = p.consumer, claimed_at = p.now,
       lease_until = p.now + p.lease_ms, updated_at = p.now
  FROM picked p
 WHERE d.dispatch_id = p.dispatch_id AND d.status || '' = 'Queued' AND d.dispatch_epoch = p.epoch
RETURNING d.*

-- supersede_stale
UPDATE run_dispatches d
   SET status = 'Superseded', last_error = $2::text, completed_at = coalesce($3::bigint, {now}),
       updated_at = coalesce($3::bigint, {now}), reconciled = false
  FROM dispatch_epochs e
 WHERE e.thread_id = ANY ($1::text[]) AND d.thread_id = e.thread_id AND d.status = 'Queued'
   AND d.dispatch_epoch < e.epoch

-- give_back_unread
UPDATE run_dispatches
   SET status = 'Queued', claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = NULL
 WHERE dispatch_id = $1::text AND status || '' = 'Claimed' AND claim_token = $2::text

-- start
UPDATE run_dispatches d
   SET dispatch_instance_id = a.instance_id, run_status = 'running', termination = NULL, run_response = NULL,
       run_error = NULL, completed_at = NULL, updated_at = a.now
  FROM (SELECT u.*, coalesce(u.at, {now}) AS now
          FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
            AS u (dispatch_id, token, at, instance_id) OFFSET 0) a
 WHERE d.dispatch_id = a.dispatch_id AND d.status || '' = 'Claimed' AND d.claim_token = a.token
   AND d.dispatch_epoch = d.thread_epoch
RETURNING d.*

-- result
UPDATE run_dispatches d
   SET dispatch_instance_id = a.instance_id, run_status = a.run_status, termination = a.termination,
       run_response = a.response, run_error = a.error, completed_at = a.now, updated_at = a.now
  FROM (SELECT u.*, coalesce(u.at, {now}) AS now
          FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[],
                      $8::text[], $9::text[])
            AS u (dispatch_id, token, at, run_id, instance_id, run_status, termination, response, error)
        OFFSET 0) a
 WHERE d.dispatch_id = a.dispatch_id AND d.status || '' = 'Claimed' AND d.claim_token = a.token
   AND d.dispatch_epoch = d.thread_epoch AND d.run_id = a.run_id
RETURNING d.*

-- ack
UPDATE run_dispatches d
   SET status = 'Acked', claim_token = NULL, claimed_by = NULL, lease_until = NULL, completed_at = a.now,
       updated_at = a.now, reconciled = true
  FROM (SELECT u.*, coalesce(u.at, {now}) AS now
          FROM unnest($1::text[], $2::text[], $3::bigint[]) AS u (dispatch_id, token, at) OFFSET 0) a
 WHERE d.dispatch_id = a.dispatch_id AND d.status || '' = 'Claimed' AND d.claim_token = a.token
   AND d.dispatch_epoch = d.thread_epoch
RETURNING d.*

-- nack
WITH asked AS (
  SELECT u.*, coalesce(u.at, {now}) AS now
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::bigint[])
      AS u (dispatch_id, token, at, error, delay_ms)
), back AS (
  UPDATE run_dispatches d
     SET status = 'Queued', attempt_count = d.attempt_count + 1, last_error = a.error,
         available_at = a.now + a.delay_ms, updated_at = a.now,
         claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = NULL, completed_at = NULL,
         dispatch_instance_id = NULL, run_status = NULL, termination = NULL, run_response = NULL, run_error = NULL
    FROM asked a
   WHERE d.dispatch_id = a.dispatch_id AND d.status || '' = 'Claimed' AND d.claim_token = a.token
     AND d.dispatch_epoch = d.thread_epoch AND d.attempt_count + 1 < d.max_attempts
  RETURNING d.*
), dead AS (
  UPDATE run_dispatches d
     SET status = 'DeadLetter', attempt_count = d.attempt_count + 1, last_error = a.error,
         claim_token = NULL, claimed_by = NULL, lease_until = NULL, completed_at = a.now, updated_at = a.now,
         reconciled = false
    FROM asked a
   WHERE d.dispatch_id = a.dispatch_id AND d.status || '' = 'Claimed' AND d.claim_token = a.token
     AND d.dispatch_epoch = d.thread_epoch AND d.attempt_count + 1 >= d.max_attempts
  RETURNING d.*
)
SELECT * FROM back UNION ALL SELECT * FROM dead

-- release
UPDATE run_dispatches d
   SET status = 'Queued', available_at = a.now, updated_at = a.now,
       claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = NULL, completed_at = NULL,
       dispatch_instance_id = NULL, run_status = NULL, termination = NULL, run_response = NULL, run_error = NULL
  FROM (SELECT u.*, coalesce(u.at, {now}) AS now
          FROM unnest($1::text[], $2::text[], $3::bigint[]) AS u (dispatch_id, token, at) OFFSET 0) a
 WHERE d.dispatch_id = a.dispatch_id AND d.status || '' = 'Claimed' AND d.claim_token = a.token
   AND d.dispatch_epoch = d.thread_epoch
RETURNING d.*

-- dead_letter
UPDATE run_dispatches d
   SET status = 'DeadLetter', last_error = a.error, claim_token = NULL, claimed_by = NULL, lease_until = NULL,
       completed_at = a.now, updated_at = a.now, reconciled = false
  FROM (SELECT u.*, coalesce(u.at, {now}) AS now
          FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
            AS u (dispatch_id, token, at, error) OFFSET 0) a
 WHERE d.dispatch_id = a.dispatch_id AND d.status || '' = 'Claimed' AND d.claim_token = a.token
   AND d.dispatch_epoch = d.thread_epoch
RETURNING d.*

-- extend
UPDATE run_dispatches d
   SET lease_until = a.now + a.extension_ms, updated_at = a.now
  FROM (SELECT u.*, coalesce(u.at, {now}) AS now
          FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
            AS u (dispatch_id, token, at, extension_ms) OFFSET 0) a
 WHERE d.dispatch_id = a.dispatch_id AND d.status || '' = 'Claimed' AND d.claim_token = a.token
   AND d.dispatch_epoch = d.thread_epoch
RETURNING d.*

-- lost_claims
WITH asked AS (
  SELECT u.*, coalesce(u.at, {now}) AS now
    FROM unnest($1::text[], $2::text[], $3::bigint[]) AS u (dispatch_id, token, at)
), stale AS (
  UPDATE run_dispatches d
     SET status = 'Superseded', last_error = $4::text, claim_token = NULL, claimed_by = NULL, lease_until = NULL,
         dispatch_instance_id = NULL, run_status = NULL, termination = NULL, run_response = NULL,
         run_error = NULL, completed_at = a.now, updated_at = a.now, reconciled = false
    FROM asked a
   WHERE d.dispatch_id = a.dispatch_id AND d.status || '' = 'Claimed' AND d.claim_token = a.token
     AND d.dispatch_epoch < d.thread_epoch
  RETURNING d.dispatch_id
)
SELECT a.dispatch_id, d.run_id, s.dispatch_id IS NOT NULL AS stale,
       d.status = 'Claimed' AND d.claim_token = a.token AND d.dispatch_epoch = d.thread_epoch AS owned
  FROM asked a
  LEFT JOIN run_dispatches d ON d.dispatch_id = a.dispatch_id
  LEFT JOIN stale s ON s.dispatch_id = a.dispatch_id

-- supersede_claimed
UPDATE run_dispatches
   SET status = 'Superseded', last_error = $3::text, claim_token = NULL, claimed_by = NULL, lease_until = NULL,
       dispatch_instance_id = NULL, run_status = NULL, termination = NULL, run_response = NULL, run_error = NULL,
       completed_at = coalesce($4::bigint, t.now), updated_at = coalesce($4::bigint, t.now), reconciled = false
  FROM (SELECT {now} AS now OFFSET 0) t
 WHERE dispatch_id = $1::text AND status || '' = 'Claimed' AND claim_token = $2::text
RETURNING run_dispatches.*

-- cancel
WITH locked AS (
  SELECT thread_id, coalesce($2::bigint, {now}) AS now FROM dispatch_epochs
   WHERE thread_id = (SELECT thread_id FROM run_dispatches WHERE dispatch_id = $1::text)
     FOR NO KEY UPDATE
)
UPDATE run_dispatches d
   SET status = 'Cancelled', completed_at = l.now, updated_at = l.now, reconciled = false
  FROM locked l
 WHERE d.dispatch_id = $1::text AND d.thread_id = l.thread_id AND d.status || '' = 'Queued'
RETURNING d.*

-- raise_epoch
INSERT INTO dispatch_epochs AS e (thread_id, epoch) VALUES ($1::text, 1)
    ON CONFLICT (thread_id) DO UPDATE SET epoch = e.epoch + 1
RETURNING epoch

-- supersede_queued
UPDATE run_dispatches d
   SET thread_epoch = $2::bigint,
       status = CASE d.status WHEN 'Queued' THEN 'Superseded' ELSE d.status END,
       last_error = CASE d.status WHEN 'Queued' THEN $3::text ELSE d.last_error END,
       completed_at = CASE d.status WHEN 'Queued' THEN t.now ELSE d.completed_at END,
       updated_at = CASE d.status WHEN 'Queued' THEN t.now ELSE d.updated_at END,
       reconciled = CASE d.status WHEN 'Queued' THEN false ELSE d.reconciled END
  FROM (SELECT coalesce($4::bigint, {now}) AS now OFFSET 0) t
 WHERE (d.thread_id = $1::text AND d.status = 'Queued') OR (d.thread_id = $1::text AND d.status = 'Claimed')
RETURNING d.*

-- epoch
SELECT epoch FROM dispatch_epochs WHERE thread_id = $1::text

-- reclaim
WITH t AS (
  SELECT coalesce($1::bigint, {now}) AS now
), expired AS (
  SELECT d.dispatch_id, t.now FROM run_dispatches d, t
   WHERE d.status = 'Claimed' AND d.lease_until < t.now
     AND NOT EXISTS (SELECT FROM run_quarantine q WHERE q.kind = 'dispatch' AND q.id = d.dispatch_id)
   ORDER BY d.lease_until, d.dispatch_id
   LIMIT $2::bigint
     FOR NO KEY UPDATE OF d SKIP LOCKED
), stale AS (
  UPDATE run_dispatches d
     SET status = 'Superseded', last_error = $3::text, claim_token = NULL, claimed_by = NULL, lease_until = NULL,
         dispatch_instance_id = NULL, run_status = NULL, termination = NULL, run_response = NULL,
         run_error = NULL, completed_at = x.now, updated_at = x.now, reconciled = false
    FROM expired x
   WHERE d.dispatch_id = x.dispatch_id AND d.status || '' = 'Claimed' AND d.lease_until < x.now
     AND d.dispatch_epoch < d.thread_epoch
  RETURNING d.*
), back AS (
  UPDATE run_dispatches d
     SET status = 'Queued', attempt_count = d.attempt_count + 1, last_error = $4::text, available_at = x.now,
         updated_at = x.now, claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = NULL,
         completed_at = NULL, dispatch_instance_id = NULL, run_status = NULL, termination = NULL,
         run_response = NULL, run_error = NULL
    FROM expired x
   WHERE d.dispatch_id = x.dispatch_id AND d.status || '' = 'Claimed' AND d.lease_until < x.now
     AND d.dispatch_epoch = d.thread_epoch AND d.attempt_count + 1 < d.max_attempts
  RETURNING d.*
), dead AS (
  UPDATE run_dispatches d
     SET status = 'DeadLetter', attempt_count = d.attempt_count + 1, last_error = $5::text, claim_token = NULL,
         claimed_by = NULL, lease_until = NULL, dispatch_instance_id = NULL, run_status = NULL,
         termination = NULL, run_response = NULL, run_error = NULL, completed_at = x.now, updated_at = x.now,
         reconciled = false
    FROM expired x
   WHERE d.dispatch_id = x.dispatch_id AND d.status || '' = 'Claimed' AND d.lease_until < x.now
     AND d.dispatch_epoch = d.thread_epoch AND d.attempt_count + 1 >= d.max_attempts
  RETURNING d.*
)
SELECT * FROM stale UNION ALL SELECT * FROM back UNION ALL SELECT * FROM dead

-- load
SELECT * FROM run_dispatches WHERE dispatch_id = $1::text

-- of_thread
SELECT * FROM (
  (SELECT * FROM run_dispatches WHERE thread_id = $1::text AND status = 'Queued' AND status = ANY ($2::text[])
    ORDER BY thread_id, priority, created_at, dispatch_id LIMIT $3::bigint + $4::bigint)
   UNION ALL
  (SELECT * FROM run_dispatches WHERE thread_id = $1::text AND status = 'Claimed' AND status = ANY ($2::text[]))
   UNION ALL
  (SELECT * FROM run_dispatches
    WHERE thread_id = $1::text AND ended_at IS NOT NULL AND status = ANY ($2::text[])
    ORDER BY thread_id, priority, created_at, dispatch_id LIMIT $3::bigint + $4::bigint)) d
 ORDER BY priority, created_at, dispatch_id
 LIMIT $3::bigint OFFSET $4::bigint

-- claimed
SELECT * FROM run_dispatches WHERE thread_id = $1::text AND status = 'Claimed'

-- ended
SELECT * FROM run_dispatches
 WHERE status = $1::text AND ended_at IS NOT NULL AND (ended_at, dispatch_id) > ($2::bigint, $3::text)
 ORDER BY status, ended_at, dispatch_id
 LIMIT $4::bigint

-- queued
SELECT * FROM run_dispatches
 WHERE status = 'Queued' AND (updated_at, dispatch_id) > ($1::bigint, $2::text)
 ORDER BY updated_at, dispatch_id
 LIMIT $3::bigint

-- owned
SELECT * FROM run_dispatches
 WHERE status = 'Claimed' AND (updated_at, dispatch_id) > ($1::bigint, $2::text)
 ORDER BY updated_at, dispatch_id
 LIMIT $3::bigint

-- unreconciled
SELECT * FROM run_dispatches d
 WHERE NOT reconciled
   AND NOT EXISTS (SELECT FROM run_quarantine q WHERE q.kind = 'dispatch' AND q.id = d.dispatch_id)
 ORDER BY ended_at, dispatch_id
 LIMIT $1::bigint

-- mark_reconciled
UPDATE run_dispatches SET reconciled = true WHERE dispatch_id = ANY ($1::text[]) AND reconciled::int = 0

-- due
SELECT d.thread_id, d.priority, d.created_at, d.dispatch_id
  FROM run_dispatches d
 WHERE d.status = 'Queued' AND d.available_at <= coalesce($1::bigint, (SELECT {now}))
   AND (d.priority, d.created_at, d.dispatch_id) > ($2::int, $3::bigint, $4::text)
   AND NOT EXISTS (SELECT FROM run_dispatches c WHERE c.thread_id = d.thread_id AND c.status = 'Claimed')
 ORDER BY d.priority, d.created_at, d.dispatch_id
 LIMIT $5::bigint

-- next_due_at
SELECT d.available_at
  FROM run_dispatches d
 WHERE d.status = 'Queued'
   AND NOT EXISTS (SELECT FROM run_dispatches c WHERE c.thread_id = d.thread_id AND c.status = 'Claimed')
 ORDER BY d.available_at
 LIMIT 1

-- queued_threads
WITH RECURSIVE found (thread_id, number) AS (
  (SELECT thread_id, 1 FROM run_dispatches WHERE status = 'Queued' AND thread_id > $1::text
    ORDER BY thread_id LIMIT 1)
   UNION ALL
  SELECT n.thread_id, f.number + 1
    FROM found f
   CROSS JOIN LATERAL (SELECT thread_id FROM run_dispatches WHERE status = 'Queued' AND thread_id > f.thread_id
                        ORDER BY thread_id LIMIT 1) n
   WHERE f.number < $2::bigint
)
SELECT thread_id FROM found ORDER BY thread_id LIMIT $2::bigint

-- count_queued
SELECT count(*) FROM (
  SELECT FROM run_dispatches WHERE thread_id = $1::text AND status = 'Queued' LIMIT $2::bigint) q

-- count_by_status
SELECT status, count(*) FROM run_dispatches GROUP BY status

-- discard
DELETE FROM run_dispatches WHERE dispatch_id = $1::text AND status = 'DeadLetter' RETURNING *

-- purge
DELETE FROM run_dispatches
 WHERE dispatch_id IN (
         SELECT dispatch_id FROM run_dispatches
          WHERE status = $1::text AND ended_at IS NOT NULL AND ended_at < $2::bigint AND reconciled
          ORDER BY status, ended_at
          LIMIT $3::bigint
            FOR UPDATE SKIP LOCKED)
RETURNING dispatch_id
