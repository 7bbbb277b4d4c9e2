-- receive
WITH known AS (
  SELECT * FROM chat_lines
   WHERE platform = $1::text AND account = $2::text AND chat_id = $3::text AND message_id = $4::text
), new AS (
  INSERT INTO chat_lines (platform, account, chat_id, message_id, session_key, sender_id, body, status,
                          received_at, updated_at, revision)
  SELECT $1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, 'waiting', t.now, t.now, 1
    FROM (SELECT coalesce($8::bigint, {now}) AS now OFFSET 0) t
   WHERE NOT EXISTS (SELECT FROM known)
      ON CONFLICT (platform, account, chat_id, message_id) DO NOTHING
  RETURNING *
)
SELECT true AS is_new, n.* FROM new n UNION ALL SELECT false, k.* FROM known k

-- line
SELECT * FROM chat_lines
 WHERE platform = $1::text AND account = $2::text AND chat_id = $3::text AND message_id = $4::text

-- lock_line
SELECT coalesce($5::bigint, {now}) AS now, l.* FROM chat_lines l
 WHERE l.platform = $1::text AND l.account = $2::text AND l.chat_id = $3::text AND l.message_id = $4::text
   FOR NO KEY UPDATE

-- edit
UPDATE chat_lines SET body = $2::text, revision = $3::bigint, updated_at = $4::bigint WHERE line_id = $1::bigint

-- lock_lines
SELECT coalesce($2::bigint, {now}) AS now, l.* FROM chat_lines l
 WHERE l.line_id = ANY ($1::bigint[]) ORDER BY l.line_id FOR NO KEY UPDATE

-- move
UPDATE chat_lines
   SET status = $2::text, thread_id = coalesce($3::text, thread_id), reason = coalesce($4::text, reason),
       updated_at = $5::bigint
 WHERE line_id = ANY ($1::bigint[]) AND status <> $2::text

-- lines
SELECT l.line_id::text AS name, l.* FROM chat_lines l
 WHERE l.line_id = ANY ($1::bigint[])
   AND NOT EXISTS (SELECT FROM run_quarantine q WHERE q.kind = 'line' AND q.id = l.line_id::text)
 ORDER BY l.line_id

-- open_messages
SELECT l.line_id::text AS name, l.* FROM chat_lines l
 WHERE l.open_id > $1::bigint AND ($2::text IS NULL OR l.status = $2::text)
   AND NOT EXISTS (SELECT FROM run_quarantine q WHERE q.kind = 'line' AND q.id = l.line_id::text)
 ORDER BY l.open_id LIMIT $3::bigint

-- open_messages_of_session
SELECT l.line_id::text AS name, l.* FROM chat_lines l
 WHERE l.session_key = $4::text AND l.open_id > $1::bigint AND ($2::text IS NULL OR l.status = $2::text)
   AND NOT EXISTS (SELECT FROM run_quarantine q WHERE q.kind = 'line' AND q.id = l.line_id::text)
 ORDER BY l.open_id LIMIT $3::bigint

-- newest
SELECT l.line_id::text AS name, l.* FROM chat_lines l
 WHERE l.platform = $1::text
   AND NOT EXISTS (SELECT FROM run_quarantine q WHERE q.kind = 'line' AND q.id = l.line_id::text)
 ORDER BY l.line_id DESC LIMIT $2::bigint

-- counts
SELECT status, count(*) FROM chat_lines WHERE open_id IS NOT NULL GROUP BY status
 UNION ALL
SELECT status, count(*) FROM chat_lines WHERE ended_at IS NOT NULL GROUP BY status

-- purge
WITH old AS (
  SELECT line_id FROM chat_lines WHERE ended_at < $1::bigint
   ORDER BY ended_at, line_id LIMIT $2::bigint
     FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM chat_lines l USING old o WHERE l.line_id = o.line_id RETURNING l.line_id
), forgotten AS (
  DELETE FROM run_quarantine q USING gone g WHERE q.kind = 'line' AND q.id = g.line_id::text
)
SELECT count(*) FROM gone

-- session
SELECT * FROM chat_sessions WHERE session_key = $1::text

-- lock_session
SELECT coalesce($2::bigint, {now}) AS now, s.* FROM chat_sessions s WHERE s.session_key = $1::text
   FOR NO KEY UPDATE

-- sessions
SELECT s.* FROM chat_sessions s
 WHERE s.session_key > $1::text
   AND NOT EXISTS (SELECT FROM run_quarantine q WHERE q.kind = 'session' AND q.id = s.session_key)
 ORDER BY s.session_key LIMIT $2::bigint

-- open
INSERT INTO chat_sessions (session_key, thread_id, source, title, settings, active_at, created_at, updated_at,
                           revision)
