-- One outbox: what mail stored for the archive stands with what the ends of runs stored. Whom a message has not
-- woken is found by the messages themselves.

ALTER TABLE run_outbox RENAME COLUMN lane TO kind;
INSERT INTO run_outbox (outbox_id, kind, target, payload, status, available_at, created_at, attempt_count, max_attempts,
                        last_error)
SELECT 'out_mail_' || id, topic, project_id::text, json_build_object('record', key)::text,
       'pending', 0, created_at, attempts, 1000000, nullif(last_error, '')
  FROM outbox WHERE topic = 'archive' ORDER BY id;
DROP TABLE outbox;
ALTER TABLE run_outbox RENAME TO outbox;
ALTER INDEX run_outbox_pkey RENAME TO outbox_pkey;
ALTER INDEX run_outbox_outbox_id_key RENAME TO outbox_outbox_id_key;
ALTER INDEX run_outbox_key RENAME TO outbox_key;
ALTER INDEX run_outbox_open RENAME TO outbox_open;
ALTER INDEX run_outbox_in_line RENAME TO outbox_in_line;
ALTER INDEX run_outbox_dead RENAME TO outbox_dead;
ALTER INDEX run_outbox_delivered RENAME TO outbox_delivered;
