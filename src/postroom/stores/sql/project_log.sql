-- Whose logs tell of what, and who may read of it.

-- projects_concerned
SELECT project_id FROM messages WHERE id = CAST(:message_id AS bigint)
 UNION
SELECT project_id FROM agents WHERE id IN (CAST(:agent_id AS bigint), CAST(:other_id AS bigint))
 ORDER BY 1;

-- projects_reached
SELECT a.project_id, min(CASE WHEN r.kind = 'bcc' THEN 1 ELSE 0 END)
  FROM recipients r JOIN agents a ON a.id = r.agent_id
 WHERE r.message_id = :message_id GROUP BY a.project_id ORDER BY a.project_id;

-- projects_reached_by
SELECT r.message_id, a.project_id, min(CASE WHEN r.kind = 'bcc' THEN 1 ELSE 0 END)
  FROM recipients r JOIN agents a ON a.id = r.agent_id
 WHERE r.message_id IN {ints :ids} GROUP BY r.message_id, a.project_id ORDER BY r.message_id, a.project_id;

-- messages_written
SELECT id FROM messages WHERE id IN {ints :ids} AND sender_id = :agent_id;

-- messages_received
SELECT message_id FROM recipients WHERE message_id IN {ints :ids} AND agent_id = :agent_id;
