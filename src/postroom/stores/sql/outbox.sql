-- Effects by kind and target in the order in which they were stored. One that is claimed may be taken again
-- when its lease ends. One without a key is removed when it was performed; one with a key stays for a while, so
-- that the key counts once.

-- enqueue
INSERT INTO outbox (outbox_id, kind, target, payload, status, available_at, created_at, dedupe_key, attempt_count,
                    max_attempts, order_key, claim_token, lease_until)
VALUES (:outbox_id, :kind, :target, :payload, :status, :available_at, :created_at, :dedupe_key, :attempt_count,
        :max_attempts, :order_key, :claim_token, :lease_until);

-- first_of_key
SELECT outbox_id, kind, target, payload, status, available_at, created_at, dedupe_key, attempt_count, max_attempts,
       claim_token, lease_until, last_error, order_key, may_have_arrived, steps_done
  FROM outbox
 WHERE kind = :kind AND target = :target AND dedupe_key = :dedupe_key AND dedupe_key IS NOT NULL;

-- open
SELECT outbox_id, kind, target, payload, status, available_at, created_at, dedupe_key, attempt_count, max_attempts,
       claim_token, lease_until, last_error, order_key, may_have_arrived, steps_done
  FROM outbox
 WHERE kind = :kind AND status IN ('pending', 'claimed')
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'effect' AND id = outbox_id)
 ORDER BY place LIMIT :limit;

-- backlog
SELECT count(*), min(created_at),
       (SELECT count(*) FROM outbox d WHERE d.status = 'dead_letter' AND d.kind = :kind)
  FROM outbox WHERE kind = :kind AND status IN ('pending', 'claimed');

-- targets
-- Of each target: whether an effect is due that has no order, or is the first of one of the first orders, and how many
-- orders were looked at. So many are enough to find most due effects, whatever waits behind them.
WITH RECURSIVE targets (target) AS (
  SELECT min(target) FROM outbox WHERE kind = :kind AND status IN ('pending', 'claimed')
   UNION ALL
  SELECT (SELECT min(o.target) FROM outbox o
           WHERE o.kind = :kind AND o.target > t.target AND o.status IN ('pending', 'claimed'))
    FROM targets t WHERE t.target IS NOT NULL),
orders (target, order_key, number) AS (
  SELECT t.target, (SELECT min(o.order_key) FROM outbox o
                     WHERE o.kind = :kind AND o.target = t.target AND o.order_key IS NOT NULL
                       AND o.status IN ('pending', 'claimed')), 1
    FROM targets t WHERE t.target IS NOT NULL
   UNION ALL
  SELECT n.target, (SELECT min(o.order_key) FROM outbox o
                     WHERE o.kind = :kind AND o.target = n.target AND o.order_key IS NOT NULL
                       AND o.order_key > n.order_key AND o.status IN ('pending', 'claimed')), n.number + 1
    FROM orders n WHERE n.order_key IS NOT NULL AND n.number < CAST(:orders AS bigint))
SELECT found.target, max(found.is_due), max(found.number)
  FROM (SELECT n.target,
               CASE WHEN (SELECT coalesce(e.lease_until, e.available_at) FROM outbox e
                           WHERE e.kind = :kind AND e.target = n.target AND e.order_key = n.order_key
                             AND e.status IN ('pending', 'claimed')
                             AND NOT EXISTS (SELECT 1 FROM unreadable_rows
                                              WHERE release = {release} AND kind = 'effect' AND id = e.outbox_id)
                           ORDER BY e.order_key, e.place LIMIT 1) <= :now THEN 1 ELSE 0 END AS is_due,
               n.number
          FROM orders n WHERE n.order_key IS NOT NULL
         UNION ALL
        SELECT t.target,
               CASE WHEN EXISTS (SELECT 1 FROM outbox u
                                  WHERE u.kind = :kind AND u.target = t.target AND u.order_key IS NULL
                                    AND u.status IN ('pending', 'claimed')
                                    AND coalesce(u.lease_until, u.available_at) <= :now
                                    AND NOT EXISTS (SELECT 1 FROM unreadable_rows
                                                     WHERE release = {release} AND kind = 'effect' AND id = u.outbox_id))
                    THEN 1 ELSE 0 END, 0
          FROM targets t WHERE t.target IS NOT NULL) AS found
 GROUP BY found.target ORDER BY found.target;

-- due
-- Of the first effects of a target those that are due and behind no other of their order.
SELECT outbox_id, kind, target, payload, status, available_at, created_at, dedupe_key, attempt_count, max_attempts,
       claim_token, lease_until, last_error, order_key, may_have_arrived, steps_done
  FROM outbox
 WHERE kind = :kind AND target = :target AND status IN ('pending', 'claimed')
   AND place <= (SELECT max(found.place)
                   FROM (SELECT w.place FROM outbox w
                          WHERE w.kind = :kind AND w.target = :target AND w.status IN ('pending', 'claimed')
                          ORDER BY w.place LIMIT CAST(:window AS bigint)) AS found)
   AND coalesce(lease_until, available_at) <= :now
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'effect' AND id = outbox_id)
   AND (order_key IS NULL OR NOT EXISTS (
       SELECT 1 FROM outbox e
        WHERE e.kind = :kind AND e.target = :target AND e.order_key = outbox.order_key
          AND e.place < outbox.place AND e.status IN ('pending', 'claimed')
          AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'effect' AND id = e.outbox_id)))
 ORDER BY place LIMIT :limit;

