-- Threads, runs, and messages committed and pending. `:low` and `:beyond` bound ids. What is listed leaves out rows
-- that are set aside. `seq + 0` sorts what was found; by `seq` SQLite would walk the whole thread in that order. PostgreSQL
-- would, too, for a list of ids: it looks for each id apart.

-- part thread
thread_id, title, resource_id, parent_thread_id, custom, active_run_id, open_run_id, latest_run_id,
       latest_run_updated_at, message_count, created_at, updated_at, latest_started_run_id

-- thread
SELECT {part thread}
  FROM run_threads WHERE thread_id = :thread_id;

-- put_thread
INSERT INTO run_threads
      (thread_id, title, resource_id, parent_thread_id, custom, active_run_id, open_run_id, latest_run_id,
       latest_run_updated_at, message_count, created_at, updated_at, latest_started_run_id)
VALUES (:thread_id, :title, :resource_id, :parent_thread_id, :custom, :active_run_id, :open_run_id, :latest_run_id,
        :latest_run_updated_at, :message_count, :created_at, :updated_at, :latest_started_run_id)
ON CONFLICT (thread_id) DO UPDATE
   SET title = excluded.title, resource_id = excluded.resource_id, parent_thread_id = excluded.parent_thread_id,
       custom = excluded.custom, active_run_id = excluded.active_run_id, open_run_id = excluded.open_run_id,
       latest_run_id = excluded.latest_run_id, latest_run_updated_at = excluded.latest_run_updated_at,
       message_count = excluded.message_count, created_at = excluded.created_at,
       updated_at = excluded.updated_at,
       latest_started_run_id = coalesce(excluded.latest_started_run_id, run_threads.latest_started_run_id);

-- move_thread
UPDATE run_threads
   SET active_run_id = :active_run_id, open_run_id = :open_run_id, latest_run_id = :latest_run_id,
       latest_run_updated_at = :latest_run_updated_at, message_count = :message_count, updated_at = :updated_at,
       latest_started_run_id = :latest_started_run_id
 WHERE thread_id = :thread_id;

-- above
WITH RECURSIVE above (thread_id, parent_thread_id) AS (
  SELECT thread_id, parent_thread_id FROM run_threads WHERE thread_id = :thread_id
   UNION
  SELECT t.thread_id, t.parent_thread_id FROM above JOIN run_threads t ON t.thread_id = above.parent_thread_id)
SELECT thread_id FROM above;

-- below
WITH RECURSIVE below (thread_id) AS (
  SELECT thread_id FROM run_threads WHERE parent_thread_id = :thread_id
   UNION
  SELECT t.thread_id FROM below JOIN run_threads t ON t.parent_thread_id = below.thread_id)
SELECT thread_id FROM below;

-- detach_children
UPDATE run_threads SET parent_thread_id = NULL WHERE parent_thread_id = :thread_id;

-- idle
SELECT t.thread_id FROM run_threads t
 WHERE t.updated_at < :before AND (CAST(:is_any AS bigint) = 1 OR t.thread_id IN {texts :among})
   AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.thread_id = t.thread_id AND (r.status <> 'done' OR r.updated_at >= :before))
   AND NOT EXISTS (SELECT 1 FROM run_dispatches d WHERE d.thread_id = t.thread_id AND d.is_open = 1)
   AND NOT EXISTS (SELECT 1 FROM pending_messages p WHERE p.thread_id = t.thread_id)
   AND NOT EXISTS (SELECT 1 FROM chat_sessions s WHERE s.thread_id = t.thread_id)
   AND NOT EXISTS (SELECT 1 FROM run_threads c WHERE c.parent_thread_id = t.thread_id)
 ORDER BY t.thread_id LIMIT :limit;

-- runs_of_threads
SELECT run_id FROM runs WHERE thread_id IN {texts :thread_ids};

-- drop_messages
DELETE FROM run_messages WHERE thread_id IN {texts :thread_ids};

-- drop_pending
DELETE FROM pending_messages WHERE thread_id IN {texts :thread_ids};

