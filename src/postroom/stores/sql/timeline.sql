-- What happened within a span of time. `attempts_alone` and `attempt_groups` have every attempt between them.

-- attempts_of_runs
SELECT id, run_id, agent_id, queued_at, began_at, ended_at, outcome, waited_until, error
  FROM attempts WHERE run_id IN {texts :run_ids} ORDER BY id;

-- begin_attempt
INSERT INTO attempts (run_id, agent_id, queued_at, began_at)
SELECT CAST(:run_id AS text), CAST(:agent_id AS bigint),
       coalesce((SELECT max(coalesce(waited_until, ended_at)) FROM attempts WHERE run_id = CAST(:run_id AS text)),
                (SELECT created_at FROM runs WHERE run_id = CAST(:run_id AS text)), CAST(:now AS bigint)),
       CAST(:now AS bigint);

-- end_attempt
UPDATE attempts SET ended_at = CAST(:now AS bigint), outcome = :outcome, error = :error
 WHERE run_id = :run_id AND ended_at IS NULL;

-- end_wait
UPDATE attempts SET waited_until = CAST(:now AS bigint)
 WHERE run_id = :run_id AND outcome = 'waiting' AND waited_until IS NULL;

-- drop_attempts
DELETE FROM attempts WHERE run_id IN {texts :run_ids};

-- attempt_count
SELECT count(*), count(DISTINCT agent_id)
  FROM attempts WHERE agent_id IN {ints :agent_ids} AND began_at >= :begin AND began_at < :end;

-- attempt_groups
SELECT agent_id, count(*), min(id), min(run_id), min(queued_at), min(began_at), max(ended_at),
       max(CASE WHEN outcome = 'cancelled' THEN 1 ELSE 0 END)
  FROM attempts
 WHERE agent_id IN {ints :agent_ids} AND began_at >= CAST(:begin AS bigint) AND began_at < :end
   AND outcome IN ('done', 'cancelled')
 GROUP BY agent_id, (began_at - CAST(:begin AS bigint)) / CAST(:step AS bigint)
 ORDER BY 1, 6;

-- attempts_alone
SELECT id, run_id, agent_id, queued_at, began_at, ended_at, outcome, waited_until, error
  FROM attempts
 WHERE agent_id IN {ints :agent_ids} AND began_at >= :begin AND began_at < :end
   AND outcome IN ('', 'failed', 'waiting', 'cut_off')
 ORDER BY id DESC LIMIT :limit;

-- attempts_since
SELECT t.run_id, a.project_id, a.name, t.outcome, t.ended_at
  FROM agents a JOIN attempts t ON t.agent_id = a.id
 WHERE a.project_id IN {ints :project_ids} AND t.began_at >= CAST(:begin AS bigint) AND t.ended_at >= CAST(:since AS bigint)
 ORDER BY t.ended_at DESC, t.id DESC LIMIT :limit;

-- messages_since
SELECT project_id, count(*) FROM messages
 WHERE project_id IN {ints :project_ids} AND created_ts >= CAST(:since AS bigint) GROUP BY project_id;

-- attempts_before
SELECT id, run_id, agent_id, queued_at, began_at, ended_at, outcome, waited_until, error
  FROM attempts
 WHERE id IN (SELECT (SELECT b.id FROM attempts b WHERE b.agent_id = a.id AND b.began_at < CAST(:begin AS bigint)
                       ORDER BY b.began_at DESC, b.id DESC LIMIT 1)
                FROM agents a WHERE a.id IN {ints :agent_ids})
 ORDER BY id;

-- written
SELECT id, project_id, sender_id, sender_name, thread_id, subject, importance, created_ts, recalled_at
  FROM messages WHERE project_id = :project_id AND created_ts >= :begin AND created_ts < :end
 ORDER BY created_ts DESC, id DESC LIMIT :limit;

