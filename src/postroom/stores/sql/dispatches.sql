-- Dispatches. What looks for work passes over rows that are set aside. A write names one row by its id and has been
-- decided under the lock of the row's thread.

-- part columns
-- The last is the row of the run whose answer the dispatch refers to, '{}' if that row is gone.
dispatch_id, thread_id, run_id, created_at, available_at, updated_at, status, priority, dedupe_key,
       dispatch_epoch, attempt_count, max_attempts, deadline_at, tenant, last_error, claim_token, claimed_by,
       claimed_at, lease_until, dispatch_instance_id, run_status, termination, run_response, run_error,
       completed_at, reconciled, limit_key, interruption_count, max_interruptions,
       CASE WHEN answer_of IS NOT NULL THEN coalesce((SELECT body FROM runs WHERE runs.run_id = answer_of), '{}') END

-- dispatch
SELECT {part columns},
       coalesce((SELECT epoch FROM dispatch_epochs e WHERE e.thread_id = run_dispatches.thread_id), 0)
  FROM run_dispatches WHERE dispatch_id = :dispatch_id;

-- begun_with
SELECT dispatch_id, run_id FROM run_dispatches
 WHERE dispatch_id >= :low AND dispatch_id < :beyond ORDER BY dispatch_id LIMIT :limit;

-- thread_of
SELECT thread_id FROM run_dispatches WHERE dispatch_id = :dispatch_id;

-- enqueue
INSERT INTO run_dispatches
      (dispatch_id, thread_id, run_id, created_at, available_at, updated_at, status, priority, dedupe_key,
       dispatch_epoch, attempt_count, max_attempts, deadline_at, tenant, last_error, claim_token, claimed_by,
       claimed_at, lease_until, dispatch_instance_id, run_status, termination, run_response, run_error,
       completed_at, reconciled, limit_key, interruption_count, max_interruptions, is_open)
VALUES (:dispatch_id, :thread_id, :run_id, :created_at, :available_at, :updated_at, :status, :priority, :dedupe_key,
        :dispatch_epoch, :attempt_count, :max_attempts, :deadline_at, :tenant, :last_error, :claim_token, :claimed_by,
        :claimed_at, :lease_until, :dispatch_instance_id, :run_status, :termination, :run_response, :run_error,
        :completed_at, :reconciled, :limit_key, :interruption_count, :max_interruptions, :is_open);

-- against
SELECT 0 AS rule, dispatch_id FROM run_dispatches WHERE dispatch_id = :dispatch_id
 UNION ALL
SELECT 1, dispatch_id FROM run_dispatches
 WHERE thread_id = :thread_id AND dedupe_key = :dedupe_key AND dedupe_key IS NOT NULL AND is_open = 1
 UNION ALL
SELECT 2, dispatch_id FROM run_dispatches WHERE run_id = :run_id AND status = 'Queued' AND run_id > ''
 UNION ALL
SELECT 2, dispatch_id FROM run_dispatches WHERE thread_id = :thread_id AND status = 'Claimed' AND run_id = :run_id
 ORDER BY rule;

-- ids_in_queue
SELECT thread_id FROM run_dispatches WHERE thread_id IN {texts :thread_ids}
 UNION ALL
SELECT thread_id FROM dispatch_epochs WHERE thread_id IN {texts :thread_ids}
 UNION ALL
SELECT run_id FROM run_dispatches WHERE status = 'Queued' AND run_id > '' AND run_id IN {texts :run_ids}
 UNION ALL
SELECT dispatch_id FROM run_dispatches WHERE dispatch_id IN {texts :dispatch_ids};

-- move
UPDATE run_dispatches
   SET available_at = :available_at, updated_at = :updated_at, status = :status, attempt_count = :attempt_count,
       max_attempts = :max_attempts, interruption_count = :interruption_count, last_error = :last_error,
       claim_token = :claim_token,
       claimed_by = :claimed_by, claimed_at = :claimed_at,
       lease_until = :lease_until, dispatch_instance_id = :dispatch_instance_id, run_status = :run_status,
       termination = :termination, run_response = :run_response, answer_of = :answer_of, run_error = :run_error,
       completed_at = :completed_at, reconciled = :reconciled, is_open = :is_open,
       held_by = '', held_until = 0
 WHERE dispatch_id = :dispatch_id;

