-- record
INSERT INTO project_events (project_id, seq, at, kind, agent_id, message_id, reservation_id, run_id, detail)
VALUES (?1, 1 + coalesce((SELECT max(seq) FROM project_events WHERE project_id = ?1), 0),
        ?2, ?3, ?4, ?5, ?6, ?7, ?8);

-- record_of_agents
INSERT INTO project_events (project_id, seq, at, kind, agent_id, message_id, reservation_id, run_id, detail)
SELECT homes.project_id,
       1 + coalesce((SELECT max(e.seq) FROM project_events e WHERE e.project_id = homes.project_id), 0),
       ?2, ?3, ?4, ?5, ?6, ?7, ?8
  FROM (SELECT project_id FROM messages WHERE id = ?5
        UNION SELECT project_id FROM agents WHERE id IN (?4, ?1)) homes;

-- projects_reached
SELECT a.project_id, min(r.kind = 'bcc') FROM recipients r JOIN agents a ON a.id = r.agent_id
 WHERE r.message_id = ? GROUP BY a.project_id ORDER BY a.project_id;

-- project_events
SELECT seq, at, kind, agent_id, message_id, reservation_id, run_id, detail FROM project_events
 WHERE project_id = :project_id AND seq > :after
   AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
 ORDER BY seq LIMIT :limit;

-- log_bounds
SELECT coalesce((SELECT min(seq) - 1 FROM project_events WHERE project_id = ?1), 0),
       coalesce((SELECT max(seq) FROM project_events WHERE project_id = ?1), 0);

-- letters_written
SELECT id FROM messages WHERE id IN (SELECT value FROM json_each(?2)) AND sender_id = ?1;

-- letters_received
SELECT message_id FROM recipients WHERE message_id IN (SELECT value FROM json_each(?2)) AND agent_id = ?1;

-- trim_log
DELETE FROM project_events WHERE project_id = ?1
   AND seq <= min((SELECT max(seq) FROM project_events WHERE project_id = ?1) - ?2,
                  (SELECT min(seq) FROM project_events WHERE project_id = ?1) - 1 + ?3);
