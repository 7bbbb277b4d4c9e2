-- Rows of run_dispatches are read whole, in the order of its columns. A write that presents a claim carries
-- token and epoch in its WHERE; when it meets no row, somebody looks why. What looks for work passes over rows
-- that are set aside. To write and then read a row costs less than RETURNING, for which SQLite builds a table.

-- enqueue
INSERT INTO run_dispatches
VALUES (?, ?, ?, ?, ?, ?, 'Queued', ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL, ?, NULL, NULL, NULL, NULL, NULL, NULL, NULL, ?, 1);

-- dispatch
SELECT * FROM run_dispatches WHERE dispatch_id = ?;

-- open_with_key
SELECT dispatch_id FROM run_dispatches
 WHERE thread_id = :thread_id AND dedupe_key = :dedupe_key AND dedupe_key IS NOT NULL
   AND is_open = 1;

-- open_of_run
SELECT dispatch_id FROM run_dispatches WHERE run_id = :run_id AND is_open = 1;

-- claim
UPDATE run_dispatches
   SET status = 'Claimed', claim_token = :token, claimed_by = :consumer, claimed_at = :now,
       lease_until = :lease_until, updated_at = :now
 WHERE rowid = (
       SELECT rowid FROM run_dispatches
        WHERE thread_id = :thread_id AND status = 'Queued' AND available_at <= :now
          AND dispatch_epoch >= coalesce((SELECT epoch FROM dispatch_epochs WHERE thread_id = :thread_id), 0)
          AND NOT EXISTS (SELECT 1 FROM run_quarantine WHERE kind = 'dispatch' AND id = dispatch_id)
        ORDER BY priority, created_at, dispatch_id LIMIT 1)
   AND NOT EXISTS (SELECT 1 FROM run_dispatches WHERE thread_id = :thread_id AND status = 'Claimed');

-- claim_by_id
UPDATE run_dispatches
   SET status = 'Claimed', claim_token = :token, claimed_by = :consumer, claimed_at = :now,
       lease_until = :lease_until, updated_at = :now
 WHERE dispatch_id = :dispatch_id AND status = 'Queued'
   AND dispatch_epoch >= coalesce(
         (SELECT epoch FROM dispatch_epochs WHERE dispatch_epochs.thread_id = run_dispatches.thread_id), 0)
   AND NOT EXISTS (SELECT 1 FROM run_quarantine WHERE kind = 'dispatch' AND id = :dispatch_id)
   AND NOT EXISTS (SELECT 1 FROM run_dispatches AS other
                    WHERE other.thread_id = run_dispatches.thread_id AND other.status = 'Claimed');

-- record_start
UPDATE run_dispatches
   SET dispatch_instance_id = :instance_id, run_status = 'running', termination = NULL, run_response = NULL,
       run_error = NULL, completed_at = NULL, updated_at = :now
 WHERE dispatch_id = :dispatch_id AND status = 'Claimed' AND claim_token = :token
   AND dispatch_epoch >= coalesce(
         (SELECT epoch FROM dispatch_epochs WHERE dispatch_epochs.thread_id = run_dispatches.thread_id), 0);

-- record_result
UPDATE run_dispatches
   SET dispatch_instance_id = :instance_id, run_status = :run_status, termination = :termination,
       run_response = :response, run_error = :error, completed_at = :now, updated_at = :now
 WHERE dispatch_id = :dispatch_id AND status = 'Claimed' AND claim_token = :token AND run_id = :run_id
   AND dispatch_epoch >= coalesce(
         (SELECT epoch FROM dispatch_epochs WHERE dispatch_epochs.thread_id = run_dispatches.thread_id), 0);

-- ack
UPDATE run_dispatches
   SET status = 'Acked', claim_token = NULL, claimed_by = NULL, lease_until = NULL, completed_at = :now,
       updated_at = :now, reconciled = 1, is_open = 0
 WHERE dispatch_id = :dispatch_id AND status = 'Claimed' AND claim_token = :token
   AND dispatch_epoch >= coalesce(
         (SELECT epoch FROM dispatch_epochs WHERE dispatch_epochs.thread_id = run_dispatches.thread_id), 0);