-- renew
UPDATE run_dispatches SET lease_until = :lease_until, updated_at = :now
 WHERE dispatch_id IN {texts :dispatch_ids} AND dispatch_id || ' ' || claim_token IN {texts :claims}
   AND dispatch_epoch >= coalesce((SELECT epoch FROM dispatch_epochs e WHERE e.thread_id = run_dispatches.thread_id), 0);

-- renewed
SELECT dispatch_id FROM run_dispatches
 WHERE dispatch_id IN {texts :dispatch_ids} AND dispatch_id || ' ' || claim_token IN {texts :claims} AND lease_until = :lease_until;

-- keep_claim
UPDATE run_dispatches SET claim_token = :token
 WHERE dispatch_id = :dispatch_id AND claim_token = :token AND status = 'Claimed';

-- put_epoch
INSERT INTO dispatch_epochs (thread_id, epoch) VALUES (:thread_id, :epoch)
ON CONFLICT (thread_id) DO UPDATE SET epoch = excluded.epoch;

-- next_due
-- While another run of the thread is claimed the thread compares with NULL, and no row is read. The first row of the
-- queue is looked at alone: PostgreSQL would join what stands with LIMIT to all rows of the thread, and sort them.
SELECT {part columns},
       run_id, (SELECT body FROM runs WHERE runs.run_id = run_dispatches.run_id)
  FROM run_dispatches
 WHERE thread_id = (SELECT CAST(:thread_id AS text)
                     WHERE NOT EXISTS (SELECT 1 FROM run_dispatches o
                                        WHERE o.thread_id = :thread_id AND o.status = 'Claimed' AND o.dispatch_id <> :ending))
   AND status = 'Queued' AND available_at <= :now
   AND dispatch_epoch >= coalesce((SELECT epoch FROM dispatch_epochs e WHERE e.thread_id = :thread_id), 0)
   AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.thread_id = :thread_id AND r.status <> 'done'
                      AND r.holds_others = 1 AND r.run_id <> run_dispatches.run_id AND r.run_id <> :ending_run
                    LIMIT 1 OFFSET 0)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = dispatch_id
                    LIMIT 1 OFFSET 0)
 ORDER BY thread_id, priority, created_at, dispatch_id LIMIT 1;

-- queue
SELECT {part columns}
  FROM run_dispatches
 WHERE thread_id = :thread_id AND status = 'Queued'
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = dispatch_id)
 ORDER BY thread_id, priority, created_at, dispatch_id;

-- stale_queue
-- Among the first of the queue: those behind are found when they have come to the front.
SELECT {part columns}
  FROM (SELECT * FROM run_dispatches q WHERE q.thread_id = :thread_id AND q.status = 'Queued'
         ORDER BY q.thread_id, q.priority, q.created_at, q.dispatch_id LIMIT 64) AS found
 WHERE dispatch_epoch < coalesce((SELECT epoch FROM dispatch_epochs e WHERE e.thread_id = :thread_id), 0)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = dispatch_id);

-- overdue
SELECT {part columns}
  FROM run_dispatches
 WHERE status = 'Claimed' AND lease_until < :now
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = dispatch_id)
 ORDER BY lease_until, dispatch_id LIMIT :limit;

-- retried
SELECT {part columns}
  FROM run_dispatches
 WHERE status = 'Queued' AND attempt_count + interruption_count > 0 AND attempt_count > 0
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = dispatch_id)
 ORDER BY available_at LIMIT :limit;

-- late
SELECT {part columns}
  FROM run_dispatches
 WHERE status = 'Queued' AND deadline_at < :now AND attempt_count = 0 AND interruption_count = 0
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = dispatch_id)
 ORDER BY deadline_at LIMIT :limit;

-- claimed
SELECT {part columns}
  FROM run_dispatches WHERE thread_id = :thread_id AND status = 'Claimed';

-- claimed_by
SELECT {part columns}
  FROM run_dispatches
 WHERE status = 'Claimed' AND claimed_by = :consumer AND NOT (claim_token IN {texts :besides})
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = dispatch_id)
 ORDER BY thread_id;