-- drop_runs
DELETE FROM runs WHERE thread_id IN {texts :thread_ids};

-- drop_state
DELETE FROM thread_states WHERE thread_id IN {texts :thread_ids};

-- drop_threads
DELETE FROM run_threads WHERE thread_id IN {texts :thread_ids};

-- forget_thread
DELETE FROM unreadable_rows
 WHERE kind = 'thread' AND id = :thread_id
    OR kind IN ('message', 'pending') AND substr(id, 1, length(:below)) = :below;

-- forget_runs
DELETE FROM unreadable_rows
 WHERE kind = 'run' AND NOT EXISTS (SELECT 1 FROM runs WHERE run_id = unreadable_rows.id);

-- threads
SELECT {part thread}
  FROM run_threads
 WHERE thread_id >= :low AND thread_id < :beyond AND thread_id <> :after
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'thread' AND id = thread_id)
 ORDER BY thread_id LIMIT :limit;

-- threads_of_resource
SELECT {part thread}
  FROM run_threads
 WHERE resource_id = :resource_id AND thread_id >= :low AND thread_id < :beyond AND thread_id <> :after
   AND resource_id IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'thread' AND id = thread_id)
 ORDER BY thread_id LIMIT :limit;

-- threads_of_parent
SELECT {part thread}
  FROM run_threads
 WHERE parent_thread_id = :parent_thread_id AND thread_id >= :low AND thread_id < :beyond AND thread_id <> :after
   AND (CAST(:resource_id AS text) IS NULL OR resource_id = :resource_id)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'thread' AND id = thread_id)
 ORDER BY thread_id LIMIT :limit;

-- threads_without_parent
SELECT {part thread}
  FROM run_threads
 WHERE parent_thread_id IS NULL AND thread_id >= :low AND thread_id < :beyond AND thread_id <> :after
   AND (CAST(:resource_id AS text) IS NULL OR resource_id = :resource_id)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'thread' AND id = thread_id)
 ORDER BY thread_id LIMIT :limit;

-- run
SELECT run_id, body FROM runs WHERE run_id = :run_id;

-- threads_with_rows
SELECT thread_id FROM run_threads WHERE thread_id IN {texts :thread_ids};

-- threads_of_runs
SELECT run_id, thread_id,
       (SELECT body FROM run_messages AS said
         WHERE said.thread_id = runs.thread_id AND said.message_id = runs.run_id LIMIT 1)
  FROM runs WHERE run_id IN {texts :run_ids};

-- add_run
INSERT INTO runs (run_id, thread_id, status, holds_others, created_at, updated_at, numbered_at, body)
VALUES (:run_id, :thread_id, :status, :holds_others, :created_at, :updated_at, :updated_at, :body);

-- put_run
UPDATE runs
   SET status = :status, holds_others = :holds_others, updated_at = :updated_at, numbered_at = :updated_at, body = :body
 WHERE run_id = :run_id;

-- drop_questions
DELETE FROM run_questions WHERE run_id = :run_id;

-- add_question
INSERT INTO run_questions (run_id, number, call_id, home, asked_at, answered_at, ends_at)
VALUES (:run_id, :number, :call_id, :home, :asked_at, :answered_at, :ends_at)
ON CONFLICT (run_id, number) DO NOTHING;

-- mark_numbered
UPDATE runs SET numbered_at = updated_at WHERE run_id = :run_id AND updated_at = :updated_at;

-- unnumbered
-- Runs that a release before the table of questions has written.
SELECT run_id, body FROM runs {index runs_unnumbered}
 WHERE status = 'waiting' AND numbered_at <> updated_at
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
 ORDER BY run_id LIMIT :limit;

-- numbered
SELECT runs.run_id, runs.body FROM run_questions AS q {index run_questions_number} {cross} runs ON runs.run_id = q.run_id
 WHERE q.number >= :low AND q.number < :beyond AND (q.answered_at IS NULL OR q.answered_at >= :since)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = runs.run_id)
 ORDER BY q.number LIMIT :limit;