SELECT $1::text, $2::text, $3::text, $4::text, $5::text, coalesce($6::bigint, t.now), t.now, t.now, 1
  FROM (SELECT coalesce($7::bigint, {now}) AS now OFFSET 0) t
    ON CONFLICT DO NOTHING
RETURNING *

-- put_session
UPDATE chat_sessions
   SET thread_id = $2::text, source = $3::text, title = $4::text, settings = $5::text, active_at = $6::bigint,
       updated_at = $7::bigint, revision = revision + 1
 WHERE session_key = $1::text
RETURNING *

-- bind
INSERT INTO chat_conversations AS c (thread_id, session_key, title, created_at, active_at)
SELECT $1::text, $2::text, $3::text, $4::bigint, $5::bigint
 WHERE NOT EXISTS (SELECT FROM chat_conversations o
                    WHERE o.session_key = $2::text AND o.title = $3::text AND o.thread_id <> $1::text)
    ON CONFLICT (thread_id) DO UPDATE SET title = excluded.title, active_at = excluded.active_at
 WHERE c.session_key = excluded.session_key
RETURNING thread_id

-- conversation
SELECT * FROM chat_conversations WHERE thread_id = $1::text

-- conversations
SELECT * FROM chat_conversations WHERE session_key = $1::text ORDER BY active_at DESC, thread_id LIMIT $2::bigint

-- conversations_titled
SELECT * FROM chat_conversations WHERE session_key = $1::text AND title = $3::text LIMIT $2::bigint

-- person
SELECT * FROM chat_people WHERE platform = $1::text AND user_id = $2::text

-- people
SELECT p.platform || ' ' || p.user_id AS name, p.* FROM chat_people p
 WHERE (p.platform, p.user_id) > ($1::text, $2::text)
   AND NOT EXISTS (SELECT FROM run_quarantine q WHERE q.kind = 'person' AND q.id = p.platform || ' ' || p.user_id)
 ORDER BY p.platform, p.user_id LIMIT $3::bigint

-- people_of_platform
SELECT p.platform || ' ' || p.user_id AS name, p.* FROM chat_people p
 WHERE p.platform = $4::text AND (p.platform, p.user_id) > ($1::text, $2::text)
   AND NOT EXISTS (SELECT FROM run_quarantine q WHERE q.kind = 'person' AND q.id = p.platform || ' ' || p.user_id)
 ORDER BY p.user_id LIMIT $3::bigint

-- let_in
INSERT INTO chat_people (platform, user_id, role, name, added_at)
VALUES ($1::text, $2::text, $3::text, $4::text, coalesce($5::bigint, {now}))
    ON CONFLICT (platform, user_id) DO UPDATE SET role = excluded.role, name = excluded.name
RETURNING *

-- shut_out
DELETE FROM chat_people WHERE platform = $1::text AND user_id = $2::text RETURNING user_id

-- lock_platform
INSERT INTO chat_guesses AS g (platform, wrong, locked_until) VALUES ($1::text, 0, 0)
    ON CONFLICT (platform) DO UPDATE SET wrong = g.wrong
RETURNING coalesce($2::bigint, {now}) AS now, g.wrong, g.locked_until

-- put_guesses
UPDATE chat_guesses SET wrong = $2::int, locked_until = $3::bigint WHERE platform = $1::text

-- who_asks
SELECT (SELECT asked_at FROM chat_requests WHERE platform = $1::text AND user_id = $2::text) AS before,
       (SELECT count(*) FROM chat_requests
         WHERE platform = $1::text AND user_id <> $2::text AND expires_at > $3::bigint) AS others

-- put_request
WITH ended AS (
  DELETE FROM chat_requests
   WHERE platform = $1::text AND user_id <> $2::text AND expires_at <= $5::bigint AND asked_at <= $7::bigint
)
INSERT INTO chat_requests (platform, user_id, code_hash, name, asked_at, expires_at)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::bigint, $6::bigint)
    ON CONFLICT (platform, user_id) DO UPDATE
   SET code_hash = excluded.code_hash, name = excluded.name, asked_at = excluded.asked_at,
       expires_at = excluded.expires_at

-- take_request
DELETE FROM chat_requests
 WHERE platform = $1::text
   AND user_id = (SELECT user_id FROM chat_requests
                   WHERE platform = $1::text AND code_hash = $2::text AND expires_at > $3::bigint
                   ORDER BY asked_at, user_id LIMIT 1)
RETURNING user_id, name

-- requests
SELECT * FROM chat_requests
 WHERE ($1::text IS NULL OR platform = $1::text) AND expires_at > coalesce($2::bigint, {now})
 ORDER BY asked_at, platform, user_id LIMIT $3::bigint

-- forget_requests
WITH unlocked AS (
  DELETE FROM chat_guesses WHERE platform = $1::text
), gone AS (
  DELETE FROM chat_requests WHERE platform = $1::text RETURNING user_id
)
SELECT count(*) FROM gone
