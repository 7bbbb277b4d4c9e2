-- One statement a heading; `?` and `:name` parameters; lists are given as JSON arrays to json_each.

-- project_by_path
SELECT id, slug, human_key, created_at, spelling, git_identity, owner FROM projects WHERE human_key = ?;

-- project_by_slug
SELECT id, slug, human_key, created_at, spelling, git_identity, owner FROM projects WHERE slug = ?;

-- project_by_alias
SELECT p.id, p.slug, p.human_key, p.created_at, p.spelling, p.git_identity, p.owner
  FROM project_aliases a JOIN projects p ON p.id = a.project_id WHERE a.human_key = ?;

-- project_by_id
SELECT id, slug, human_key, created_at, spelling, git_identity, owner FROM projects WHERE id = ?;

-- projects_spelled
SELECT id, slug, human_key, created_at, spelling, git_identity, owner
  FROM projects WHERE spelling = ? ORDER BY id;

-- projects
SELECT id, slug, human_key, created_at, spelling, git_identity, owner
  FROM projects WHERE id > ? ORDER BY id LIMIT ?;

-- insert_project
INSERT INTO projects (slug, human_key, created_at, spelling, git_identity, owner) VALUES (?, ?, ?, ?, ?, ?)
RETURNING id, slug, human_key, created_at, spelling, git_identity, owner;

-- add_project_alias
INSERT INTO project_aliases (human_key, project_id) VALUES (?, ?) ON CONFLICT (human_key) DO NOTHING;

-- set_git_identity
UPDATE projects SET git_identity = ? WHERE id = ?;

-- agent_named
SELECT id, project_id, name, program, model, task_description, created_at, last_active_at, contact_policy,
       retired_at, token_hash, inbox_seq, inbox_floor
  FROM agents WHERE project_id = ? AND name_key = ?;

-- agents_named
SELECT id, project_id, name, program, model, task_description, created_at, last_active_at, contact_policy,
       retired_at, token_hash, inbox_seq, inbox_floor
  FROM agents WHERE project_id = ? AND name_key IN (SELECT value FROM json_each(?)) ORDER BY id;

-- agents_by_id
SELECT id, project_id, name, program, model, task_description, created_at, last_active_at, contact_policy,
       retired_at, token_hash, inbox_seq, inbox_floor
  FROM agents WHERE id IN (SELECT value FROM json_each(?));

-- agents
SELECT id, project_id, name, program, model, task_description, created_at, last_active_at, contact_policy,
       retired_at, token_hash, inbox_seq, inbox_floor
  FROM agents WHERE project_id = :project_id AND id > :after AND (:retired OR retired_at IS NULL)
 ORDER BY id LIMIT :limit;

-- agent_by_token
SELECT id, project_id, name, program, model, task_description, created_at, last_active_at, contact_policy,
       retired_at, token_hash, inbox_seq, inbox_floor
  FROM agents WHERE token_hash = ?;

-- insert_agent
INSERT INTO agents (project_id, name, name_key, program, model, task_description, created_at, last_active_at)
VALUES (:project_id, :name, :name_key, :program, :model, :task_description, :now, :now)
RETURNING id, project_id, name, program, model, task_description, created_at, last_active_at, contact_policy,
          retired_at, token_hash, inbox_seq, inbox_floor;

-- agent_differs
SELECT 1 FROM agents WHERE id = :id
   AND (program <> :program OR model <> :model OR task_description <> :task_description);

-- update_agent
UPDATE agents SET program = :program, model = :model, task_description = :task_description,
       last_active_at = max(last_active_at, :now)
 WHERE id = :id
RETURNING id, project_id, name, program, model, task_description, created_at, last_active_at, contact_policy,
          retired_at, token_hash, inbox_seq, inbox_floor;

-- set_agent_retired
UPDATE agents SET retired_at = ? WHERE id = ?;

-- set_agent_token
UPDATE agents SET token_hash = ? WHERE id = ?;

-- set_contact_policy
UPDATE agents SET contact_policy = ? WHERE id = ?;

-- touch_agent
UPDATE agents SET last_active_at = max(last_active_at, :now) WHERE id = :id;

