-- Two projects become one.

-- size
SELECT (SELECT count(*) FROM agents WHERE project_id = :project_id),
       (SELECT count(*) FROM messages WHERE project_id = :project_id),
       (SELECT count(*) FROM file_reservations WHERE project_id = :project_id),
       (SELECT count(*) FROM tokens WHERE project_id = :project_id);

-- shared_agents
SELECT a.name FROM agents a JOIN agents b ON b.name_key = a.name_key
 WHERE a.project_id = :project_id AND b.project_id = :other_id ORDER BY a.name;

-- shared_threads
SELECT DISTINCT a.thread_id FROM messages a
 WHERE a.project_id = :project_id
   AND EXISTS (SELECT 1 FROM messages b WHERE b.project_id = :other_id AND b.thread_id = a.thread_id)
 ORDER BY a.thread_id;

-- run_thread_between
SELECT 1 FROM run_threads WHERE thread_id >= :first AND thread_id < :behind LIMIT 1;

-- rename_agent
UPDATE agents SET name = :name, name_key = :name_key WHERE id = :agent_id;

-- rename_sender
UPDATE messages SET sender_name = :name WHERE sender_id = :agent_id;

-- archived_agent
SELECT project_id, id FROM agents WHERE project_id = :project_id ORDER BY id;

-- archived_message
SELECT project_id, id FROM messages WHERE project_id = :project_id
UNION
SELECT m.project_id, m.id FROM agents a JOIN recipients r ON r.agent_id = a.id JOIN messages m ON m.id = r.message_id
 WHERE a.project_id = :project_id
 ORDER BY 2;

-- archived_reservation
SELECT project_id, id FROM file_reservations WHERE project_id = :project_id ORDER BY id;

-- join_threads
INSERT INTO threads (project_id, thread_id, first_id, last_id, messages)
SELECT :target, thread_id, first_id, last_id, messages FROM threads WHERE project_id = :source
ON CONFLICT (project_id, thread_id) DO UPDATE
   SET first_id = {least}(threads.first_id, excluded.first_id),
       last_id = {greatest}(threads.last_id, excluded.last_id), messages = threads.messages + excluded.messages;

-- drop_threads
DELETE FROM threads WHERE project_id = :source;

-- move_agents
UPDATE agents SET project_id = :target WHERE project_id = :source;

-- move_messages
UPDATE messages SET project_id = :target WHERE project_id = :source;

-- move_reservations
UPDATE file_reservations SET project_id = :target WHERE project_id = :source;

-- move_tasks
UPDATE tasks SET project_id = :target WHERE project_id = :source;

-- move_notes
UPDATE notes SET project_id = :target WHERE project_id = :source;

-- move_subscriptions
UPDATE subscriptions SET project_id = :target, cursor = :newest WHERE project_id IN (:source, :target);

-- move_tokens
UPDATE tokens SET project_id = :target WHERE project_id = :source;

-- move_aliases
UPDATE project_aliases SET project_id = :target WHERE project_id = :source;

-- drop_project
DELETE FROM projects WHERE id = :source;

-- move_log
UPDATE event_scopes SET scope = :into, seq = seq + CAST(:by AS bigint) WHERE scope = :scope;

-- number_log
UPDATE events
   SET sequences = (SELECT '{"' || s.scope || '":' || s.seq || '}' FROM event_scopes s
                     WHERE s.scope = :scope AND s.event_id = events.event_id)
 WHERE event_id IN (SELECT event_id FROM event_scopes WHERE scope = :scope);