-- queued_of_thread
SELECT {part columns}
  FROM run_dispatches
 WHERE thread_id = :thread_id AND status = 'Queued'
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = dispatch_id)
 ORDER BY thread_id, priority, created_at, dispatch_id LIMIT :limit OFFSET :offset;

-- of_thread
SELECT {part columns}
  FROM run_dispatches
 WHERE thread_id = :thread_id AND status IN {texts :statuses}
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = dispatch_id)
 ORDER BY thread_id, priority, created_at, dispatch_id LIMIT :limit OFFSET :offset;

-- open_by_change
SELECT {part columns}
  FROM run_dispatches
 WHERE is_open = 1 AND status = :status AND (updated_at, dispatch_id) > (:at, :id)
   AND thread_id >= :low AND thread_id < :beyond
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = dispatch_id)
 ORDER BY updated_at, dispatch_id LIMIT :limit;

-- ended_by_change
-- What has ended was last changed when it was completed.
SELECT {part columns}
  FROM run_dispatches
 WHERE status = :status AND is_open = 0 AND (completed_at, dispatch_id) > (:at, :id)
   AND thread_id >= :low AND thread_id < :beyond
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = dispatch_id)
 ORDER BY completed_at, dispatch_id LIMIT :limit;

-- unreconciled
SELECT {part columns}
  FROM run_dispatches
 WHERE reconciled = 0
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = dispatch_id)
 ORDER BY completed_at, dispatch_id LIMIT :limit;

-- mark_reconciled
UPDATE run_dispatches SET reconciled = 1 WHERE dispatch_id IN {texts :dispatch_ids} AND reconciled = 0;

-- part due_rows
-- Whether a row is due, and its thread free, is the last column.
SELECT priority, created_at, dispatch_id, thread_id, tenant, limit_key, available_at,
       CASE WHEN available_at <= :now AND held_until <= :now
                AND NOT (limit_key IN {texts :full_keys})
                AND (CAST(:tenant AS text) IS NULL OR tenant = CAST(:tenant AS text))
                AND NOT EXISTS (SELECT 1 FROM thread_places p WHERE p.thread_id = run_dispatches.thread_id
                                   AND CAST(:is_anywhere AS bigint) = 0 AND NOT (p.place IN {texts :places}) LIMIT 1 OFFSET 0)
                AND NOT EXISTS (SELECT 1 FROM run_dispatches o
                                 WHERE o.thread_id = run_dispatches.thread_id AND o.status = 'Claimed'
                                 LIMIT 1 OFFSET 0)
                AND NOT EXISTS (SELECT 1 FROM runs r
                                 WHERE r.thread_id = run_dispatches.thread_id AND r.status <> 'done'
                                   AND r.holds_others = 1 AND r.run_id <> run_dispatches.run_id
                                 LIMIT 1 OFFSET 0)
                AND NOT EXISTS (SELECT 1 FROM unreadable_rows
                                 WHERE release = {release} AND kind = 'dispatch' AND id = dispatch_id LIMIT 1 OFFSET 0)
            THEN 1 ELSE 0 END
  FROM run_dispatches

-- due_threads
{part due_rows}
 WHERE status = 'Queued' AND is_open = 1
   AND (priority, created_at, dispatch_id) > (:priority, :created_at, :dispatch_id)
 ORDER BY priority, created_at, dispatch_id LIMIT :window;

-- due_threads_of_tenant
{part due_rows}
 WHERE status = 'Queued' AND is_open = 1 AND tenant = :tenant AND tenant <> ''
   AND (priority, created_at, dispatch_id) > (:priority, :created_at, :dispatch_id)
 ORDER BY priority, created_at, dispatch_id LIMIT :window;

-- due_threads_of_nobody
{part due_rows}
 WHERE status = 'Queued' AND is_open = 1 AND tenant = ''
   AND (priority, created_at, dispatch_id) > (:priority, :created_at, :dispatch_id)
 ORDER BY priority, created_at, dispatch_id LIMIT :window;

