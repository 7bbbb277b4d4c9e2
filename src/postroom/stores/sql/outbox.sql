-- Effects by lane and target in the order in which they were stored. One that is claimed may be taken again
-- when its lease ends.

-- enqueue
INSERT INTO run_outbox (outbox_id, lane, target, payload, status, available_at, created_at, dedupe_key, attempt_count,
                        max_attempts, order_key)
VALUES (:outbox_id, :lane, :target, :payload, 'pending', :available_at, :created_at, :dedupe_key, 0, :max_attempts,
        :order_key);

-- first_of_key
SELECT outbox_id, lane, target, payload, status, available_at, created_at, dedupe_key, attempt_count, max_attempts,
       claim_token, lease_until, last_error, order_key, may_have_arrived
  FROM run_outbox
 WHERE lane = :lane AND target = :target AND dedupe_key = :dedupe_key AND dedupe_key IS NOT NULL;

-- effect
SELECT outbox_id, lane, target, payload, status, available_at, created_at, dedupe_key, attempt_count, max_attempts,
       claim_token, lease_until, last_error, order_key, may_have_arrived
  FROM run_outbox WHERE outbox_id = :outbox_id;

-- line_of
SELECT lane, target FROM run_outbox WHERE outbox_id = :outbox_id;

-- due
SELECT outbox_id, lane, target, payload, status, available_at, created_at, dedupe_key, attempt_count, max_attempts,
       claim_token, lease_until, last_error, order_key, may_have_arrived
  FROM run_outbox
 WHERE lane = :lane AND target = :target AND status IN ('pending', 'claimed')
   AND coalesce(lease_until, available_at) <= :now
   AND NOT EXISTS (SELECT 1 FROM run_quarantine WHERE kind = 'effect' AND id = outbox_id)
   AND (order_key IS NULL OR NOT EXISTS (
       SELECT 1 FROM run_outbox e
        WHERE e.lane = :lane AND e.target = :target AND e.order_key = run_outbox.order_key
          AND e.place < run_outbox.place AND e.status IN ('pending', 'claimed')
          AND NOT EXISTS (SELECT 1 FROM run_quarantine WHERE kind = 'effect' AND id = e.outbox_id)))
 ORDER BY place LIMIT :limit;

-- move
UPDATE run_outbox
   SET status = :status, available_at = :available_at, attempt_count = :attempt_count, claim_token = :claim_token,
       lease_until = :lease_until, last_error = :last_error, may_have_arrived = :may_have_arrived
 WHERE outbox_id = :outbox_id;

-- dead_letters
SELECT outbox_id, lane, target, payload, status, available_at, created_at, dedupe_key, attempt_count, max_attempts,
       claim_token, lease_until, last_error, order_key, may_have_arrived
  FROM run_outbox
 WHERE status = 'dead_letter' AND outbox_id > :after AND (CAST(:lane AS text) IS NULL OR lane = :lane)
   AND NOT EXISTS (SELECT 1 FROM run_quarantine WHERE kind = 'effect' AND id = outbox_id)
 ORDER BY outbox_id LIMIT :limit;

-- purge
DELETE FROM run_outbox
 WHERE place IN (SELECT place FROM run_outbox
                  WHERE status = 'delivered' AND created_at < :older_than
                  ORDER BY created_at, place LIMIT :limit);

-- forget_purged
DELETE FROM run_quarantine
 WHERE kind = 'effect' AND NOT EXISTS (SELECT 1 FROM run_outbox WHERE outbox_id = run_quarantine.id);