-- extend_lease
UPDATE run_dispatches
   SET lease_until = :lease_until, updated_at = :now
 WHERE dispatch_id = :dispatch_id AND status = 'Claimed' AND claim_token = :token
   AND dispatch_epoch >= coalesce(
         (SELECT epoch FROM dispatch_epochs WHERE dispatch_epochs.thread_id = run_dispatches.thread_id), 0);

-- move
UPDATE run_dispatches
   SET available_at = :available_at, updated_at = :updated_at, status = :status, attempt_count = :attempt_count,
       last_error = :last_error, claim_token = :claim_token, claimed_by = :claimed_by, claimed_at = :claimed_at,
       lease_until = :lease_until, dispatch_instance_id = :dispatch_instance_id, run_status = :run_status,
       termination = :termination, run_response = :run_response, run_error = :run_error,
       completed_at = :completed_at, reconciled = :reconciled, is_open = :is_open
 WHERE dispatch_id = :dispatch_id;

-- epoch
SELECT epoch FROM dispatch_epochs WHERE thread_id = ?;

-- raise_epoch
INSERT INTO dispatch_epochs (thread_id, epoch) VALUES (?, 1)
ON CONFLICT (thread_id) DO UPDATE SET epoch = epoch + 1 RETURNING epoch;

-- queue
SELECT * FROM run_dispatches
 WHERE thread_id = ? AND status = 'Queued'
   AND NOT EXISTS (SELECT 1 FROM run_quarantine WHERE kind = 'dispatch' AND id = dispatch_id)
 ORDER BY priority, created_at, dispatch_id;

-- stale_queue
SELECT * FROM run_dispatches
 WHERE thread_id = :thread_id AND status = 'Queued' AND dispatch_epoch < :epoch
   AND NOT EXISTS (SELECT 1 FROM run_quarantine WHERE kind = 'dispatch' AND id = dispatch_id);

-- overdue
SELECT * FROM run_dispatches
 WHERE status = 'Claimed' AND lease_until < :now
   AND NOT EXISTS (SELECT 1 FROM run_quarantine WHERE kind = 'dispatch' AND id = dispatch_id)
 ORDER BY lease_until, dispatch_id LIMIT :limit;

-- claimed
SELECT * FROM run_dispatches WHERE thread_id = ? AND status = 'Claimed';

-- of_thread
WITH found (place) AS (
  SELECT place FROM (
    SELECT rowid AS place, priority, created_at, dispatch_id FROM run_dispatches
     WHERE :queued AND thread_id = :thread_id AND status = 'Queued'
     UNION ALL
    SELECT rowid, priority, created_at, dispatch_id FROM run_dispatches
     WHERE :claimed AND thread_id = :thread_id AND status = 'Claimed'
     UNION ALL
    SELECT rowid, priority, created_at, dispatch_id FROM run_dispatches
     WHERE :acked AND thread_id = :thread_id AND status = 'Acked' AND is_open = 0
     UNION ALL
    SELECT rowid, priority, created_at, dispatch_id FROM run_dispatches
     WHERE :cancelled AND thread_id = :thread_id AND status = 'Cancelled' AND is_open = 0
     UNION ALL
    SELECT rowid, priority, created_at, dispatch_id FROM run_dispatches
     WHERE :superseded AND thread_id = :thread_id AND status = 'Superseded'
       AND is_open = 0
     UNION ALL
    SELECT rowid, priority, created_at, dispatch_id FROM run_dispatches
     WHERE :dead_letter AND thread_id = :thread_id AND status = 'DeadLetter'
       AND is_open = 0
     ORDER BY 2, 3, 4)
   WHERE NOT EXISTS (SELECT 1 FROM run_quarantine WHERE kind = 'dispatch' AND id = dispatch_id)
   LIMIT :limit OFFSET :offset)
SELECT run_dispatches.* FROM found CROSS JOIN run_dispatches ON run_dispatches.rowid = found.place
 ORDER BY priority, created_at, dispatch_id;