-- due_far_behind
-- The due effects of a target: the first of each order, and those of none, wherever they stand.
WITH RECURSIVE found (order_key) AS (
  SELECT (SELECT min(order_key) FROM outbox
           WHERE kind = :kind AND target = :target AND order_key IS NOT NULL AND status IN ('pending', 'claimed'))
   UNION ALL
  SELECT (SELECT min(o.order_key) FROM outbox o
           WHERE o.kind = :kind AND o.target = :target AND o.order_key IS NOT NULL
             AND o.order_key > found.order_key AND o.status IN ('pending', 'claimed'))
    FROM found WHERE found.order_key IS NOT NULL)
SELECT outbox_id, kind, target, payload, status, available_at, created_at, dedupe_key, attempt_count, max_attempts,
       claim_token, lease_until, last_error, order_key, may_have_arrived, steps_done
  FROM outbox
 WHERE place IN (
       SELECT (SELECT e.place FROM outbox e
                WHERE e.kind = :kind AND e.target = :target AND e.order_key = found.order_key
                  AND e.status IN ('pending', 'claimed')
                  AND NOT EXISTS (SELECT 1 FROM unreadable_rows q WHERE q.release = {release} AND q.kind = 'effect' AND q.id = e.outbox_id)
                ORDER BY e.order_key, e.place LIMIT 1)
         FROM found WHERE found.order_key IS NOT NULL
        UNION ALL
       SELECT u.place FROM outbox u
        WHERE u.kind = :kind AND u.target = :target AND u.order_key IS NULL AND u.status IN ('pending', 'claimed')
          AND coalesce(u.lease_until, u.available_at) <= :now
          AND NOT EXISTS (SELECT 1 FROM unreadable_rows q WHERE q.release = {release} AND q.kind = 'effect' AND q.id = u.outbox_id))
   AND status IN ('pending', 'claimed') AND coalesce(lease_until, available_at) <= :now
 ORDER BY place LIMIT :limit;

-- take
UPDATE outbox
   SET may_have_arrived = CASE WHEN status = 'claimed' THEN 1 ELSE may_have_arrived END,
       status = 'claimed', attempt_count = attempt_count + 1, claim_token = :token, lease_until = :lease_until
 WHERE outbox_id IN {texts :ids};

-- bury
UPDATE outbox SET status = 'dead_letter', claim_token = NULL, lease_until = NULL WHERE outbox_id IN {texts :ids};

-- remove_performed
-- A claim is an id and its token, with a space between them: an id with the token of another row is none.
DELETE FROM outbox WHERE outbox_id IN {texts :ids} AND outbox_id || ' ' || claim_token IN {texts :claims} AND dedupe_key IS NULL;

-- keep_performed
UPDATE outbox SET status = 'delivered', claim_token = NULL, lease_until = NULL
 WHERE outbox_id IN {texts :ids} AND outbox_id || ' ' || claim_token IN {texts :claims} AND dedupe_key IS NOT NULL;

-- note_steps
UPDATE outbox SET steps_done = :steps_done WHERE outbox_id = :outbox_id AND steps_done < :steps_done;

-- next_in_line
SELECT 1 FROM outbox
 WHERE kind = :kind AND target = :target AND order_key = :order_key AND order_key IS NOT NULL
   AND status IN ('pending', 'claimed')
 LIMIT 1;

-- fail
UPDATE outbox
   SET status = CASE WHEN CAST(:final AS bigint) = 1 OR attempt_count - CAST(:untried AS bigint) >= max_attempts
                     THEN 'dead_letter' ELSE 'pending' END,
       available_at = CASE WHEN CAST(:final AS bigint) = 1
                             OR attempt_count - CAST(:untried AS bigint) >= max_attempts THEN available_at
                           ELSE CAST(:available_at AS bigint) END,
       attempt_count = attempt_count - CAST(:untried AS bigint),
       claim_token = NULL, lease_until = NULL, last_error = :last_error,
       may_have_arrived = CASE WHEN CAST(:may_have_arrived AS bigint) = 1 THEN 1 ELSE may_have_arrived END
 WHERE outbox_id IN {texts :ids} AND outbox_id || ' ' || claim_token IN {texts :claims}
RETURNING status;

-- release
UPDATE outbox SET status = 'pending', claim_token = NULL, lease_until = NULL, may_have_arrived = 1
 WHERE kind IN {texts :kinds} AND status IN ('pending', 'claimed') AND lease_until IS NOT NULL
   AND (CAST(:target AS text) IS NULL OR target = :target) AND NOT (outbox_id IN {texts :besides});

-- revive
UPDATE outbox SET status = 'pending', available_at = :now, attempt_count = 0, may_have_arrived = 0
 WHERE outbox_id = :outbox_id AND status = 'dead_letter'
RETURNING outbox_id, kind, target, payload, status, available_at, created_at, dedupe_key, attempt_count,
          max_attempts, claim_token, lease_until, last_error, order_key, may_have_arrived, steps_done;

-- discard
UPDATE outbox SET status = 'delivered' WHERE outbox_id = :outbox_id AND status = 'dead_letter';

-- dead_letters
SELECT outbox_id, kind, target, payload, status, available_at, created_at, dedupe_key, attempt_count, max_attempts,
       claim_token, lease_until, last_error, order_key, may_have_arrived, steps_done
  FROM outbox
 WHERE status = 'dead_letter' AND outbox_id > :after AND (CAST(:kind AS text) IS NULL OR kind = :kind)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'effect' AND id = outbox_id)
 ORDER BY outbox_id LIMIT :limit;

-- purge
DELETE FROM outbox
 WHERE place IN (SELECT place FROM outbox
                  WHERE status = 'delivered' AND created_at < :older_than
                  ORDER BY created_at, place LIMIT :limit);

-- forget_purged
DELETE FROM unreadable_rows
 WHERE kind = 'effect' AND NOT EXISTS (SELECT 1 FROM outbox WHERE outbox_id = unreadable_rows.id);
