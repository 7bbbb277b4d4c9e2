-- Subscriptions of agents to the logs of their projects.

-- part subscription
s.id, s.project_id, s.agent_id, s.kind, s.about, s.is_once, s.cursor, s.created_at

-- subscription
SELECT {part subscription} FROM subscriptions s WHERE s.id = :id;

-- page
SELECT {part subscription}, coalesce((SELECT max(e.seq) FROM event_scopes e WHERE e.scope = 'project:' || s.project_id), 0)
  FROM subscriptions s WHERE s.id > :after ORDER BY s.id LIMIT :limit;

-- of_agent
SELECT {part subscription} FROM subscriptions s {index subscriptions_of_agent} WHERE s.agent_id = :agent_id ORDER BY s.id;

-- in_project
SELECT {part subscription}
  FROM subscriptions s {index subscriptions_of_project} WHERE s.project_id = :project_id AND s.kind = :kind ORDER BY s.id;

-- count_subscriptions @sqlite
-- SQLite would use the id of a deleted row again. So this table is counted where SQLite counts others.
INSERT INTO sqlite_sequence (name, seq)
SELECT 'subscriptions', 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'subscriptions');

-- next_subscription @sqlite
UPDATE sqlite_sequence SET seq = max(seq, (SELECT coalesce(max(id), 0) FROM subscriptions)) + 1
 WHERE name = 'subscriptions' RETURNING seq;

-- next_subscription @postgres
SELECT nextval(pg_get_serial_sequence('subscriptions', 'id'));

-- insert_subscription
INSERT INTO subscriptions (id, project_id, agent_id, kind, about, is_once, cursor, created_at)
VALUES (:id, :project_id, :agent_id, :kind, :about, :is_once, :cursor, :created_at);

-- move_cursor
UPDATE subscriptions SET cursor = :cursor WHERE id = :id;

-- drop_subscription
DELETE FROM subscriptions WHERE id = :id;

-- is_working
SELECT 1
 WHERE EXISTS (SELECT 1 FROM run_threads WHERE thread_id IN {texts :thread_ids} AND open_run_id IS NOT NULL)
    OR EXISTS (SELECT 1 FROM run_dispatches {index run_dispatches_queue}
                WHERE thread_id IN {texts :thread_ids} AND status = 'Queued');