-- part due_of_found
-- The first due row of each found thread that is free, and the row of a run that holds the others of its thread.
SELECT d.priority, d.created_at, d.dispatch_id, d.thread_id, d.tenant, d.limit_key, d.available_at, 1
  FROM found {cross} run_dispatches d
    ON d.dispatch_id = (
       SELECT q.dispatch_id FROM run_dispatches q
        WHERE q.thread_id = found.thread_id AND q.status = 'Queued' AND q.available_at <= :now AND q.held_until <= :now
          AND NOT (q.limit_key IN {texts :full_keys})
          AND (CAST(:tenant AS text) IS NULL OR q.tenant = CAST(:tenant AS text))
          AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = q.dispatch_id LIMIT 1 OFFSET 0)
        ORDER BY q.thread_id, q.priority, q.created_at, q.dispatch_id LIMIT 1)
 WHERE found.thread_id IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM run_dispatches o WHERE o.thread_id = found.thread_id AND o.status = 'Claimed'
                    LIMIT 1 OFFSET 0)
   AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.thread_id = found.thread_id AND r.status <> 'done'
                      AND r.holds_others = 1 LIMIT 1 OFFSET 0)
   AND NOT EXISTS (SELECT 1 FROM thread_places p WHERE p.thread_id = found.thread_id
                      AND CAST(:is_anywhere AS bigint) = 0 AND NOT (p.place IN {texts :places}))
 UNION ALL
SELECT d.priority, d.created_at, d.dispatch_id, d.thread_id, d.tenant, d.limit_key, d.available_at, 1
  FROM found {cross} run_dispatches d
    ON d.dispatch_id = (
       SELECT q.dispatch_id FROM runs h {index runs_holding} {cross} run_dispatches q ON q.run_id = h.run_id
        WHERE h.thread_id = found.thread_id AND h.status <> 'done' AND h.holds_others = 1
          AND q.run_id > '' AND q.status = 'Queued' AND q.available_at <= :now AND q.held_until <= :now
          AND NOT (q.limit_key IN {texts :full_keys})
          AND (CAST(:tenant AS text) IS NULL OR q.tenant = CAST(:tenant AS text))
          AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = q.dispatch_id)
        LIMIT 1)
 WHERE found.thread_id IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.thread_id = d.thread_id AND r.status <> 'done'
                      AND r.holds_others = 1 AND r.run_id <> d.run_id LIMIT 1 OFFSET 0)
   AND NOT EXISTS (SELECT 1 FROM run_dispatches o WHERE o.thread_id = d.thread_id AND o.status = 'Claimed'
                    LIMIT 1 OFFSET 0)
   AND NOT EXISTS (SELECT 1 FROM thread_places p WHERE p.thread_id = d.thread_id
                      AND CAST(:is_anywhere AS bigint) = 0 AND NOT (p.place IN {texts :places}))

-- due_by_thread
WITH RECURSIVE found (thread_id) AS (
  SELECT (SELECT min(thread_id) FROM run_dispatches WHERE status = 'Queued')
   UNION ALL
  SELECT (SELECT min(d.thread_id) FROM run_dispatches d WHERE d.status = 'Queued' AND d.thread_id > found.thread_id)
    FROM found WHERE found.thread_id IS NOT NULL)
{part due_of_found};

-- due_first
-- One look at the queue. If few rows are due: those. Else, if few threads are queued: what is due of each. Else: the
-- first rows of the queue, marked by a 1 in the last column. Delayed rows, and rows behind others, cost nothing.
WITH RECURSIVE due (number) AS (
  SELECT count(*) FROM (SELECT 1 FROM run_dispatches
                         WHERE status = 'Queued' AND is_open = 1 AND available_at <= :now LIMIT :few) AS found),
walked (thread_id, number) AS (
  SELECT (SELECT min(thread_id) FROM run_dispatches WHERE status = 'Queued'), 1 FROM due WHERE due.number >= :few
   UNION ALL
  SELECT (SELECT min(d.thread_id) FROM run_dispatches d WHERE d.status = 'Queued' AND d.thread_id > walked.thread_id),
         walked.number + 1
    FROM walked WHERE walked.thread_id IS NOT NULL AND walked.number < :few),
counted (number) AS (SELECT count(thread_id) FROM walked),
found (thread_id) AS (SELECT walked.thread_id FROM counted {cross} walked ON counted.number < :few)
SELECT one.*, 0 FROM ({part due_rows} WHERE status = 'Queued' AND is_open = 1 AND available_at <= :now ORDER BY available_at
                       LIMIT (SELECT CASE WHEN number < :few THEN number ELSE 0 END FROM due)) AS one
 UNION ALL
