-- One event log: what happens in a project stands with what happens on threads and in runs, each scope with its
-- own numbers. Of mail's events the payload names the records.

ALTER TABLE run_events RENAME TO events;
ALTER TABLE run_event_scopes RENAME TO event_scopes;
DROP INDEX run_events_key;
CREATE UNIQUE INDEX events_key ON events (writer_id, key) WHERE writer_id IS NOT NULL;

INSERT INTO events (event_id, event_kind, payload, sequences, created_at, origin, visibility, schema_version)
SELECT 'evt_project_' || project_id || '_' || seq, kind,
       json_object('agent_id', agent_id, 'message_id', message_id, 'reservation_id', reservation_id, 'run_id', run_id,
                   'detail', json(detail)),
       json_object('project:' || project_id, seq), at, 'mail', 'internal', 1
  FROM project_events;
INSERT INTO event_scopes (scope, seq, event_id)
SELECT 'project:' || project_id, seq, 'evt_project_' || project_id || '_' || seq FROM project_events;
DROP TABLE project_events;