-- asked_in
SELECT runs.run_id, runs.body FROM run_questions AS q {index run_questions_open} {cross} runs ON runs.run_id = q.run_id
 WHERE q.home = :home AND q.answered_at IS NULL AND runs.status = 'waiting'
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = runs.run_id)
 ORDER BY q.asked_at, q.run_id LIMIT :limit;

-- count_asked
SELECT count(*) FROM (
  SELECT 1 FROM run_questions AS q {index run_questions_open} {cross} runs ON runs.run_id = q.run_id
   WHERE q.home >= :low AND q.home < :beyond AND q.answered_at IS NULL AND runs.status = 'waiting'
     AND NOT EXISTS (SELECT 1 FROM snoozed_questions s
                      WHERE s.run_id = q.run_id AND s.question_id = q.call_id AND s.until > :now)
     AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = runs.run_id)
   LIMIT :limit) AS asked;

-- overdue
SELECT runs.run_id, runs.body, q.ends_at
  FROM run_questions AS q {index run_questions_ends} {cross} runs ON runs.run_id = q.run_id
 WHERE q.ends_at <= :now AND (q.ends_at, q.run_id) > (:ends_at, :run_id) AND runs.status = 'waiting'
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = runs.run_id)
 ORDER BY q.ends_at, q.run_id LIMIT :limit;

-- answered_in
SELECT runs.run_id, runs.body FROM run_questions AS q {index run_questions_answered} {cross} runs ON runs.run_id = q.run_id
 WHERE q.home = :home AND q.answered_at IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = runs.run_id)
 ORDER BY q.answered_at DESC LIMIT :limit;

-- latest_runs
SELECT run_id, body FROM runs
 WHERE thread_id = :thread_id AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
 ORDER BY updated_at DESC, created_at DESC, run_id DESC LIMIT :limit;

-- run_places
SELECT updated_at, created_at, run_id FROM runs
 WHERE thread_id = :thread_id AND (updated_at, created_at, run_id) < (:updated_at, :created_at, :run_id)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
 ORDER BY updated_at DESC, created_at DESC, run_id DESC LIMIT :limit;

-- runs_beside
SELECT coalesce((SELECT run_id FROM runs AS r
                  WHERE r.thread_id = this.thread_id
                    AND (r.updated_at, r.created_at, r.run_id) < (this.updated_at, this.created_at, this.run_id)
                    AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = r.run_id)
                  ORDER BY r.updated_at DESC, r.created_at DESC, r.run_id DESC LIMIT 1), ''),
       coalesce((SELECT run_id FROM runs AS r
                  WHERE r.thread_id = this.thread_id
                    AND (r.updated_at, r.created_at, r.run_id) > (this.updated_at, this.created_at, this.run_id)
                    AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = r.run_id)
                  ORDER BY r.updated_at, r.created_at, r.run_id LIMIT 1), '')
  FROM runs AS this WHERE this.run_id = :run_id;

-- runs_named
SELECT run_id, body FROM runs WHERE run_id IN {texts :run_ids};

-- runs
SELECT run_id, body FROM runs
 WHERE run_id >= :low AND run_id < :beyond AND run_id <> :after
   AND status IN {texts :statuses}
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
 ORDER BY run_id LIMIT :limit;

-- runs_of_thread
-- No index has this order: the ids are sorted without the bodies.
SELECT run_id, body FROM runs
 WHERE run_id IN (SELECT run_id FROM runs
                   WHERE thread_id = :thread_id AND run_id >= :low AND run_id < :beyond AND run_id <> :after
                     AND status IN {texts :statuses}
                     AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
                   ORDER BY run_id LIMIT :limit)
 ORDER BY run_id;

-- runs_below
SELECT run_id, body FROM runs
 WHERE thread_id >= :thread_low AND thread_id < :thread_beyond AND run_id >= :low AND run_id < :beyond AND run_id <> :after
   AND status IN {texts :statuses}
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
 ORDER BY run_id LIMIT :limit;

