-- Events stand once in `events` and at a place of their own in each of their scopes. Who appends to a scope has
-- locked it, so that its numbers have no gaps.

-- newest
SELECT coalesce(max(seq), 0) FROM event_scopes WHERE scope = :scope;

-- oldest
SELECT coalesce(min(seq), 1) FROM event_scopes WHERE scope = :scope;

-- part columns
-- The last is the row of the run whose answer the event refers to, '{}' if that row is gone.
events.event_id, event_kind, payload, sequences, created_at, causation_id, correlation_id, origin, visibility, schema_version,
       CASE WHEN answer_of IS NOT NULL THEN coalesce((SELECT body FROM runs WHERE runs.run_id = answer_of), '{}') END

-- first_of_key
SELECT {part columns}, digest
  FROM events WHERE writer_id = :writer_id AND key = :key AND writer_id IS NOT NULL;

-- append
INSERT INTO events
      (event_id, event_kind, payload, sequences, created_at, causation_id, correlation_id, origin, visibility,
       schema_version, writer_id, key, digest, answer_of)
VALUES (:event_id, :event_kind, :payload, :sequences, :created_at, :causation_id, :correlation_id, :origin, :visibility,
        :schema_version, :writer_id, :key, :digest, :answer_of);

-- place
INSERT INTO event_scopes (scope, seq, event_id) VALUES (:scope, :seq, :event_id);

-- note
INSERT INTO events
      (event_id, event_kind, payload, sequences, created_at, origin, visibility, schema_version, writer_id, key, digest)
VALUES (:event_id, :event_kind, :payload,
        '{"' || CAST(:scope AS text) || '":' ||
        (SELECT coalesce(max(seq), 0) + 1 FROM event_scopes WHERE scope = CAST(:scope AS text)) || '}',
        :created_at, :origin, 'internal', 1, :writer_id, :key, :digest);

-- place_next
INSERT INTO event_scopes (scope, seq, event_id)
VALUES (:scope, (SELECT coalesce(max(seq), 0) + 1 FROM event_scopes WHERE scope = :scope), :event_id);

-- add
-- An event of a run in the scopes of its thread and of itself, unless its key was used or the claim was lost. The lock
-- of the thread is held, so that the claim cannot be lost before this change ends.
INSERT INTO events
      (event_id, event_kind, payload, sequences, created_at, causation_id, correlation_id, origin, visibility, schema_version,
       writer_id, key, digest, answer_of)
SELECT CAST(:event_id AS text), CAST(:event_kind AS text), CAST(:payload AS text),
       '{' || CAST(:thread_name AS text) || ':' ||
       (SELECT coalesce(max(seq), 0) + 1 FROM event_scopes WHERE scope = CAST(:thread_scope AS text)) || ',' ||
       CAST(:run_name AS text) || ':' ||
       (SELECT coalesce(max(seq), 0) + 1 FROM event_scopes WHERE scope = CAST(:run_scope AS text)) || '}',
       CAST(:created_at AS bigint), CAST(:causation_id AS text), CAST(:correlation_id AS text), CAST(:origin AS text), CAST(:visibility AS text),
       CAST(:schema_version AS bigint), CAST(:writer_id AS text), CAST(:key AS text), CAST(:digest AS text),
       CAST(:answer_of AS text)
 WHERE NOT EXISTS (SELECT 1 FROM events WHERE writer_id = CAST(:writer_id AS text) AND key = CAST(:key AS text)
                                          AND writer_id IS NOT NULL)
   AND (CAST(:claim_token AS text) IS NULL
        OR EXISTS (SELECT 1 FROM run_dispatches WHERE dispatch_id = CAST(:dispatch_id AS text)
                                                  AND claim_token = CAST(:claim_token AS text) AND status = 'Claimed'));

-- place_all
INSERT INTO event_scopes (scope, seq, event_id)
SELECT asked.value, (SELECT coalesce(max(seq), 0) + 1 FROM event_scopes WHERE scope = asked.value), CAST(:event_id AS text)
  FROM {each :scopes}
 WHERE EXISTS (SELECT 1 FROM events WHERE event_id = CAST(:event_id AS text));

-- event
SELECT {part columns}
  FROM events WHERE event_id = :event_id;

-- events
SELECT {part columns}, s.seq
  FROM event_scopes s {cross} events ON events.event_id = s.event_id
 WHERE s.scope = :scope AND s.seq > :after
   AND (CAST(:any_kind AS bigint) = 1 OR event_kind IN {texts :kinds})
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'event' AND id = events.event_id)
 ORDER BY s.seq LIMIT :limit;

-- trim_events
DELETE FROM events
 WHERE event_id IN (SELECT event_id FROM event_scopes WHERE scope = :scope AND seq <= CAST(:last AS bigint));

-- trim
DELETE FROM event_scopes WHERE scope = :scope AND seq <= CAST(:last AS bigint);

-- drop_events
DELETE FROM events WHERE event_id IN (SELECT event_id FROM event_scopes WHERE scope IN {texts :scopes});

-- drop_scopes
DELETE FROM event_scopes WHERE scope IN {texts :scopes};