-- queued_by_change
SELECT * FROM run_dispatches
 WHERE status = 'Queued' AND (updated_at, dispatch_id) > (:at, :id)
   AND NOT EXISTS (SELECT 1 FROM run_quarantine WHERE kind = 'dispatch' AND id = dispatch_id)
 ORDER BY updated_at, dispatch_id LIMIT :limit;

-- claimed_by_change
SELECT * FROM run_dispatches
 WHERE status = 'Claimed' AND (updated_at, dispatch_id) > (:at, :id)
   AND NOT EXISTS (SELECT 1 FROM run_quarantine WHERE kind = 'dispatch' AND id = dispatch_id)
 ORDER BY updated_at, dispatch_id LIMIT :limit;

-- ended_by_change
SELECT * FROM run_dispatches
 WHERE status = :status AND is_open = 0 AND (updated_at, dispatch_id) > (:at, :id)
   AND NOT EXISTS (SELECT 1 FROM run_quarantine WHERE kind = 'dispatch' AND id = dispatch_id)
 ORDER BY updated_at, dispatch_id LIMIT :limit;

-- unreconciled
SELECT * FROM run_dispatches
 WHERE reconciled = 0
   AND NOT EXISTS (SELECT 1 FROM run_quarantine WHERE kind = 'dispatch' AND id = dispatch_id)
 ORDER BY updated_at, dispatch_id LIMIT ?;

-- mark_reconciled
UPDATE run_dispatches SET reconciled = 1
 WHERE dispatch_id IN (SELECT value FROM json_each(?)) AND reconciled = 0;

-- due_threads
SELECT thread_id FROM run_dispatches
 WHERE status = 'Queued' AND available_at <= ?
   AND NOT EXISTS (SELECT 1 FROM run_dispatches AS other
                    WHERE other.thread_id = run_dispatches.thread_id AND other.status = 'Claimed')
   AND NOT EXISTS (SELECT 1 FROM run_quarantine WHERE kind = 'dispatch' AND id = dispatch_id)
 ORDER BY priority, created_at, dispatch_id;

-- next_due_at
SELECT available_at FROM run_dispatches
 WHERE status = 'Queued'
   AND NOT EXISTS (SELECT 1 FROM run_dispatches AS other
                    WHERE other.thread_id = run_dispatches.thread_id AND other.status = 'Claimed')
   AND NOT EXISTS (SELECT 1 FROM run_quarantine WHERE kind = 'dispatch' AND id = dispatch_id)
 ORDER BY available_at LIMIT 1;

-- queued_threads
SELECT DISTINCT thread_id FROM run_dispatches
 WHERE status = 'Queued' AND thread_id > :after
   AND NOT EXISTS (SELECT 1 FROM run_quarantine WHERE kind = 'dispatch' AND id = dispatch_id)
 ORDER BY thread_id LIMIT :limit;

-- count_queued
SELECT count(*) FROM (SELECT 1 FROM run_dispatches WHERE thread_id = :thread_id AND status = 'Queued' LIMIT :at_most);

-- count_by_status
SELECT 'Queued', count(*) FROM run_dispatches WHERE status = 'Queued'
 UNION ALL
SELECT 'Claimed', count(*) FROM run_dispatches WHERE status = 'Claimed'
 UNION ALL
SELECT status, number FROM run_dispatch_counts;

-- discard
DELETE FROM run_dispatches WHERE dispatch_id = ? AND status = 'DeadLetter' RETURNING *;

-- purge
DELETE FROM run_dispatches
 WHERE rowid IN (SELECT rowid FROM run_dispatches
                  WHERE status = :status AND is_open = 0 AND updated_at < :older_than
                    AND reconciled = 1
                  ORDER BY updated_at LIMIT :limit);

-- forget_gone
DELETE FROM run_quarantine
 WHERE kind = 'dispatch' AND NOT EXISTS (SELECT 1 FROM run_dispatches WHERE dispatch_id = run_quarantine.id);

-- set_aside
INSERT INTO run_quarantine (kind, id, reason, at) VALUES (:kind, :id, :reason, :at)
ON CONFLICT (kind, id) DO NOTHING RETURNING 1;