-- touch_reservations
UPDATE file_reservations SET expires_at = max(expires_at, :now + ttl)
 WHERE agent_id = :id AND released_at IS NULL AND expires_at > :now;

-- message
SELECT id, project_id, sender_id, sender_name, thread_id, subject, body_md, importance, ack_required,
       created_ts, topic, broadcast, reply_to, recalled_at
  FROM messages WHERE id = ?;

-- messages
SELECT id, project_id, sender_id, sender_name, thread_id, subject, body_md, importance, ack_required,
       created_ts, topic, broadcast, reply_to, recalled_at
  FROM messages WHERE id IN (SELECT value FROM json_each(?));

-- insert_message
INSERT INTO messages (id, project_id, sender_id, sender_name, thread_id, subject, body_md, importance, ack_required,
                      created_ts, topic, broadcast, reply_to)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- newest_message
SELECT coalesce(max(id), 0) FROM messages;

-- unsettled
SELECT coalesce((SELECT max(id) FROM messages), 0) > (SELECT settled_to FROM settled);

-- settling_step
SELECT max(id) FROM (SELECT id FROM messages WHERE id > (SELECT settled_to FROM settled) ORDER BY id LIMIT ?1);

-- settle_search
INSERT INTO messages_fts (rowid, subject, body_md, sender_name, topic)
SELECT id, subject, body_md, sender_name, topic FROM messages
 WHERE id > (SELECT settled_to FROM settled) AND id <= ?1;

-- settle_threads
INSERT INTO threads (project_id, thread_id, first_id, last_id, messages)
SELECT project_id, thread_id, min(id), max(id), count(*) FROM messages
 WHERE id > (SELECT settled_to FROM settled) AND id <= ?1
 GROUP BY project_id, thread_id
ON CONFLICT (project_id, thread_id) DO UPDATE
   SET last_id = excluded.last_id, messages = messages + excluded.messages;

-- settled
UPDATE settled SET settled_to = ?1;

-- next_inbox_seq
UPDATE agents SET inbox_seq = inbox_seq + 1 WHERE id = ? RETURNING inbox_seq;

-- insert_recipient
INSERT INTO recipients (message_id, agent_id, kind, seq, position) VALUES (?, ?, ?, ?, ?);

-- recipients_named
SELECT count(*) FROM recipients WHERE message_id = ?;

-- recipients
SELECT r.message_id, r.agent_id, a.name, p.slug, r.kind, r.seq, r.read_at, r.acked_at,
       r.announced_at, r.announced_by
  FROM recipients r JOIN agents a ON a.id = r.agent_id JOIN projects p ON p.id = a.project_id
 WHERE r.message_id IN (SELECT value FROM json_each(?))
 ORDER BY r.message_id, r.position, r.agent_id;

-- inbox_newest
SELECT m.id, m.project_id, m.sender_id, m.sender_name, m.thread_id, m.subject, m.body_md, m.importance,
       m.ack_required, m.created_ts, m.topic, m.broadcast, m.reply_to, m.recalled_at,
       r.kind, r.seq, r.read_at, r.acked_at
  FROM recipients r JOIN messages m ON m.id = r.message_id
 WHERE r.agent_id = :agent_id AND m.recalled_at IS NULL
   AND (:since IS NULL OR m.created_ts >= :since)
   AND (:importance IS NULL OR m.importance IN (SELECT value FROM json_each(:importance)))
 ORDER BY r.seq DESC LIMIT :limit;

-- inbox_after
SELECT m.id, m.project_id, m.sender_id, m.sender_name, m.thread_id, m.subject, m.body_md, m.importance,
       m.ack_required, m.created_ts, m.topic, m.broadcast, m.reply_to, m.recalled_at,
       r.kind, r.seq, r.read_at, r.acked_at
  FROM recipients r JOIN messages m ON m.id = r.message_id
 WHERE r.agent_id = :agent_id AND r.seq > :after AND m.recalled_at IS NULL
   AND (:since IS NULL OR m.created_ts >= :since)
   AND (:importance IS NULL OR m.importance IN (SELECT value FROM json_each(:importance)))
 ORDER BY r.seq LIMIT :limit;

