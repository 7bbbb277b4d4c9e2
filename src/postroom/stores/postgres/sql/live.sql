-- register
WITH former AS (
  UPDATE run_live_listeners
     SET replaced = true
   WHERE thread_id = $3::text AND run_id IS NOT DISTINCT FROM $4::text
     AND dispatch_id IS NOT DISTINCT FROM $5::text AND NOT replaced
)
INSERT INTO run_live_listeners (listener_id, process_id, thread_id, run_id, dispatch_id, expires_at)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, {now} + $6::bigint)

-- renew
INSERT INTO run_live_listeners AS l (listener_id, process_id, thread_id, run_id, dispatch_id, expires_at)
SELECT a.listener_id, $1::text, a.thread_id, a.run_id, a.dispatch_id, {now} + $6::bigint
  FROM unnest($2::text[], $3::text[], $4::text[], $5::text[]) AS a (listener_id, thread_id, run_id, dispatch_id)
    ON CONFLICT (listener_id) DO UPDATE SET expires_at = excluded.expires_at
RETURNING listener_id, replaced

-- remove
DELETE FROM run_live_listeners WHERE listener_id = ANY ($1::text[])

-- send
INSERT INTO run_live_commands (delivery_id, listener_id, process_id, body, status, expires_at)
SELECT $1::text, listener_id, process_id, $2::text, 'sent', {now} + $6::bigint
  FROM run_live_listeners
 WHERE thread_id = $3::text AND NOT replaced AND expires_at > {now}
   AND ($4::text IS NULL OR run_id IS NULL OR run_id = $4::text)
   AND ($5::text IS NULL OR dispatch_id IS NULL OR dispatch_id = $5::text)
RETURNING process_id

-- take
WITH taken AS (
  UPDATE run_live_commands SET status = 'taken'
   WHERE process_id = $1::text AND status = 'sent'
  RETURNING place, listener_id, body
)
SELECT place, listener_id, body FROM taken ORDER BY place

-- waited_for
SELECT place FROM run_live_commands WHERE place = ANY ($1::bigint[])

-- settle
UPDATE run_live_commands c
   SET status = CASE WHEN a.accepted THEN 'accepted' ELSE 'dropped' END
  FROM unnest($1::bigint[], $2::boolean[]) AS a (place, accepted)
 WHERE c.place = a.place AND c.status || '' = 'taken'
RETURNING c.delivery_id

-- receipts
SELECT status FROM run_live_commands WHERE delivery_id = $1::text

-- withdraw
DELETE FROM run_live_commands WHERE delivery_id = $1::text RETURNING status, process_id

-- clear_listeners
DELETE FROM run_live_listeners WHERE expires_at < {now} - $1::bigint

-- clear_commands
DELETE FROM run_live_commands WHERE expires_at < {now} - $1::bigint
