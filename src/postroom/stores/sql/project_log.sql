-- The logs of projects, numbered without gaps: who writes to one has locked its project.

-- record
INSERT INTO project_events (project_id, seq, at, kind, agent_id, message_id, reservation_id, run_id, detail)
VALUES (:project_id, 1 + coalesce((SELECT max(e.seq) FROM project_events e WHERE e.project_id = :project_id), 0),
        :at, :kind, :agent_id, :message_id, :reservation_id, :run_id, :detail);

-- projects_concerned
SELECT project_id FROM messages WHERE id = CAST(:message_id AS bigint)
 UNION
SELECT project_id FROM agents WHERE id IN (CAST(:agent_id AS bigint), CAST(:other_id AS bigint))
 ORDER BY 1;

-- projects_reached
SELECT a.project_id, min(CASE WHEN r.kind = 'bcc' THEN 1 ELSE 0 END)
  FROM recipients r JOIN agents a ON a.id = r.agent_id
 WHERE r.message_id = :message_id GROUP BY a.project_id ORDER BY a.project_id;

-- project_events
SELECT seq, at, kind, agent_id, message_id, reservation_id, run_id, detail FROM project_events
 WHERE project_id = :project_id AND seq > :after AND (CAST(:any_kind AS bigint) = 1 OR kind IN {texts :kinds})
 ORDER BY seq LIMIT :limit;

-- log_bounds
SELECT coalesce((SELECT min(seq) - 1 FROM project_events WHERE project_id = :project_id), 0),
       coalesce((SELECT max(seq) FROM project_events WHERE project_id = :project_id), 0);

-- messages_written
SELECT id FROM messages WHERE id IN {ints :ids} AND sender_id = :agent_id;

-- messages_received
SELECT message_id FROM recipients WHERE message_id IN {ints :ids} AND agent_id = :agent_id;

-- trim_log
DELETE FROM project_events WHERE project_id = :project_id
   AND seq <= {least}(
         (SELECT max(e.seq) FROM project_events e WHERE e.project_id = :project_id) - CAST(:keep AS bigint),
         (SELECT min(e.seq) FROM project_events e WHERE e.project_id = :project_id) - 1 + CAST(:limit AS bigint));