-- inbox_unread_newest
SELECT m.id, m.project_id, m.sender_id, m.sender_name, m.thread_id, m.subject, m.body_md, m.importance,
       m.ack_required, m.created_ts, m.topic, m.broadcast, m.reply_to, m.recalled_at,
       r.kind, r.seq, r.read_at, r.acked_at
  FROM recipients r INDEXED BY recipients_unread JOIN messages m ON m.id = r.message_id
 WHERE r.agent_id = :agent_id AND r.read_at IS NULL AND m.recalled_at IS NULL
   AND (:since IS NULL OR m.created_ts >= :since)
   AND (:importance IS NULL OR m.importance IN (SELECT value FROM json_each(:importance)))
 ORDER BY r.seq DESC LIMIT :limit;

-- inbox_unread_after
SELECT m.id, m.project_id, m.sender_id, m.sender_name, m.thread_id, m.subject, m.body_md, m.importance,
       m.ack_required, m.created_ts, m.topic, m.broadcast, m.reply_to, m.recalled_at,
       r.kind, r.seq, r.read_at, r.acked_at
  FROM recipients r INDEXED BY recipients_unread JOIN messages m ON m.id = r.message_id
 WHERE r.agent_id = :agent_id AND r.seq > :after AND r.read_at IS NULL AND m.recalled_at IS NULL
   AND (:since IS NULL OR m.created_ts >= :since)
   AND (:importance IS NULL OR m.importance IN (SELECT value FROM json_each(:importance)))
 ORDER BY r.seq LIMIT :limit;

-- inbox_events
SELECT m.id, m.project_id, m.sender_id, m.sender_name, m.thread_id, m.subject, m.body_md, m.importance,
       m.ack_required, m.created_ts, m.topic, m.broadcast, m.reply_to, m.recalled_at,
       r.kind, r.seq, r.read_at, r.acked_at
  FROM recipients r JOIN messages m ON m.id = r.message_id
 WHERE r.agent_id = :agent_id AND r.seq > :after ORDER BY r.seq LIMIT :limit;

-- unread_count
SELECT count(*) FROM recipients r INDEXED BY recipients_unread JOIN messages m ON m.id = r.message_id
 WHERE r.agent_id = ? AND r.read_at IS NULL AND m.recalled_at IS NULL;

-- thread
SELECT id, project_id, sender_id, sender_name, thread_id, subject, body_md, importance, ack_required,
       created_ts, topic, broadcast, reply_to, recalled_at
  FROM messages WHERE project_id = ? AND thread_id = ? AND id > ? ORDER BY id LIMIT ?;

-- thread_tail
SELECT id, project_id, sender_id, sender_name, thread_id, subject, body_md, importance, ack_required,
       created_ts, topic, broadcast, reply_to, recalled_at
  FROM messages WHERE project_id = ? AND thread_id = ? ORDER BY id DESC LIMIT ?;

-- thread_size
SELECT count(*) FROM messages WHERE project_id = ? AND thread_id = ?;

-- threads
SELECT t.thread_id, f.subject, t.messages, t.first_id, t.last_id, l.created_ts, l.sender_name
  FROM threads t JOIN messages f ON f.id = t.first_id JOIN messages l ON l.id = t.last_id
 WHERE t.project_id = :project_id AND (:before IS NULL OR t.last_id < :before)
 ORDER BY t.last_id DESC LIMIT :limit;

-- project_messages
SELECT id, project_id, sender_id, sender_name, thread_id, subject, body_md, importance, ack_required,
       created_ts, topic, broadcast, reply_to, recalled_at
  FROM messages WHERE project_id = ? AND id > ? ORDER BY id LIMIT ?;

-- search_newest
SELECT m.id, m.project_id, m.sender_id, m.sender_name, m.thread_id, m.subject, m.body_md, m.importance,
       m.ack_required, m.created_ts, m.topic, m.broadcast, m.reply_to, m.recalled_at,
       snippet(messages_fts, -1, '', '', '…', 16), 0.0
  FROM messages_fts CROSS JOIN messages m ON m.id = messages_fts.rowid
 WHERE messages_fts MATCH :match AND messages_fts.rowid < :below AND m.project_id = :project_id AND m.recalled_at IS NULL
 ORDER BY messages_fts.rowid DESC LIMIT :limit;