-- open_runs_below
SELECT run_id, body FROM runs {index runs_open_of_thread}
 WHERE status <> 'done' AND thread_id >= :thread_low AND thread_id < :thread_beyond
   AND run_id >= :low AND run_id < :beyond AND run_id <> :after
   AND status IN {texts :statuses}
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
 ORDER BY run_id LIMIT :limit;

-- count_open
SELECT count(*) FROM runs {index runs_open_of_thread}
 WHERE status <> 'done' AND thread_id >= :low AND thread_id < :beyond
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id);

-- undelivered
SELECT run_id, body FROM runs {index runs_open_of_thread}
 WHERE status <> 'done' AND status IN ('created', 'waiting') AND run_id > :after
   AND NOT EXISTS (SELECT 1 FROM run_dispatches d WHERE d.run_id = runs.run_id AND d.status = 'Queued' AND d.run_id > '')
   AND NOT EXISTS (SELECT 1 FROM run_dispatches d
                    WHERE d.thread_id = runs.thread_id AND d.status = 'Claimed' AND d.run_id = runs.run_id)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
 ORDER BY run_id LIMIT :limit;

-- waiting_without_questions
SELECT run_id, body FROM runs {index runs_waiting}
 WHERE status = 'waiting' AND holds_others = 0 AND run_id > :after
   AND NOT EXISTS (SELECT 1 FROM run_dispatches d WHERE d.thread_id = runs.thread_id AND d.status = 'Queued')
   AND NOT EXISTS (SELECT 1 FROM run_dispatches d WHERE d.thread_id = runs.thread_id AND d.status = 'Claimed')
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
 ORDER BY run_id LIMIT :limit;

-- open_runs
SELECT run_id, body FROM runs
 WHERE run_id IN (SELECT run_id FROM runs {index runs_open_of_thread}
                   WHERE status <> 'done' AND run_id >= :low AND run_id < :beyond AND run_id <> :after
                     AND status IN {texts :statuses}
                     AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
                   ORDER BY run_id LIMIT :limit)
 ORDER BY run_id;

-- waiting_runs
SELECT run_id, body FROM runs {index runs_waiting}
 WHERE status = 'waiting' AND run_id >= :low AND run_id < :beyond AND run_id <> :after
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
 ORDER BY run_id LIMIT :limit;

-- asking_below
SELECT run_id, body FROM runs {index runs_holding}
 WHERE status <> 'done' AND holds_others = 1 AND thread_id >= :low AND thread_id < :beyond
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
 LIMIT :limit;

-- asked_last
SELECT run_id, body FROM runs {index runs_asked}
 WHERE status = 'waiting'
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
 ORDER BY updated_at DESC, run_id DESC LIMIT :limit;

-- asked_since
SELECT run_id, body FROM runs {index runs_asked}
 WHERE status = 'waiting' AND (updated_at, run_id) > (:updated_at, :run_id)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
 ORDER BY updated_at, run_id LIMIT :limit;

-- open_runs_of_thread
SELECT run_id, body FROM runs {index runs_open_of_thread}
 WHERE status <> 'done' AND thread_id = :thread_id AND run_id >= :low AND run_id < :beyond AND run_id <> :after
   AND status IN {texts :statuses}
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
 ORDER BY run_id LIMIT :limit;

-- turns
SELECT run_id, status, created_at, body FROM runs
 WHERE thread_id = :thread_id AND updated_at >= :since
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id)
 UNION ALL
SELECT run_id, status, created_at, body FROM runs
 WHERE thread_id = :thread_id AND status <> 'done' AND updated_at < :since
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id);

-- turns_named
SELECT run_id, status, created_at, body FROM runs
 WHERE run_id IN {texts :run_ids}
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = run_id);

-- append_message
INSERT INTO run_messages (thread_id, seq, message_id, run_id, visibility, created_at, body, given_to, answer_of)
VALUES (:thread_id, :seq, :message_id, :run_id, :visibility, :created_at, :body, :given_to, :answer_of);

-- refer_to_answer
UPDATE run_messages SET body = :body, answer_of = :answer_of WHERE thread_id = :thread_id AND message_id = :message_id;

-- given_to
SELECT given_to FROM run_messages WHERE thread_id = :thread_id AND message_id = :message_id;

