-- Subscriptions of agents to the logs of their projects.

-- part subscription
s.id, s.project_id, s.agent_id, s.kind, s.about, s.is_once, s.cursor, s.created_at

-- subscription
SELECT {part subscription} FROM subscriptions s WHERE s.id = :id AND s.agent_id > 0;

-- page
SELECT {part subscription}, coalesce((SELECT max(e.seq) FROM event_scopes e WHERE e.scope = 'project:' || s.project_id), 0)
  FROM subscriptions s WHERE s.id > :after AND s.agent_id > 0 ORDER BY s.id LIMIT :limit;

-- of_agent
SELECT {part subscription} FROM subscriptions s {index subscriptions_of_agent} WHERE s.agent_id = :agent_id ORDER BY s.id;

-- in_project
SELECT {part subscription}
  FROM subscriptions s {index subscriptions_of_project} WHERE s.project_id = :project_id AND s.kind = :kind ORDER BY s.id;

-- insert_subscription
INSERT INTO subscriptions (project_id, agent_id, kind, about, is_once, cursor, created_at)
VALUES (:project_id, :agent_id, :kind, :about, :is_once, :cursor, :created_at)
RETURNING id;

-- move_cursor
UPDATE subscriptions SET cursor = :cursor WHERE id = :id;

-- drop_subscription
-- The row with the highest id stays, without an agent: SQLite would use its id again.
UPDATE subscriptions SET project_id = 0, agent_id = 0 WHERE id = :id;

-- clear_dropped
DELETE FROM subscriptions WHERE agent_id = 0 AND id < (SELECT max(id) FROM subscriptions);

-- is_working
SELECT 1
 WHERE EXISTS (SELECT 1 FROM run_threads WHERE thread_id IN {texts :thread_ids} AND open_run_id IS NOT NULL)
    OR EXISTS (SELECT 1 FROM run_dispatches {index run_dispatches_queue}
                WHERE thread_id IN {texts :thread_ids} AND status = 'Queued');