-- search_best
SELECT m.id, m.project_id, m.sender_id, m.sender_name, m.thread_id, m.subject, m.body_md, m.importance,
       m.ack_required, m.created_ts, m.topic, m.broadcast, m.reply_to, m.recalled_at,
       snippet(messages_fts, -1, '', '', '…', 16), best.score
  FROM (SELECT id, score
          FROM (SELECT messages_fts.rowid AS id, messages_fts.rank AS score
                  FROM messages_fts CROSS JOIN messages p ON p.id = messages_fts.rowid
                 WHERE messages_fts MATCH :match AND p.project_id = :project_id AND p.recalled_at IS NULL
                 ORDER BY messages_fts.rowid DESC LIMIT :among)
         ORDER BY score, id DESC LIMIT :limit OFFSET :offset) best
 CROSS JOIN messages_fts ON messages_fts.rowid = best.id
 CROSS JOIN messages m ON m.id = best.id
 WHERE messages_fts MATCH :match
 ORDER BY best.score, best.id DESC;

-- mark_read
UPDATE recipients SET read_at = ?3 WHERE message_id = ?1 AND agent_id = ?2 AND read_at IS NULL RETURNING kind;

-- read_mark
SELECT read_at FROM recipients WHERE message_id = ? AND agent_id = ?;

-- mark_acked
UPDATE recipients SET acked_at = ?3 WHERE message_id = ?1 AND agent_id = ?2 AND acked_at IS NULL RETURNING kind;

-- acked_mark
SELECT acked_at FROM recipients WHERE message_id = ? AND agent_id = ?;

-- unannounced
SELECT m.id, r.seq, r.kind, m.sender_id, m.sender_name, m.importance, m.broadcast, m.created_ts
  FROM recipients r INDEXED BY recipients_unread JOIN messages m ON m.id = r.message_id
 WHERE r.agent_id = ? AND r.read_at IS NULL AND r.announced_at IS NULL AND m.recalled_at IS NULL
 ORDER BY r.seq LIMIT ?;

-- directed_unread
SELECT count(*), coalesce(max(r.seq), 0)
  FROM recipients r INDEXED BY recipients_unread JOIN messages m ON m.id = r.message_id
 WHERE r.agent_id = ? AND r.read_at IS NULL AND r.kind = 'to' AND NOT m.broadcast AND m.recalled_at IS NULL;

-- mark_announced
UPDATE recipients SET announced_at = ?3, announced_by = ?4
 WHERE message_id = ?1 AND agent_id = ?2 AND announced_at IS NULL RETURNING kind;

-- recipient_kind
SELECT kind FROM recipients WHERE message_id = ? AND agent_id = ?;

-- client_session
SELECT client, session_id, agent_id, bound_at FROM client_sessions WHERE client = ? AND session_id = ?;

-- with_client_session
SELECT DISTINCT agent_id FROM client_sessions WHERE agent_id IN (SELECT value FROM json_each(?));

-- sessions_seen
SELECT agent_id, max(bound_at) FROM client_sessions
 WHERE agent_id IN (SELECT value FROM json_each(?)) GROUP BY agent_id;

-- bind_client_session
INSERT INTO client_sessions (client, session_id, agent_id, bound_at) VALUES (?, ?, ?, ?)
ON CONFLICT (client, session_id) DO UPDATE SET agent_id = excluded.agent_id, bound_at = excluded.bound_at;

-- end_client_session
DELETE FROM client_sessions WHERE client = ? AND session_id = ?;

-- purge_client_sessions
DELETE FROM client_sessions WHERE (client, session_id) IN
  (SELECT client, session_id FROM client_sessions WHERE bound_at < ?
    ORDER BY bound_at, client, session_id LIMIT ?);

-- nudges
SELECT held_seq, told_at FROM agent_nudges WHERE agent_id = ?;

-- set_nudges
INSERT INTO agent_nudges (agent_id, held_seq, told_at) VALUES (?, ?, ?)
ON CONFLICT (agent_id) DO UPDATE SET held_seq = excluded.held_seq, told_at = excluded.told_at;