-- committed
SELECT asked.value FROM {each :message_ids}
 WHERE EXISTS (SELECT 1 FROM run_messages WHERE thread_id = :thread_id AND message_id = asked.value LIMIT 1 OFFSET 0)
 LIMIT 1;

-- part message
-- The last is the row of the run whose answer the message refers to.
thread_id, seq, created_at, body,
       CASE WHEN answer_of IS NOT NULL THEN coalesce((SELECT body FROM runs WHERE runs.run_id = answer_of), '{}') END

-- all_messages
SELECT {part message} FROM run_messages WHERE thread_id = :thread_id ORDER BY seq;

-- unsummarized
SELECT {part message} FROM run_messages
 WHERE thread_id = :thread_id AND summary IS NULL
   AND seq >= coalesce((SELECT first_seq FROM run_summaries WHERE thread_id = :thread_id
                         ORDER BY number DESC LIMIT 1), 0)
 ORDER BY seq;

-- unsummarized_after
SELECT {part message} FROM run_messages
 WHERE thread_id = :thread_id AND (summary IS NULL OR summary > :number) ORDER BY seq;

-- passed_over
SELECT {part message} FROM run_messages
 WHERE thread_id = :thread_id AND message_id IN {texts :message_ids}
   AND (summary = 0 OR message_id IN {texts :own}) ORDER BY seq + 0;

-- summary
SELECT body FROM run_summaries WHERE thread_id = :thread_id AND number < :below ORDER BY number DESC LIMIT 1;

-- summaries_of
SELECT min(summary) FROM run_messages
 WHERE thread_id = :thread_id AND run_id IN {texts :run_ids} AND run_id IS NOT NULL AND summary > 0
 UNION ALL
SELECT min(summary) FROM run_messages
 WHERE thread_id = :thread_id AND message_id IN {texts :message_ids} AND summary > 0;

-- unmark_messages
UPDATE run_messages SET summary = NULL WHERE thread_id = :thread_id AND summary >= :number;

-- mark_messages
UPDATE run_messages SET summary = :number WHERE thread_id = :thread_id AND message_id IN {texts :message_ids};

-- drop_later_summaries
DELETE FROM run_summaries WHERE thread_id = :thread_id AND number >= :number;

-- put_summary
-- `first_seq` is the number of the first message that no summary covers: those before it are not read again.
INSERT INTO run_summaries (thread_id, number, since, created_at, body, first_seq)
VALUES (CAST(:thread_id AS text), :number, :since, :created_at, :body,
        coalesce((SELECT seq FROM run_messages
                   WHERE thread_id = CAST(:thread_id AS text) AND summary IS NULL
                     AND seq >= coalesce((SELECT first_seq FROM run_summaries WHERE thread_id = CAST(:thread_id AS text)
                                           ORDER BY number DESC LIMIT 1), 0)
                   ORDER BY seq LIMIT 1),
                 (SELECT message_count + 1 FROM run_threads WHERE thread_id = CAST(:thread_id AS text)), 0));

-- drop_summaries
DELETE FROM run_summaries WHERE thread_id IN {texts :thread_ids};

-- named_messages
SELECT {part message} FROM run_messages
 WHERE thread_id = :thread_id AND message_id IN {texts :message_ids} ORDER BY seq + 0;

-- named_messages @postgres
SELECT found.* FROM (SELECT DISTINCT unnest(CAST(:message_ids AS text[])) AS id) AS asked
 CROSS JOIN LATERAL (SELECT {part message} FROM run_messages
                      WHERE thread_id = :thread_id AND message_id = asked.id OFFSET 0) AS found
 ORDER BY seq;

-- messages
SELECT {part message} FROM run_messages
 WHERE thread_id = :thread_id AND seq > :after AND seq < :before
   AND (CAST(:visibility AS text) IS NULL OR visibility = :visibility)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'message' AND id = thread_id || '/' || seq)
 ORDER BY seq LIMIT :limit;

