-- runner
SELECT agent_id, runner, declared_by, updated_at FROM runners WHERE agent_id = ?;

-- runners
SELECT agent_id, runner, declared_by, updated_at FROM runners WHERE agent_id > ? ORDER BY agent_id LIMIT ?;

-- with_runner
SELECT agent_id FROM runners WHERE agent_id IN (SELECT value FROM json_each(?));

-- put_runner
INSERT INTO runners (agent_id, runner, declared_by, updated_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (agent_id) DO UPDATE SET runner = ?2, declared_by = ?3, updated_at = ?4;

-- drop_runner
DELETE FROM runners WHERE agent_id = ?;

-- handlings
SELECT message_id, agent_id, run_id, injected_at, ended_at, failure FROM handlings
 WHERE message_id IN (SELECT value FROM json_each(?));

-- put_handling
INSERT INTO handlings (message_id, agent_id, run_id, injected_at, ended_at, failure)
VALUES (:message_id, :agent_id, :run_id, :injected_at, :ended_at, :failure)
ON CONFLICT (message_id, agent_id) DO UPDATE
   SET run_id = :run_id, injected_at = :injected_at, ended_at = :ended_at, failure = :failure;

-- answering_run
SELECT run_id FROM run_answers WHERE message_id = ?;

-- note_answer
INSERT INTO run_answers (message_id, run_id) VALUES (?, ?) ON CONFLICT (message_id) DO NOTHING;