-- mark_recalled
UPDATE messages SET recalled_at = coalesce(recalled_at, ?2), subject = '', body_md = '', topic = '' WHERE id = ?1;

-- drop_attachments
DELETE FROM attachments WHERE message_id = ?;

-- drop_orphan_blobs
DELETE FROM blobs WHERE sha256 IN (SELECT value FROM json_each(?1))
   AND NOT EXISTS (SELECT 1 FROM attachments a WHERE a.sha256 = blobs.sha256)
   AND NOT EXISTS (SELECT 1 FROM attachments a WHERE a.preview_sha256 = blobs.sha256);

-- insert_blob
INSERT INTO blobs (sha256, content) VALUES (?, ?) ON CONFLICT (sha256) DO NOTHING;

-- blob
SELECT content FROM blobs WHERE sha256 = ?;

-- insert_attachment
INSERT INTO attachments (message_id, position, sha256, name, media_type, size, preview_sha256)
VALUES (?1, (SELECT count(*) FROM attachments WHERE message_id = ?1), ?2, ?3, ?4, ?5, ?6);

-- attachments
SELECT message_id, sha256, name, media_type, size, preview_sha256
  FROM attachments WHERE message_id IN (SELECT value FROM json_each(?)) ORDER BY message_id, position;

-- reservation
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.released_at, r.released_by, r.release_reason
  FROM file_reservations r JOIN agents a ON a.id = r.agent_id WHERE r.id = ?;

-- live_reservations
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.released_at, r.released_by, r.release_reason
  FROM file_reservations r INDEXED BY file_reservations_live JOIN agents a ON a.id = r.agent_id
 WHERE r.project_id = :project_id AND r.released_at IS NULL AND r.expires_at > :now
 ORDER BY r.id LIMIT :limit;

-- live_reservations_near
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.released_at, r.released_by, r.release_reason
  FROM file_reservations r INDEXED BY file_reservations_live JOIN agents a ON a.id = r.agent_id
 WHERE r.project_id = :project_id AND r.released_at IS NULL AND r.expires_at > :now
   AND r.prefix IN (SELECT value FROM json_each(:ancestors))
UNION ALL
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.released_at, r.released_by, r.release_reason
  FROM file_reservations r INDEXED BY file_reservations_live JOIN agents a ON a.id = r.agent_id
 WHERE r.project_id = :project_id AND r.released_at IS NULL AND r.expires_at > :now
   AND r.prefix >= :below AND r.prefix < :beyond
 ORDER BY 1 LIMIT :limit;

-- live_patterns
SELECT id, pattern FROM file_reservations INDEXED BY file_reservations_live
 WHERE project_id = :project_id AND released_at IS NULL AND expires_at > :now
   AND agent_id <> :but AND exclusive >= :exclusive_only;

-- live_patterns_near
SELECT id, pattern FROM file_reservations INDEXED BY file_reservations_live
 WHERE project_id = :project_id AND released_at IS NULL AND expires_at > :now
   AND agent_id <> :but AND exclusive >= :exclusive_only
   AND prefix IN (SELECT value FROM json_each(:ancestors))
UNION ALL
SELECT id, pattern FROM file_reservations INDEXED BY file_reservations_live
 WHERE project_id = :project_id AND released_at IS NULL AND expires_at > :now
   AND agent_id <> :but AND exclusive >= :exclusive_only
   AND prefix >= :below AND prefix < :beyond;

-- reservations_by_id
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.released_at, r.released_by, r.release_reason
  FROM file_reservations r JOIN agents a ON a.id = r.agent_id
 WHERE r.id IN (SELECT value FROM json_each(?)) ORDER BY r.id;

-- reservations_held
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.released_at, r.released_by, r.release_reason
  FROM file_reservations r INDEXED BY file_reservations_held JOIN agents a ON a.id = r.agent_id
 WHERE r.agent_id = :agent_id AND r.project_id = :project_id AND r.released_at IS NULL AND r.expires_at > :now
   AND (:ancestors IS NULL OR r.prefix IN (SELECT value FROM json_each(:ancestors))
        OR r.prefix >= :below AND r.prefix < :beyond)
 ORDER BY r.id LIMIT :limit;