-- messages_newest
SELECT {part message} FROM run_messages
 WHERE thread_id = :thread_id AND seq > :after AND seq < :before
   AND (CAST(:visibility AS text) IS NULL OR visibility = :visibility)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'message' AND id = thread_id || '/' || seq)
 ORDER BY seq DESC LIMIT :limit;

-- messages_of_run
SELECT {part message} FROM run_messages
 WHERE thread_id = :thread_id AND run_id = :run_id AND run_id IS NOT NULL AND seq > :after AND seq < :before
   AND (CAST(:visibility AS text) IS NULL OR visibility = :visibility)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'message' AND id = thread_id || '/' || seq)
 ORDER BY seq LIMIT :limit;

-- messages_of_run_newest
SELECT {part message} FROM run_messages
 WHERE thread_id = :thread_id AND run_id = :run_id AND run_id IS NOT NULL AND seq > :after AND seq < :before
   AND (CAST(:visibility AS text) IS NULL OR visibility = :visibility)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'message' AND id = thread_id || '/' || seq)
 ORDER BY seq DESC LIMIT :limit;

-- state
SELECT body FROM thread_states WHERE thread_id = :thread_id;

-- put_state
INSERT INTO thread_states (thread_id, body) VALUES (:thread_id, :body)
ON CONFLICT (thread_id) DO UPDATE SET body = excluded.body;

-- pending
SELECT thread_id, place, pending_id, revision, created_at, updated_at, mode, body FROM pending_messages
 WHERE thread_id = :thread_id
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'pending' AND id = thread_id || '/' || pending_id)
 ORDER BY place;

-- pending_behind
SELECT thread_id, place, pending_id, revision, created_at, updated_at, mode, body FROM pending_messages
 WHERE thread_id = :thread_id AND place > :place
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'pending' AND id = thread_id || '/' || pending_id)
 ORDER BY place LIMIT :limit;

-- pending_named
SELECT thread_id, place, pending_id, revision, created_at, updated_at, mode, body,
       (SELECT count(*) FROM pending_messages p WHERE p.thread_id = :thread_id AND p.place <= pending_messages.place
           AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'pending' AND id = p.thread_id || '/' || p.pending_id))
  FROM pending_messages
 WHERE thread_id = :thread_id AND pending_id = :pending_id
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'pending' AND id = thread_id || '/' || pending_id);

-- count_pending
SELECT count(*) FROM (SELECT 1 FROM pending_messages
                       WHERE thread_id = :thread_id
                         AND NOT EXISTS (SELECT 1 FROM unreadable_rows
                                          WHERE release = {release} AND kind = 'pending' AND id = thread_id || '/' || pending_id)) AS found;

-- count_waiting
SELECT thread_id, count(*) FROM pending_messages
 WHERE thread_id IN {texts :thread_ids}
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'pending' AND id = thread_id || '/' || pending_id)
 GROUP BY thread_id;

-- full_threads
-- Places have gaps but no more rows than their span: only a span that is wide enough is counted.
SELECT thread_id FROM run_threads
 WHERE thread_id IN {texts :thread_ids}
   AND coalesce((SELECT max(p.place) FROM pending_messages p WHERE p.thread_id = run_threads.thread_id), 0)
       - coalesce((SELECT min(p.place) FROM pending_messages p WHERE p.thread_id = run_threads.thread_id), 1) + 1
       >= CAST(:at_least AS bigint)
   AND (SELECT count(*) FROM (SELECT 1 FROM pending_messages p
                               WHERE p.thread_id = run_threads.thread_id LIMIT CAST(:at_least AS bigint)) AS found)
       >= CAST(:at_least AS bigint);

-- pending_versions
SELECT pending_id, revision FROM pending_messages
 WHERE thread_id = :thread_id AND pending_id IN {texts :pending_ids};

-- last_place
SELECT coalesce(max(place), 0) FROM pending_messages WHERE thread_id = :thread_id;

-- insert_pending
INSERT INTO pending_messages (thread_id, place, pending_id, revision, created_at, updated_at, mode, body)
VALUES (:thread_id, :place, :pending_id, :revision, :created_at, :updated_at, :mode, :body);

