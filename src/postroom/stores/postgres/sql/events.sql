-- used
SELECT e.*
  FROM unnest($1::text[], $2::text[]) AS a (writer_id, key)
  JOIN run_events e ON e.writer_id = a.writer_id AND e.key = a.key

-- advance
INSERT INTO run_event_counters AS c (scope, newest)
SELECT a.scope, a.number FROM unnest($1::text[], $2::bigint[]) AS a (scope, number) ORDER BY a.scope
    ON CONFLICT (scope) DO UPDATE SET newest = c.newest + excluded.newest
RETURNING scope, newest, {now}

-- newest
SELECT scope, newest FROM run_event_counters WHERE scope = ANY ($1::text[])

-- append
WITH scopes AS (
  INSERT INTO run_event_scopes (scope, seq, event_id)
  SELECT * FROM unnest($14::text[], $15::bigint[], $16::text[])
)
INSERT INTO run_events
       (event_id, event_kind, payload, sequences, created_at, causation_id, correlation_id, origin, visibility,
        schema_version, writer_id, key, digest)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[],
                     $8::text[], $9::text[], $10::int[], $11::text[], $12::text[], $13::text[])

-- list
SELECT e.*
  FROM run_event_scopes s
  JOIN run_events e ON e.event_id = s.event_id
 WHERE s.scope = $1::text AND s.seq > $2::bigint
 ORDER BY s.seq LIMIT $3::bigint

-- load
SELECT * FROM run_events WHERE event_id = $1::text