SELECT one.*, 0 FROM ({part due_of_found}) AS one
 UNION ALL
SELECT one.*, 1 FROM ({part due_rows} WHERE status = 'Queued' AND is_open = 1 ORDER BY priority, created_at, dispatch_id
                       LIMIT (SELECT CASE WHEN number < :few THEN 0 ELSE CAST(:window AS bigint) END FROM counted)) AS one;

-- due_tenants
WITH RECURSIVE found (tenant) AS (
  SELECT (SELECT min(tenant) FROM run_dispatches WHERE status = 'Queued' AND is_open = 1 AND tenant <> '')
   UNION ALL
  SELECT (SELECT min(o.tenant) FROM run_dispatches o
           WHERE o.status = 'Queued' AND o.is_open = 1 AND o.tenant <> '' AND o.tenant > found.tenant)
    FROM found WHERE found.tenant IS NOT NULL)
SELECT tenant FROM found WHERE tenant IS NOT NULL LIMIT :limit;

-- next_due_at
SELECT available_at FROM run_dispatches
 WHERE status = 'Queued' AND is_open = 1 AND available_at > :now
   AND held_until <= :now
   AND NOT EXISTS (SELECT 1 FROM thread_places p WHERE p.thread_id = run_dispatches.thread_id
                      AND CAST(:is_anywhere AS bigint) = 0 AND NOT (p.place IN {texts :places}))
   AND NOT EXISTS (SELECT 1 FROM run_dispatches o WHERE o.thread_id = run_dispatches.thread_id AND o.status = 'Claimed'
                    LIMIT 1 OFFSET 0)
   AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.thread_id = run_dispatches.thread_id AND r.status <> 'done'
                      AND r.holds_others = 1 AND r.run_id <> run_dispatches.run_id
                    LIMIT 1 OFFSET 0)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = dispatch_id)
 ORDER BY available_at LIMIT 1;

-- hold
UPDATE run_dispatches SET held_by = :scope, held_until = :until WHERE thread_id = :thread_id AND status = 'Queued';

-- release_held
UPDATE run_dispatches SET held_by = '', held_until = 0
 WHERE held_until = :until AND held_until > 0 AND held_by = :scope AND status = 'Queued';

-- held_until
SELECT min(held_until) FROM run_dispatches WHERE held_until > :now AND held_until > 0 AND status = 'Queued';

-- open_threads
SELECT DISTINCT thread_id FROM run_dispatches
 WHERE status IN ('Queued', 'Claimed') AND thread_id IN {texts :thread_ids};

-- set_back
UPDATE run_dispatches SET available_at = CASE WHEN available_at - :back > 1 THEN available_at - :back ELSE 1 END, updated_at = :now
 WHERE status = 'Queued' AND is_open = 1 AND available_at > :now AND updated_at > :now;

-- set_back_leases
UPDATE run_dispatches SET lease_until = lease_until - :back, updated_at = :now WHERE status = 'Claimed' AND updated_at > :now;

-- queued_threads
WITH RECURSIVE found (thread_id) AS (
  SELECT (SELECT min(thread_id) FROM run_dispatches WHERE status = 'Queued' AND thread_id > :after)
   UNION ALL
  SELECT (SELECT min(d.thread_id) FROM run_dispatches d WHERE d.status = 'Queued' AND d.thread_id > found.thread_id)
    FROM found WHERE found.thread_id IS NOT NULL)
SELECT thread_id FROM found
 WHERE thread_id IS NOT NULL
   AND EXISTS (SELECT 1 FROM run_dispatches d
                WHERE d.thread_id = found.thread_id AND d.status = 'Queued'
                  AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = d.dispatch_id)
                LIMIT 1 OFFSET 0)
 LIMIT :limit;

-- part queue_state
(SELECT dispatch_id FROM run_dispatches WHERE thread_id = :thread_id AND status = 'Claimed'),
       coalesce((SELECT epoch FROM dispatch_epochs WHERE thread_id = :thread_id), 0),
       (SELECT count(*) FROM (SELECT 1 FROM run_dispatches
                               WHERE thread_id = :thread_id AND status = 'Queued'
                                 AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = dispatch_id)
                               LIMIT :at_most) AS found),
       (SELECT count(*) FROM (SELECT 1 FROM pending_messages WHERE thread_id = :thread_id LIMIT :waiting) AS found),
       (SELECT min(run_id || '') FROM runs {index runs_holding}
         WHERE thread_id = :thread_id AND status <> 'done' AND holds_others = 1)

