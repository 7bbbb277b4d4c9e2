-- One event log: what happens in a project stands with what happens on threads and in runs, each scope with its
-- own numbers. Of mail's events the payload names the records.

ALTER TABLE run_events RENAME TO events;
ALTER TABLE run_event_scopes RENAME TO event_scopes;
ALTER INDEX run_events_pkey RENAME TO events_pkey;
ALTER INDEX run_event_scopes_pkey RENAME TO event_scopes_pkey;
ALTER INDEX run_events_key RENAME TO events_key;

INSERT INTO events (event_id, event_kind, payload, sequences, created_at, origin, visibility, schema_version)
SELECT 'evt_project_' || project_id || '_' || seq, kind,
       json_build_object('agent_id', agent_id, 'message_id', message_id, 'reservation_id', reservation_id,
                         'run_id', run_id, 'detail', detail::json)::text,
       json_build_object('project:' || project_id, seq)::text, at, 'mail', 'internal', 1
  FROM project_events;
INSERT INTO event_scopes (scope, seq, event_id)
SELECT 'project:' || project_id, seq, 'evt_project_' || project_id || '_' || seq FROM project_events;
DROP TABLE project_events;