-- edit_pending
UPDATE pending_messages SET body = :body, revision = :revision, updated_at = :now
 WHERE thread_id = :thread_id AND pending_id = :pending_id;

-- take_pending
DELETE FROM pending_messages WHERE thread_id = :thread_id AND pending_id IN {texts :pending_ids};

-- threads_with_pending
WITH RECURSIVE found (thread_id) AS (
  SELECT (SELECT min(thread_id) FROM pending_messages WHERE thread_id > :after)
   UNION ALL
  SELECT (SELECT min(p.thread_id) FROM pending_messages p WHERE p.thread_id > found.thread_id)
    FROM found WHERE found.thread_id IS NOT NULL)
SELECT thread_id FROM found
 WHERE thread_id IS NOT NULL
   AND EXISTS (SELECT 1 FROM pending_messages p
                WHERE p.thread_id = found.thread_id
                  AND NOT EXISTS (SELECT 1 FROM unreadable_rows
                                   WHERE release = {release} AND kind = 'pending' AND id = p.thread_id || '/' || p.pending_id)
                LIMIT 1 OFFSET 0)
 LIMIT :limit;

-- threads_left_over
WITH RECURSIVE found (thread_id) AS (
  SELECT (SELECT min(thread_id) FROM pending_messages WHERE thread_id > :after)
   UNION ALL
  SELECT (SELECT min(p.thread_id) FROM pending_messages p WHERE p.thread_id > found.thread_id)
    FROM found WHERE found.thread_id IS NOT NULL)
SELECT thread_id FROM found
 WHERE thread_id IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM run_dispatches d WHERE d.thread_id = found.thread_id AND d.status = 'Claimed')
   AND NOT EXISTS (SELECT 1 FROM run_dispatches d WHERE d.thread_id = found.thread_id AND d.status = 'Queued')
   AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.thread_id = found.thread_id AND r.status <> 'done' AND r.holds_others = 1)
   AND EXISTS (SELECT 1 FROM pending_messages p WHERE p.thread_id = found.thread_id
                  AND (p.mode LIKE '%"starts_run"_true%' OR p.mode LIKE '%"target_run_id"_"%')
                  AND NOT EXISTS (SELECT 1 FROM unreadable_rows
                                   WHERE release = {release} AND kind = 'pending' AND id = p.thread_id || '/' || p.pending_id))
 LIMIT :limit;

-- spending
SELECT scope, runs, wall_ms, tokens, cost_micros, window_end, asked_by, is_refused
  FROM run_spending WHERE scope IN {texts :scopes};

-- spend
-- Several are written as one: the sums of each scope.
INSERT INTO run_spending (scope, runs, wall_ms, tokens, cost_micros, window_end)
SELECT column1, sum(column2), sum(column3), sum(column4), sum(column5), max(column6)
  FROM (VALUES (:scope, CAST(:runs AS bigint), CAST(:wall_ms AS bigint), CAST(:tokens AS bigint),
                CAST(:cost_micros AS bigint), CAST(:window_end AS bigint))) AS spent
 GROUP BY column1 ORDER BY column1
ON CONFLICT (scope) DO UPDATE
   SET runs = run_spending.runs + excluded.runs, wall_ms = run_spending.wall_ms + excluded.wall_ms,
       tokens = run_spending.tokens + excluded.tokens, cost_micros = run_spending.cost_micros + excluded.cost_micros;

-- put_asker
INSERT INTO run_spending (scope, runs, wall_ms, tokens, cost_micros, window_end, asked_by, is_refused)
VALUES (:scope, 0, 0, 0, 0, :window_end, :asked_by, :is_refused)
ON CONFLICT (scope) DO UPDATE SET asked_by = excluded.asked_by, is_refused = excluded.is_refused;

-- asked
SELECT scope, runs, wall_ms, tokens, cost_micros, window_end, asked_by, is_refused
  FROM run_spending WHERE asked_by <> '' ORDER BY window_end, scope;

-- forget_spending
DELETE FROM run_spending WHERE window_end > 0 AND window_end < :older_than AND asked_by = '';