-- queue_of_thread
SELECT {part queue_state};

-- thread_state
-- One row, whatever exists: the thread, a run, the queue, what keeps a new dispatch out, messages that are stored already,
-- what a new run of the thread `begins_on` follows, and a dispatch that is owned.
SELECT t.*, r.*,
       {part queue_state},
       (SELECT thread_id FROM run_threads WHERE thread_id = :parent),
       (SELECT dispatch_id FROM run_dispatches WHERE dispatch_id = :adds),
       (SELECT dispatch_id FROM run_dispatches
         WHERE thread_id = :thread_id AND dedupe_key = :dedupe_key AND dedupe_key IS NOT NULL AND is_open = 1 LIMIT 1),
       coalesce((SELECT dispatch_id FROM run_dispatches WHERE run_id = :delivers AND status = 'Queued' AND run_id > '' LIMIT 1),
                (SELECT dispatch_id FROM run_dispatches WHERE thread_id = :thread_id AND status = 'Claimed' AND run_id = :delivers)),
       (SELECT asked.value FROM {each :message_ids}
         WHERE EXISTS (SELECT 1 FROM run_messages WHERE thread_id = :thread_id AND message_id = asked.value LIMIT 1 OFFSET 0)
         LIMIT 1),
       (SELECT count(*) FROM (SELECT 1 FROM run_commands WHERE dispatch_id = :owned LIMIT 1) AS found),
       o.*, latest.*, started.*, d.*
  FROM (SELECT 1) AS one
  LEFT JOIN (SELECT thread_id, title, resource_id, parent_thread_id, custom, active_run_id, open_run_id, latest_run_id,
                    latest_run_updated_at, message_count, created_at, updated_at, latest_started_run_id
               FROM run_threads WHERE thread_id = :thread_id) AS t ON 1 = 1
  LEFT JOIN (SELECT run_id, body FROM runs WHERE run_id = :run_id) AS r ON 1 = 1
  LEFT JOIN (SELECT run_id, body FROM runs
              WHERE run_id = (SELECT open_run_id FROM run_threads WHERE thread_id = :begins_on)
                AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)) AS o ON 1 = 1
  LEFT JOIN (SELECT run_id, body FROM runs
              WHERE thread_id = :begins_on
                AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
              ORDER BY updated_at DESC, created_at DESC, run_id DESC LIMIT 1) AS latest ON 1 = 1
  LEFT JOIN (SELECT run_id, body FROM runs
              WHERE run_id = (SELECT CASE WHEN EXISTS (SELECT 1 FROM unreadable_rows
                                                        WHERE release = {release} AND kind = 'run' AND id = latest_started_run_id)
                                          THEN (SELECT run_id FROM runs WHERE thread_id = :begins_on AND status <> 'created'
                                                   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
                                                 ORDER BY updated_at DESC, created_at DESC, run_id DESC LIMIT 1)
                                          ELSE latest_started_run_id END
                                FROM run_threads WHERE thread_id = :begins_on)) AS started ON 1 = 1
  LEFT JOIN (SELECT {part columns}
               FROM run_dispatches WHERE dispatch_id = :owned) AS d ON 1 = 1;

-- count_queued
SELECT count(*) FROM (SELECT 1 FROM run_dispatches
                       WHERE thread_id = :thread_id AND status = 'Queued' LIMIT :at_most) AS found;

-- dead_errors
SELECT DISTINCT thread_id, coalesce(last_error, '')
                 FROM (SELECT thread_id, last_error FROM run_dispatches {index run_dispatches_ended}
                       WHERE is_open = 0 AND status = 'DeadLetter' AND thread_id >= :low AND thread_id < :beyond
                         AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'dispatch' AND id = dispatch_id)
                       LIMIT :at_most) AS found;

-- count_by_status
SELECT 'Acked', count(*) FROM (SELECT 1 FROM run_dispatches {index run_dispatches_ended}
                           WHERE is_open = 0 AND status = 'Acked' LIMIT :at_most) AS found
 UNION ALL
