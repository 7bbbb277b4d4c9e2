-- used
SELECT o.*
  FROM unnest($1::text[], $2::text[], $3::text[]) AS a (lane, target, dedupe_key)
  JOIN run_outbox o ON o.lane = a.lane AND o.target = a.target AND o.dedupe_key = a.dedupe_key

-- enqueue
INSERT INTO run_outbox
       (outbox_id, lane, target, payload, status, available_at, created_at, dedupe_key, attempt_count,
        max_attempts, order_key)
SELECT a.outbox_id, a.lane, a.target, a.payload, 'pending', a.available_at, coalesce($7::bigint, {now}),
       a.dedupe_key, 0, a.max_attempts, a.order_key
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $8::int[], $9::text[])
       WITH ORDINALITY
    AS a (outbox_id, lane, target, payload, available_at, dedupe_key, max_attempts, order_key, ord)
 ORDER BY a.ord
RETURNING *

-- claim
WITH t AS (
  SELECT coalesce($3::bigint, {now}) AS now
), due AS (
  SELECT o.place, t.now
    FROM run_outbox o, t
   WHERE o.lane = $1::text AND o.target = $2::text AND o.status IN ('pending', 'claimed')
     AND coalesce(o.lease_until, o.available_at) <= t.now
     AND NOT EXISTS (SELECT FROM run_quarantine q WHERE q.kind = 'effect' AND q.id = o.outbox_id)
     AND (o.order_key IS NULL OR NOT EXISTS (
         SELECT FROM run_outbox e
          WHERE e.lane = $1::text AND e.target = $2::text AND e.order_key = o.order_key AND e.place < o.place
            AND e.status IN ('pending', 'claimed')
            AND NOT EXISTS (SELECT FROM run_quarantine q WHERE q.kind = 'effect' AND q.id = e.outbox_id)))
   ORDER BY o.place
   LIMIT $5::bigint
     FOR NO KEY UPDATE OF o SKIP LOCKED
), spent AS (
  UPDATE run_outbox o
     SET status = 'dead_letter', claim_token = NULL, lease_until = NULL
    FROM due d
   WHERE o.place = d.place AND o.status IN ('pending', 'claimed') AND o.attempt_count >= o.max_attempts
  RETURNING o.*
), taken AS (
  UPDATE run_outbox o
     SET status = 'claimed', attempt_count = o.attempt_count + 1, claim_token = $6::text,
         lease_until = d.now + $4::bigint
    FROM due d
   WHERE o.place = d.place AND o.status IN ('pending', 'claimed') AND o.attempt_count < o.max_attempts
  RETURNING o.*
)
SELECT * FROM (SELECT * FROM spent UNION ALL SELECT * FROM taken) o ORDER BY o.place

-- ack
UPDATE run_outbox SET status = 'delivered', claim_token = NULL, lease_until = NULL
 WHERE outbox_id = $1::text AND status = 'claimed' AND claim_token = $2::text
RETURNING outbox_id

-- nack
UPDATE run_outbox
   SET status = CASE WHEN $6::boolean OR attempt_count >= max_attempts THEN 'dead_letter' ELSE 'pending' END,
       available_at = CASE WHEN $6::boolean OR attempt_count >= max_attempts THEN available_at
                           ELSE coalesce($5::bigint, {now}) + $4::bigint END,
       last_error = $3::text, claim_token = NULL, lease_until = NULL
 WHERE outbox_id = $1::text AND status = 'claimed' AND claim_token = $2::text
RETURNING status

-- dead_letters
SELECT o.*
  FROM run_outbox o
 WHERE o.status = 'dead_letter' AND o.outbox_id > $2::text AND ($1::text IS NULL OR o.lane = $1::text)
   AND NOT EXISTS (SELECT FROM run_quarantine q WHERE q.kind = 'effect' AND q.id = o.outbox_id)
 ORDER BY o.outbox_id
 LIMIT $3::bigint

-- revive
UPDATE run_outbox
   SET status = 'pending', available_at = coalesce($2::bigint, {now}), attempt_count = 0
 WHERE outbox_id = $1::text AND status = 'dead_letter'
RETURNING *

-- purge
WITH old AS (
  SELECT place FROM run_outbox
   WHERE status = 'delivered' AND created_at < $1::bigint
   ORDER BY created_at, place
   LIMIT $2::bigint
     FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM run_outbox WHERE place = ANY (ARRAY(SELECT place FROM old)) RETURNING outbox_id
), forgotten AS (
  DELETE FROM run_quarantine q USING gone g WHERE q.kind = 'effect' AND q.id = g.outbox_id
)
SELECT count(*) FROM gone
