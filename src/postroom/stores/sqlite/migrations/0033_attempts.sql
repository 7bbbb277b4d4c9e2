-- Executions of agents' runs, and what else the picture of a project is drawn from, by time.

CREATE TABLE attempts (
  id           INTEGER PRIMARY KEY,
  run_id       TEXT NOT NULL,
  agent_id     INTEGER NOT NULL,
  queued_at    INTEGER NOT NULL,
  began_at     INTEGER NOT NULL,
  ended_at     INTEGER,
  outcome      TEXT NOT NULL DEFAULT ''
               CHECK (outcome IN ('', 'done', 'failed', 'cancelled', 'waiting', 'cut_off')),
  waited_until INTEGER,
  error        TEXT NOT NULL DEFAULT '',
  CHECK ((ended_at IS NULL) = (outcome = ''))
);
CREATE INDEX attempts_time ON attempts (agent_id, began_at);
CREATE INDEX attempts_run ON attempts (run_id, id);
INSERT INTO attempts (run_id, agent_id, queued_at, began_at, ended_at, outcome)
SELECT r.run_id, r.agent_id, min(r.delivered_at), min(r.delivered_at), max(r.ended_at),
       CASE WHEN max(r.failure) = '' THEN 'done' ELSE 'failed' END
  FROM message_runs r WHERE r.ended_at IS NOT NULL GROUP BY r.run_id, r.agent_id ORDER BY min(r.delivered_at);
INSERT INTO attempts (run_id, agent_id, queued_at, began_at)
SELECT run_id, agent_id, began_at, began_at FROM active_runs;

CREATE INDEX messages_time ON messages (project_id, created_ts, id);
CREATE INDEX file_reservations_time ON file_reservations (project_id, created_at);