SELECT 'Cancelled', count(*) FROM (SELECT 1 FROM run_dispatches {index run_dispatches_ended}
                           WHERE is_open = 0 AND status = 'Cancelled' LIMIT :at_most) AS found
 UNION ALL
SELECT 'Superseded', count(*) FROM (SELECT 1 FROM run_dispatches {index run_dispatches_ended}
                           WHERE is_open = 0 AND status = 'Superseded' LIMIT :at_most) AS found
 UNION ALL
SELECT 'DeadLetter', count(*) FROM run_dispatches {index run_dispatches_ended} WHERE is_open = 0 AND status = 'DeadLetter'
 UNION ALL
SELECT 'Queued', count(*) FROM run_dispatches WHERE status = 'Queued'
 UNION ALL
SELECT 'Claimed', count(*) FROM run_dispatches WHERE status = 'Claimed';

-- discard
DELETE FROM run_dispatches WHERE dispatch_id = :dispatch_id;

-- purge
DELETE FROM run_dispatches
 WHERE dispatch_id IN (SELECT dispatch_id FROM run_dispatches
                        WHERE status = :status AND is_open = 0 AND completed_at < :older_than AND reconciled = 1
                        ORDER BY completed_at LIMIT :limit);

-- forget_gone
DELETE FROM unreadable_rows
 WHERE kind = 'dispatch' AND NOT EXISTS (SELECT 1 FROM run_dispatches WHERE dispatch_id = unreadable_rows.id);

-- claimed_by_limit
SELECT tenant, limit_key, count(*) FROM run_dispatches WHERE status = 'Claimed' GROUP BY tenant, limit_key;

-- begun_by_limit
SELECT tenant, limit_key, count(*) FROM run_dispatches WHERE status = 'Claimed' GROUP BY tenant, limit_key
 UNION ALL
SELECT tenant, limit_key, count(*) FROM run_dispatches
 WHERE status = 'Queued' AND attempt_count + interruption_count > 0 AND available_at <= :soon
 GROUP BY tenant, limit_key;

-- begun_runs
SELECT r.run_id, r.body
  FROM (SELECT run_id FROM run_dispatches WHERE status = 'Claimed'
         UNION ALL
        SELECT run_id FROM run_dispatches
         WHERE status = 'Queued' AND attempt_count + interruption_count > 0 AND available_at <= :soon) d
  {cross} runs r ON r.run_id = d.run_id;

-- starts
SELECT coalesce(max(number), 0),
       (SELECT started_at FROM run_starts
         WHERE scope = :scope AND number = (SELECT max(number) FROM run_starts WHERE scope = :scope) + 1 - :most)
  FROM run_starts WHERE scope = :scope;

-- note_start
INSERT INTO run_starts (scope, number, started_at) VALUES (:scope, :number, :started_at);

-- forget_start
DELETE FROM run_starts WHERE scope = :scope AND number <= :number;

-- forget_starts
DELETE FROM run_starts WHERE started_at < :older_than;

-- put_command
INSERT INTO run_commands (dispatch_id, call_id, body, created_at)
VALUES (:dispatch_id, :call_id, :body, :created_at)
ON CONFLICT (dispatch_id, call_id) DO NOTHING;

-- commands
SELECT dispatch_id, body FROM run_commands WHERE dispatch_id IN {texts :dispatch_ids}
 ORDER BY dispatch_id, created_at, call_id;

-- drop_commands
DELETE FROM run_commands WHERE dispatch_id = :dispatch_id;

-- drop_decision
DELETE FROM run_commands WHERE dispatch_id = :dispatch_id AND call_id = :call_id;

-- forget_commands
DELETE FROM run_commands
 WHERE NOT EXISTS (SELECT 1 FROM run_dispatches d
                    WHERE d.dispatch_id = run_commands.dispatch_id AND d.status = 'Claimed');

-- place
SELECT place FROM thread_places WHERE thread_id = :thread_id;

-- put_place
INSERT INTO thread_places (thread_id, place) VALUES (:thread_id, :place)
ON CONFLICT (thread_id) DO UPDATE SET place = excluded.place;

-- drop_place
DELETE FROM thread_places WHERE thread_id = :thread_id;