-- written_on_thread
SELECT id, project_id, sender_id, sender_name, thread_id, subject, importance, created_ts, recalled_at
  FROM messages
 WHERE project_id = :project_id AND thread_id = :thread_id AND +created_ts >= :begin AND +created_ts < :end
 ORDER BY id DESC LIMIT :limit;

-- written_by
SELECT id, project_id, sender_id, sender_name, thread_id, subject, importance, created_ts, recalled_at
  FROM messages
 WHERE sender_id = :agent_id AND +project_id = :project_id AND +created_ts >= :begin AND +created_ts < :end
 ORDER BY id DESC LIMIT :limit;

-- written_to
SELECT m.id, m.project_id, m.sender_id, m.sender_name, m.thread_id, m.subject, m.importance, m.created_ts, m.recalled_at
  FROM recipients r {cross} messages m ON m.id = r.message_id
 WHERE r.agent_id = :agent_id AND r.kind <> 'bcc' AND m.project_id = :project_id
   AND +m.created_ts >= :begin AND +m.created_ts < :end
 ORDER BY r.seq DESC LIMIT :limit;

-- openly_to
SELECT message_id FROM recipients WHERE agent_id = :agent_id AND kind <> 'bcc' AND message_id IN {ints :ids};

-- written_into
SELECT id, project_id, sender_id, sender_name, thread_id, subject, importance, created_ts, recalled_at
  FROM messages m WHERE project_id = :project_id AND created_ts >= :begin AND created_ts < :end
   AND EXISTS (SELECT 1 FROM recipients r JOIN agents a ON a.id = r.agent_id
                WHERE r.message_id = m.id AND r.kind <> 'bcc' AND a.project_id = :to)
 ORDER BY created_ts DESC, id DESC LIMIT :limit;

-- written_count
SELECT count(*) FROM (
  SELECT 1 FROM messages WHERE project_id = :project_id AND created_ts >= :begin AND created_ts < :end LIMIT :most) AS counted;

-- written_into_count
SELECT count(*) FROM (
  SELECT 1 FROM messages m WHERE project_id = :project_id AND created_ts >= :begin AND created_ts < :end
     AND EXISTS (SELECT 1 FROM recipients r JOIN agents a ON a.id = r.agent_id
                  WHERE r.message_id = m.id AND r.kind <> 'bcc' AND a.project_id = :to)
   LIMIT :most) AS counted;

-- took_part
WITH newest AS (
  SELECT id, sender_id FROM messages WHERE project_id = :project_id AND created_ts >= :begin AND created_ts < :end
   ORDER BY created_ts DESC, id DESC LIMIT :newest)
SELECT sender_id FROM newest
 UNION
SELECT r.agent_id FROM newest n {cross} recipients r ON r.message_id = n.id WHERE r.kind <> 'bcc'
 ORDER BY 1;

-- written_counts
WITH RECURSIVE part (number) AS (
  SELECT CAST(0 AS bigint)
   UNION ALL
  SELECT number + 1 FROM part WHERE number + 1 < CAST(:parts AS bigint))
SELECT number, (SELECT count(*) FROM (
         SELECT 1 FROM messages
          WHERE project_id = :project_id
            AND created_ts >= CAST(:begin AS bigint) + (CAST(:end AS bigint) - CAST(:begin AS bigint)) * number / CAST(:parts AS bigint)
            AND created_ts < CAST(:begin AS bigint) + (CAST(:end AS bigint) - CAST(:begin AS bigint)) * (number + 1) / CAST(:parts AS bigint)
          LIMIT :most) AS counted)
  FROM part ORDER BY number;

-- reservations_in
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.released_at, r.released_by, r.release_reason
  FROM file_reservations r JOIN agents a ON a.id = r.agent_id
 WHERE r.project_id = :project_id AND r.created_at >= :since AND r.created_at < :end
   AND coalesce(r.released_at, r.expires_at) > :begin
 ORDER BY r.created_at DESC, r.id DESC LIMIT :limit;

-- begin_of
SELECT created_ts FROM messages WHERE project_id = :project_id ORDER BY created_ts LIMIT 1;