-- reservations
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.released_at, r.released_by, r.release_reason
  FROM file_reservations r JOIN agents a ON a.id = r.agent_id
 WHERE r.project_id = ? AND r.id > ? ORDER BY r.id LIMIT ?;

-- insert_reservation
INSERT INTO file_reservations (project_id, agent_id, pattern, prefix, exclusive, reason, created_at, expires_at, ttl)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- extend_reservation
UPDATE file_reservations SET expires_at = ?, ttl = ?, exclusive = ?, reason = ? WHERE id = ?;

-- release_reservation
UPDATE file_reservations SET released_at = ?, released_by = ?, release_reason = ? WHERE id = ? AND released_at IS NULL;

-- expired_reservations
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.expires_at, '', 'expired'
  FROM file_reservations r INDEXED BY file_reservations_ending JOIN agents a ON a.id = r.agent_id
 WHERE r.project_id = ? AND r.released_at IS NULL AND r.expires_at <= ? ORDER BY r.expires_at, r.id LIMIT 100;

-- expire_reservation
UPDATE file_reservations SET released_at = expires_at, release_reason = 'expired' WHERE id = ?;

-- contact
SELECT from_id, to_id, status, reason, created_at, decided_at FROM contacts WHERE from_id = ? AND to_id = ?;

-- contacts
SELECT from_id, to_id, status, reason, created_at, decided_at FROM contacts WHERE from_id = ?1
UNION
SELECT from_id, to_id, status, reason, created_at, decided_at FROM contacts WHERE to_id = ?1
ORDER BY created_at, from_id, to_id;

-- put_contact
INSERT INTO contacts (from_id, to_id, status, reason, created_at, decided_at)
VALUES (:from_id, :to_id, :status, :reason, :now, CASE :status WHEN 'pending' THEN NULL ELSE :now END)
ON CONFLICT (from_id, to_id) DO UPDATE
   SET status = :status, reason = :reason, decided_at = CASE :status WHEN 'pending' THEN NULL ELSE :now END
RETURNING from_id, to_id, status, reason, created_at, decided_at;

-- answer
SELECT digest, answer FROM idempotency WHERE scope = ? AND key = ?;

-- insert_answer
INSERT INTO idempotency (scope, key, digest, answer, created_at) VALUES (?, ?, ?, ?, ?);

-- purge_answers
DELETE FROM idempotency WHERE rowid IN (SELECT rowid FROM idempotency WHERE created_at < ? ORDER BY created_at LIMIT ?);

-- insert_outbox
INSERT INTO outbox (id, topic, key, project_id, created_at) VALUES (?, ?, ?, ?, ?);

-- newest_outbox
SELECT coalesce(max(id), 0) FROM outbox;

-- outbox
SELECT id, topic, key, project_id, created_at, attempts, last_error FROM outbox WHERE topic = ? ORDER BY id LIMIT ?;

-- backlog
SELECT count(*), (SELECT created_at FROM outbox WHERE topic = ?1 ORDER BY id LIMIT 1) FROM outbox WHERE topic = ?1;

-- finish_outbox
DELETE FROM outbox WHERE id IN (SELECT value FROM json_each(?));

-- fail_outbox
UPDATE outbox SET attempts = attempts + 1, last_error = ? WHERE id IN (SELECT value FROM json_each(?));

-- runner
SELECT agent_id, runner, declared_by, updated_at FROM runners WHERE agent_id = ?;

-- runners
SELECT agent_id, runner, declared_by, updated_at FROM runners WHERE agent_id > ? ORDER BY agent_id LIMIT ?;

-- with_runner
SELECT agent_id, updated_at FROM runners WHERE agent_id IN (SELECT value FROM json_each(?));

