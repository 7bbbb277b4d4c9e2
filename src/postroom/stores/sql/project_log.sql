-- Whose logs tell of what, and who may read of it.

-- entries
SELECT s.seq, event_kind, created_at, payload, events.event_id
  FROM event_scopes s {cross} events ON events.event_id = s.event_id
 WHERE s.scope = :scope AND s.seq > :after
   AND (CAST(:any_kind AS bigint) = 1 OR event_kind IN {texts :kinds})
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'event' AND id = events.event_id)
 ORDER BY s.seq LIMIT :limit;

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