-- put_runner
INSERT INTO runners (agent_id, runner, declared_by, updated_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (agent_id) DO UPDATE SET runner = ?2, declared_by = ?3, updated_at = ?4;

-- drop_runner
DELETE FROM runners WHERE agent_id = ?;

-- working_on
SELECT DISTINCT s.agent_id FROM sittings s
 CROSS JOIN messages m CROSS JOIN handlings h
 WHERE s.agent_id IN (SELECT value FROM json_each(?1)) AND m.project_id = ?2 AND m.thread_id = ?3
   AND h.message_id = m.id AND h.agent_id = s.agent_id AND h.run_id = s.run_id;

-- handlings
SELECT message_id, agent_id, run_id, injected_at, ended_at, failure FROM handlings
 WHERE message_id IN (SELECT value FROM json_each(?));

-- put_handling
INSERT INTO handlings (message_id, agent_id, run_id, injected_at, ended_at, failure)
VALUES (:message_id, :agent_id, :run_id, :injected_at, :ended_at, :failure)
ON CONFLICT (message_id, agent_id) DO UPDATE
   SET run_id = :run_id, injected_at = :injected_at, ended_at = :ended_at, failure = :failure;

-- begin_sitting
INSERT INTO sittings (run_id, agent_id, began_at) VALUES (?1, ?2, ?3);

-- ask
INSERT INTO questions (run_id, question_id, text, asked_at, patience, on_timeout)
SELECT run_id, ?3, ?4, ?5, ?6, ?7 FROM sittings WHERE run_id = ?1 AND agent_id = ?2
ON CONFLICT (run_id, question_id) DO NOTHING;

-- sits
SELECT 1 FROM sittings WHERE run_id = ? AND agent_id = ?;

-- questions
SELECT question_id, text, patience, on_timeout FROM questions WHERE run_id = ? ORDER BY asked_at, question_id;

-- end_sitting
DELETE FROM sittings WHERE run_id = ? RETURNING agent_id;

-- answering_run
SELECT run_id FROM run_answers WHERE message_id = ?;

-- note_answer
INSERT INTO run_answers (message_id, run_id) VALUES (?, ?) ON CONFLICT (message_id) DO NOTHING;

-- counts
SELECT (SELECT count(*) FROM projects), (SELECT count(*) FROM agents),
       (SELECT coalesce(max(id), 0) FROM messages),
       (SELECT count(*) FROM file_reservations INDEXED BY file_reservations_ending
         WHERE released_at IS NULL),
       (SELECT count(*) FROM outbox), (SELECT count(*) FROM runners),
       (SELECT count(*) FROM recipients r INDEXED BY recipients_unread JOIN messages m ON m.id = r.message_id
         WHERE r.read_at IS NULL AND m.recalled_at IS NULL);

-- any_project
SELECT 1 FROM projects LIMIT 1;

-- probe
INSERT INTO probe (id, written_at) VALUES (1, ?1) ON CONFLICT (id) DO UPDATE SET written_at = ?1 RETURNING written_at;

-- token
SELECT id, name, hash, scopes, project_id, created_at, expires_at, replaced_at, revoked_at, last_used_at
  FROM tokens WHERE id = ?;

-- tokens_named
SELECT id, name, hash, scopes, project_id, created_at, expires_at, replaced_at, revoked_at, last_used_at
  FROM tokens WHERE name = ? ORDER BY created_at, id;

-- tokens
SELECT id, name, hash, scopes, project_id, created_at, expires_at, replaced_at, revoked_at, last_used_at
  FROM tokens WHERE id > ? ORDER BY id LIMIT ?;

-- put_token
INSERT INTO tokens (id, name, hash, scopes, project_id, created_at, expires_at, replaced_at, revoked_at, last_used_at)
VALUES (:id, :name, :hash, :scopes, :project_id, :created_at, :expires_at, :replaced_at, :revoked_at, :last_used_at)
ON CONFLICT (id) DO UPDATE SET name = :name, hash = :hash, scopes = :scopes, project_id = :project_id,
  created_at = :created_at, expires_at = :expires_at, replaced_at = :replaced_at, revoked_at = :revoked_at,
  last_used_at = :last_used_at;

-- note_token_use
UPDATE tokens SET last_used_at = ?2 WHERE id = ?1 AND (last_used_at IS NULL OR last_used_at < ?2);

-- traces
SELECT name, traceparent FROM traces WHERE name IN (SELECT value FROM json_each(?));

-- put_trace
INSERT INTO traces (name, traceparent) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET traceparent = excluded.traceparent;
