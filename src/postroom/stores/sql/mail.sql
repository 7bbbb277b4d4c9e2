-- Mail: one statement a heading; `stores.statements` says what stands in braces.

-- part named_project
-- An equal path comes before an equal slug, and both come before an alias.
p.id = coalesce((SELECT id FROM projects WHERE human_key = :key), (SELECT id FROM projects WHERE slug = :key),
                (SELECT project_id FROM project_aliases WHERE human_key = :key))

-- project_named
SELECT p.id, p.slug, p.human_key, p.created_at, p.spelling, p.git_identity, p.owner
  FROM projects p WHERE {part named_project};

-- projects_there
SELECT id FROM projects WHERE id IN {ints :ids};

-- project_by_id
SELECT id, slug, human_key, created_at, spelling, git_identity, owner FROM projects WHERE id = :id;

-- projects_spelled
SELECT id, slug, human_key, created_at, spelling, git_identity, owner
  FROM projects WHERE spelling = :spelling ORDER BY id;

-- projects_of_repository
SELECT id, slug, human_key, created_at, spelling, git_identity, owner
  FROM projects
 WHERE git_identity = :identity
    OR (CAST(:remote AS text) <> '' AND substr(git_identity, 1, length(CAST(:remote AS text)) + 1) = CAST(:remote AS text) || '#')
    OR (CAST(:root AS text) <> '' AND git_identity LIKE '%#' || CAST(:root AS text))
 ORDER BY id;

-- projects_unidentified
SELECT id, slug, human_key, created_at, spelling, git_identity, owner
  FROM projects WHERE git_identity = '' OR git_identity LIKE '#folder:%' ORDER BY id DESC LIMIT :limit;

-- projects
SELECT id, slug, human_key, created_at, spelling, git_identity, owner
  FROM projects WHERE id > :after ORDER BY id LIMIT :limit;

-- insert_project
INSERT INTO projects (slug, human_key, created_at, spelling, git_identity, owner)
VALUES (:slug, :human_key, :now, :spelling, :git_identity, :owner)
RETURNING id, slug, human_key, created_at, spelling, git_identity, owner;

-- add_project_alias
INSERT INTO project_aliases (human_key, project_id) VALUES (:human_key, :project_id) ON CONFLICT (human_key) DO NOTHING;

-- set_git_identity
UPDATE projects SET git_identity = :git_identity WHERE id = :id;

-- keep_former_folder
INSERT INTO project_aliases (human_key, project_id) SELECT human_key, id FROM projects WHERE id = :id
ON CONFLICT (human_key) DO NOTHING;

-- set_project_folder
UPDATE projects SET human_key = :human_key, spelling = :spelling WHERE id = :id;

-- agent_named
SELECT id, project_id, name, program, model, task_description, created_at, last_active_at, contact_policy,
       retired_at, token_hash,
       {greatest}(inbox_seq, coalesce((SELECT max(seq) FROM recipients WHERE agent_id = agents.id), 0)),
       inbox_floor, runs_at_once
  FROM agents WHERE project_id = :project_id AND name_key = :name_key;

-- agent_addressed
SELECT a.id, a.project_id, a.name, a.program, a.model, a.task_description, a.created_at, a.last_active_at,
       a.contact_policy, a.retired_at, a.token_hash,
       {greatest}(a.inbox_seq, coalesce((SELECT max(seq) FROM recipients WHERE agent_id = a.id), 0)),
       a.inbox_floor, a.runs_at_once,
       p.id, p.slug, p.human_key, p.created_at, p.spelling, p.git_identity, p.owner, r.runner,
       EXISTS (SELECT 1 FROM notes WHERE project_id = p.id)
  FROM projects p JOIN agents a ON a.project_id = p.id LEFT JOIN runners r ON r.agent_id = a.id
 WHERE a.name_key = :name_key AND {part named_project};

-- agents_named
SELECT id, project_id, name, program, model, task_description, created_at, last_active_at, contact_policy,
       retired_at, token_hash,
       {greatest}(inbox_seq, coalesce((SELECT max(seq) FROM recipients WHERE agent_id = agents.id), 0)),
       inbox_floor, runs_at_once
  FROM agents WHERE project_id = :project_id AND name_key IN {texts :name_keys} ORDER BY id;

-- agents_by_id
SELECT id, project_id, name, program, model, task_description, created_at, last_active_at, contact_policy,
       retired_at, token_hash,
       {greatest}(inbox_seq, coalesce((SELECT max(seq) FROM recipients WHERE agent_id = agents.id), 0)),
       inbox_floor, runs_at_once
  FROM agents WHERE id IN {ints :ids};

-- agents
SELECT id, project_id, name, program, model, task_description, created_at, last_active_at, contact_policy,
       retired_at, token_hash,
       {greatest}(inbox_seq, coalesce((SELECT max(seq) FROM recipients WHERE agent_id = agents.id), 0)),
       inbox_floor, runs_at_once
  FROM agents WHERE project_id = :project_id AND id > :after AND (CAST(:retired AS bigint) = 1 OR retired_at IS NULL)
 ORDER BY id LIMIT :limit;

-- member_names
SELECT id, name FROM agents
 WHERE project_id = :project_id AND (CAST(:retired AS bigint) = 1 OR retired_at IS NULL) ORDER BY id LIMIT :limit;

-- active_agents
SELECT id, project_id, name, program, model, task_description, created_at, last_active_at, contact_policy,
       retired_at, token_hash,
       {greatest}(inbox_seq, coalesce((SELECT max(seq) FROM recipients WHERE agent_id = agents.id), 0)),
       inbox_floor, runs_at_once
  FROM agents WHERE project_id = :project_id AND retired_at IS NULL ORDER BY last_active_at DESC, id LIMIT :limit;

-- agent_by_token
SELECT id, project_id, name, program, model, task_description, created_at, last_active_at, contact_policy,
       retired_at, token_hash,
       {greatest}(inbox_seq, coalesce((SELECT max(seq) FROM recipients WHERE agent_id = agents.id), 0)),
       inbox_floor, runs_at_once
  FROM agents WHERE token_hash = :token_hash;

-- insert_agent
INSERT INTO agents (project_id, name, name_key, program, model, task_description, created_at, last_active_at)
VALUES (:project_id, :name, :name_key, :program, :model, :task_description, :now, :now)
RETURNING id, project_id, name, program, model, task_description, created_at, last_active_at, contact_policy,
          retired_at, token_hash, inbox_seq, inbox_floor, runs_at_once;

-- agent_differs
SELECT 1 FROM agents WHERE id = :id
   AND (program <> :program OR model <> :model OR task_description <> :task_description);

-- update_agent
UPDATE agents SET program = :program, model = :model, task_description = :task_description,
       last_active_at = {greatest}(last_active_at, :now)
 WHERE id = :id
RETURNING id, project_id, name, program, model, task_description, created_at, last_active_at, contact_policy,
          retired_at, token_hash,
          {greatest}(inbox_seq, coalesce((SELECT max(seq) FROM recipients WHERE agent_id = agents.id), 0)),
          inbox_floor, runs_at_once;

-- put_runs_at_once
UPDATE agents SET runs_at_once = :runs_at_once WHERE id = :agent_id;

-- set_agent_retired
UPDATE agents SET retired_at = :retired_at WHERE id = :id;

-- set_agent_token
UPDATE agents SET token_hash = :token_hash WHERE id = :id;

-- set_contact_policy
UPDATE agents SET contact_policy = :policy WHERE id = :id;

-- touch_agent
UPDATE agents SET last_active_at = {greatest}(last_active_at, :now) WHERE id = :id
RETURNING CASE WHEN EXISTS (SELECT 1 FROM tasks {index tasks_held} WHERE holder_id = agents.id AND state = 'claimed')
          THEN 1 ELSE 0 END;

-- touch_reservations
UPDATE file_reservations SET expires_at = {greatest}(expires_at, :now + ttl)
 WHERE agent_id = :id AND released_at IS NULL AND expires_at > :now;

-- message
SELECT id, project_id, sender_id, sender_name, thread_id, subject, body_md, importance, ack_required,
       created_ts, topic, broadcast, reply_to, recalled_at, check_value
  FROM messages WHERE id = :id;

-- messages
SELECT id, project_id, sender_id, sender_name, thread_id, subject, body_md, importance, ack_required,
       created_ts, topic, broadcast, reply_to, recalled_at, check_value
  FROM messages WHERE id IN {ints :ids};

-- insert_message
INSERT INTO messages (id, project_id, sender_id, sender_name, thread_id, subject, body_md, importance, ack_required,
                      created_ts, topic, broadcast, reply_to, check_value)
VALUES (:id, :project_id, :sender_id, :sender_name, :thread_id, :subject, :body_md, :importance, :ack_required,
        :created_at, :topic, :broadcast, :reply_to, :check_value);

-- next_message
SELECT max((SELECT coalesce(max(id), 0) FROM messages), (SELECT indexed_to FROM search_index_progress)) + 1;

-- next_message @postgres
SELECT nextval(pg_get_serial_sequence('messages', 'id'));

-- index_step @sqlite
SELECT max(id) FROM (
  SELECT id, sum(length(body_md)) OVER (ORDER BY id) - length(body_md) AS before
    FROM (SELECT id, body_md FROM messages
           WHERE id > (SELECT indexed_to FROM search_index_progress) ORDER BY id LIMIT :limit))
 WHERE before < :characters;

-- index_left @sqlite
SELECT id FROM messages WHERE id > (SELECT indexed_to FROM search_index_progress) ORDER BY id LIMIT 1;

-- cut_messages @sqlite
SELECT id FROM messages
 WHERE project_id = :project_id AND length(CAST(body_md AS BLOB)) - length(body_md) > 32000 ORDER BY id DESC LIMIT :limit;

-- cut_messages @postgres
SELECT id FROM messages
 WHERE project_id = :project_id AND octet_length(body_md) - length(body_md) > 32000 ORDER BY id DESC LIMIT :limit;

-- index_search @sqlite
INSERT INTO messages_fts (rowid, subject, body_md, sender_name, topic)
SELECT id, indexed_text(subject), indexed_text(body_md), indexed_text(sender_name), indexed_text(topic) FROM messages
 WHERE id > (SELECT indexed_to FROM search_index_progress) AND id <= :newest;

-- index_threads @sqlite
INSERT INTO threads (project_id, thread_id, first_id, last_id, messages)
SELECT project_id, thread_id, min(id), max(id), count(*) FROM messages
 WHERE id > (SELECT indexed_to FROM search_index_progress) AND id <= :newest
 GROUP BY project_id, thread_id
ON CONFLICT (project_id, thread_id) DO UPDATE
   SET last_id = excluded.last_id, messages = threads.messages + excluded.messages;

-- index_threads @postgres
INSERT INTO threads (project_id, thread_id, first_id, last_id, messages)
SELECT project_id, thread_id, min(id), max(id), count(*) FROM messages GROUP BY project_id, thread_id
ON CONFLICT (project_id, thread_id) DO UPDATE
   SET first_id = excluded.first_id, last_id = excluded.last_id, messages = excluded.messages;

-- indexed @sqlite
UPDATE search_index_progress SET indexed_to = :newest;

-- insert_recipient
INSERT INTO recipients (message_id, agent_id, kind, seq, position)
VALUES (:message_id, :agent_id, :kind,
        (SELECT {greatest}(inbox_seq, coalesce((SELECT max(seq) FROM recipients WHERE agent_id = :agent_id), 0)) + 1
           FROM agents WHERE id = :agent_id), :position);

-- recipients_named
SELECT count(*) FROM recipients WHERE message_id = :message_id;

-- recipients
SELECT r.message_id, r.agent_id, a.name, p.slug, r.kind, r.seq, r.read_at, r.acked_at,
       r.announced_at, r.announced_by
  FROM recipients r JOIN agents a ON a.id = r.agent_id JOIN projects p ON p.id = a.project_id
 WHERE r.message_id IN {ints :ids}
 ORDER BY r.message_id, r.position, r.agent_id;

-- inbox_newest
SELECT m.id, m.project_id, m.sender_id, m.sender_name, m.thread_id, m.subject, m.body_md, m.importance,
       m.ack_required, m.created_ts, m.topic, m.broadcast, m.reply_to, m.recalled_at, m.check_value,
       r.kind, r.seq, r.read_at, r.acked_at
  FROM recipients r JOIN messages m ON m.id = r.message_id
 WHERE r.agent_id = :agent_id AND r.seq < coalesce(CAST(:before AS bigint), 9223372036854775807)
   AND m.recalled_at IS NULL
   AND (CAST(:since AS bigint) IS NULL OR m.created_ts >= :since)
   AND (CAST(:any_importance AS bigint) = 1 OR m.importance IN {texts :importance})
 ORDER BY r.seq DESC LIMIT :limit;

-- inbox_after
SELECT m.id, m.project_id, m.sender_id, m.sender_name, m.thread_id, m.subject, m.body_md, m.importance,
       m.ack_required, m.created_ts, m.topic, m.broadcast, m.reply_to, m.recalled_at, m.check_value,
       r.kind, r.seq, r.read_at, r.acked_at
  FROM recipients r JOIN messages m ON m.id = r.message_id
 WHERE r.agent_id = :agent_id AND r.seq > :after AND m.recalled_at IS NULL
   AND (CAST(:since AS bigint) IS NULL OR m.created_ts >= :since)
   AND (CAST(:any_importance AS bigint) = 1 OR m.importance IN {texts :importance})
 ORDER BY r.seq LIMIT :limit;

-- inbox_unread_newest
SELECT m.id, m.project_id, m.sender_id, m.sender_name, m.thread_id, m.subject, m.body_md, m.importance,
       m.ack_required, m.created_ts, m.topic, m.broadcast, m.reply_to, m.recalled_at, m.check_value,
       r.kind, r.seq, r.read_at, r.acked_at
  FROM recipients r {index recipients_unread} JOIN messages m ON m.id = r.message_id
 WHERE r.agent_id = :agent_id AND r.seq < coalesce(CAST(:before AS bigint), 9223372036854775807)
   AND r.read_at IS NULL AND m.recalled_at IS NULL
   AND (CAST(:since AS bigint) IS NULL OR m.created_ts >= :since)
   AND (CAST(:any_importance AS bigint) = 1 OR m.importance IN {texts :importance})
 ORDER BY r.seq DESC LIMIT :limit;

-- inbox_unread_after
SELECT m.id, m.project_id, m.sender_id, m.sender_name, m.thread_id, m.subject, m.body_md, m.importance,
       m.ack_required, m.created_ts, m.topic, m.broadcast, m.reply_to, m.recalled_at, m.check_value,
       r.kind, r.seq, r.read_at, r.acked_at
  FROM recipients r {index recipients_unread} JOIN messages m ON m.id = r.message_id
 WHERE r.agent_id = :agent_id AND r.seq > :after AND r.read_at IS NULL AND m.recalled_at IS NULL
   AND (CAST(:since AS bigint) IS NULL OR m.created_ts >= :since)
   AND (CAST(:any_importance AS bigint) = 1 OR m.importance IN {texts :importance})
 ORDER BY r.seq LIMIT :limit;

-- inbox_events
SELECT m.id, m.project_id, m.sender_id, m.sender_name, m.thread_id, m.subject, m.body_md, m.importance,
       m.ack_required, m.created_ts, m.topic, m.broadcast, m.reply_to, m.recalled_at, m.check_value,
       r.kind, r.seq, r.read_at, r.acked_at
  FROM recipients r JOIN messages m ON m.id = r.message_id
 WHERE r.agent_id = :agent_id AND r.seq > :after ORDER BY r.seq LIMIT :limit;

-- unread_count
SELECT count(*) FROM recipients r {index recipients_unread} JOIN messages m ON m.id = r.message_id
 WHERE r.agent_id = :agent_id AND r.read_at IS NULL AND m.recalled_at IS NULL;

-- thread
SELECT id, project_id, sender_id, sender_name, thread_id, subject, body_md, importance, ack_required,
       created_ts, topic, broadcast, reply_to, recalled_at, check_value
  FROM messages WHERE project_id = :project_id AND thread_id = :thread_id AND id > :after ORDER BY id LIMIT :limit;

-- thread_tail
SELECT id, project_id, sender_id, sender_name, thread_id, subject, body_md, importance, ack_required,
       created_ts, topic, broadcast, reply_to, recalled_at, check_value
  FROM messages WHERE project_id = :project_id AND thread_id = :thread_id ORDER BY id DESC LIMIT :limit;

-- thread_size
SELECT count(*) FROM messages WHERE project_id = :project_id AND thread_id = :thread_id;

-- thread_participants
WITH newest AS (
  SELECT id, sender_id, sender_name, recalled_at FROM messages
   WHERE project_id = :project_id AND thread_id = :thread_id ORDER BY id DESC LIMIT :among),
standing AS (
  SELECT n.id, n.sender_id, n.sender_name FROM newest n
   WHERE n.recalled_at IS NULL
     AND (CAST(:home_id AS bigint) = CAST(:project_id AS bigint) OR EXISTS (
       SELECT 1 FROM recipients r JOIN agents a ON a.id = r.agent_id
        WHERE r.message_id = n.id AND r.kind <> 'bcc' AND a.project_id = :home_id)))
SELECT t.agent_id, coalesce(a.name, t.name), coalesce(p.slug, ''), t.wrote, t.unread
  FROM (SELECT agent_id, max(name) AS name, CAST(sum(wrote) AS bigint) AS wrote,
               CAST(sum(unread) AS bigint) AS unread
          FROM (SELECT sender_id AS agent_id, max(sender_name) AS name, count(*) AS wrote, 0 AS unread
                  FROM standing GROUP BY sender_id
                 UNION ALL
                SELECT r.agent_id, '', 0, count(*) - count(r.read_at)
                  FROM standing s {cross} recipients r ON r.message_id = s.id WHERE r.kind <> 'bcc'
                 GROUP BY r.agent_id) AS each_way
         GROUP BY agent_id) t
  LEFT JOIN agents a ON a.id = t.agent_id LEFT JOIN projects p ON p.id = a.project_id
 ORDER BY t.agent_id;

-- threads
SELECT t.thread_id, f.subject, t.messages, t.first_id, t.last_id, l.created_ts, l.sender_name
  FROM threads t JOIN messages f ON f.id = t.first_id JOIN messages l ON l.id = t.last_id
 WHERE t.project_id = :project_id AND t.last_id < coalesce(CAST(:before AS bigint), 9223372036854775807)
 ORDER BY t.last_id DESC LIMIT :limit;

-- tallies
SELECT p.id,
       (SELECT count(*) FROM (SELECT 1 FROM agents WHERE project_id = p.id AND retired_at IS NULL LIMIT :most) AS a),
       (SELECT count(*) FROM (SELECT 1 FROM threads WHERE project_id = p.id LIMIT :most) AS t),
       (SELECT created_ts FROM messages
         WHERE id = (SELECT last_id FROM threads WHERE project_id = p.id ORDER BY last_id DESC LIMIT 1))
  FROM projects p WHERE p.id IN {ints :project_ids} ORDER BY p.id;

-- threads_wanted
SELECT t.thread_id, f.subject, t.messages, t.first_id, t.last_id, l.created_ts, l.sender_name
  FROM (SELECT thread_id, messages, first_id, last_id FROM threads
         WHERE project_id = :project_id AND last_id < coalesce(CAST(:before AS bigint), 9223372036854775807)
         ORDER BY last_id DESC LIMIT :among) t
  JOIN messages f ON f.id = t.first_id JOIN messages l ON l.id = t.last_id
 WHERE EXISTS (
   SELECT 1 FROM messages m
    WHERE m.project_id IN (:project_id, :people_id) AND m.thread_id = t.thread_id AND m.recalled_at IS NULL
      AND (m.project_id = :project_id OR EXISTS (
        SELECT 1 FROM recipients r JOIN agents a ON a.id = r.agent_id
         WHERE r.message_id = m.id AND r.kind <> 'bcc' AND a.project_id = :project_id))
      AND (CAST(:any_importance AS bigint) = 1 OR m.importance IN {texts :importance})
      AND (CAST(:agent_id AS bigint) = 0 OR m.sender_id = :agent_id OR EXISTS (
        SELECT 1 FROM recipients r WHERE r.message_id = m.id AND r.agent_id = :agent_id AND r.kind <> 'bcc'))
      AND (CAST(:person_id AS bigint) = 0 OR m.sender_id = :person_id OR EXISTS (
        SELECT 1 FROM recipients r WHERE r.message_id = m.id AND r.agent_id = :person_id AND r.kind <> 'bcc'))
      AND (CAST(:unread AS bigint) + CAST(:unacknowledged AS bigint) = 0 OR EXISTS (
        SELECT 1 FROM recipients r
         WHERE r.message_id = m.id AND r.kind <> 'bcc'
           AND (CAST(:agent_id AS bigint) + CAST(:person_id AS bigint) = 0 OR r.agent_id IN (:agent_id, :person_id))
           AND (CAST(:unread AS bigint) = 0 OR r.read_at IS NULL)
           AND (CAST(:unacknowledged AS bigint) = 0 OR (m.ack_required = 1 AND r.acked_at IS NULL)))))
 ORDER BY t.last_id DESC LIMIT :limit;

-- threads_looked_at
SELECT last_id FROM threads
 WHERE project_id = :project_id AND last_id < coalesce(CAST(:before AS bigint), 9223372036854775807)
 ORDER BY last_id DESC LIMIT 1 OFFSET :among;

-- project_messages
SELECT id, project_id, sender_id, sender_name, thread_id, subject, body_md, importance, ack_required,
       created_ts, topic, broadcast, reply_to, recalled_at, check_value
  FROM messages WHERE project_id = :project_id AND id > :after ORDER BY id LIMIT :limit;

-- newest_messages
SELECT id, project_id, sender_id, sender_name, thread_id, subject, body_md, importance, ack_required,
       created_ts, topic, broadcast, reply_to, recalled_at, check_value
  FROM messages WHERE project_id = :project_id ORDER BY id DESC LIMIT :limit;

-- sent_messages
SELECT id, project_id, sender_id, sender_name, thread_id, subject, body_md, importance, ack_required,
       created_ts, topic, broadcast, reply_to, recalled_at, check_value
  FROM messages
 WHERE sender_id = :agent_id AND recalled_at IS NULL AND id < coalesce(CAST(:before AS bigint), 9223372036854775807)
 ORDER BY id DESC LIMIT :limit;

-- project_ids
SELECT coalesce((SELECT id FROM messages WHERE project_id = :project_id ORDER BY id LIMIT 1), 0),
       coalesce((SELECT id FROM messages WHERE project_id = :project_id ORDER BY id DESC LIMIT 1), 0),
       (SELECT count(*) FROM (SELECT 1 FROM messages WHERE project_id = :project_id LIMIT :most) AS counted);

-- search_newest
SELECT m.id, m.project_id, m.sender_id, m.sender_name, m.thread_id, m.subject, m.body_md, m.importance,
       m.ack_required, m.created_ts, m.topic, m.broadcast, m.reply_to, m.recalled_at, m.check_value,
       0.0
  FROM messages_fts CROSS JOIN messages m ON m.id = messages_fts.rowid
 WHERE messages_fts MATCH :match AND messages_fts.rowid BETWEEN :first AND :last
   AND (:few IS NULL OR +messages_fts.rowid IN (SELECT id FROM messages WHERE project_id = :few))
   AND m.project_id = :project_id AND m.recalled_at IS NULL
 ORDER BY messages_fts.rowid DESC LIMIT :limit;

-- search_best
SELECT m.id, m.project_id, m.sender_id, m.sender_name, m.thread_id, m.subject, m.body_md, m.importance,
       m.ack_required, m.created_ts, m.topic, m.broadcast, m.reply_to, m.recalled_at, m.check_value,
       best.score
  FROM (SELECT id, score
          FROM (SELECT messages_fts.rowid AS id, messages_fts.rank AS score
                  FROM messages_fts CROSS JOIN messages p ON p.id = messages_fts.rowid
                 WHERE messages_fts MATCH :match AND messages_fts.rowid BETWEEN :first AND :last
                   AND (:few IS NULL OR +messages_fts.rowid IN (SELECT id FROM messages WHERE project_id = :few))
                   AND p.project_id = :project_id AND p.recalled_at IS NULL
                 ORDER BY messages_fts.rowid DESC LIMIT :among)
         ORDER BY score, id DESC LIMIT :limit OFFSET :offset) best
 CROSS JOIN messages_fts ON messages_fts.rowid = best.id
 CROSS JOIN messages m ON m.id = best.id
 WHERE messages_fts MATCH :match
 ORDER BY best.score, best.id DESC;

-- search_newest @postgres
SELECT m.id, m.project_id, m.sender_id, m.sender_name, m.thread_id, m.subject, m.body_md, m.importance,
       m.ack_required, m.created_ts, m.topic, m.broadcast, m.reply_to, m.recalled_at, m.check_value, 0.0
  FROM message_words w JOIN messages m ON m.id = w.message_id
 WHERE w.words @@ (CAST(:home AS tsquery) && CAST(:match AS tsquery)) AND w.message_id < :below
   AND m.recalled_at IS NULL
 ORDER BY w.message_id DESC LIMIT :limit;

-- search_best @postgres
SELECT m.id, m.project_id, m.sender_id, m.sender_name, m.thread_id, m.subject, m.body_md, m.importance,
       m.ack_required, m.created_ts, m.topic, m.broadcast, m.reply_to, m.recalled_at, m.check_value, best.score
  FROM (SELECT newest.message_id,
               -0.000001 - CAST(ts_rank(newest.words, CAST(:match AS tsquery), 1) AS double precision) AS score
          FROM (SELECT w.message_id, w.words
                  FROM message_words w JOIN messages p ON p.id = w.message_id
                 WHERE w.words @@ (CAST(:home AS tsquery) && CAST(:match AS tsquery)) AND p.recalled_at IS NULL
                 ORDER BY w.message_id DESC LIMIT :among) newest
         ORDER BY score, newest.message_id DESC LIMIT :limit OFFSET :offset) best
  JOIN messages m ON m.id = best.message_id
 ORDER BY best.score, best.message_id DESC;

-- index_words @postgres
INSERT INTO message_words (message_id, words) VALUES (:message_id, CAST(:words AS tsvector));

-- forget_words
INSERT INTO messages_fts (messages_fts, rowid, subject, body_md, sender_name, topic)
SELECT 'delete', id, indexed_text(subject), indexed_text(body_md), indexed_text(sender_name), indexed_text(topic)
  FROM messages WHERE id IN {ints :ids};

-- forget_words @postgres
DELETE FROM message_words WHERE message_id IN {ints :ids};

-- index_thread @postgres
INSERT INTO threads (project_id, thread_id, first_id, last_id, messages)
VALUES (:project_id, :thread_id, :message_id, :message_id, 1)
ON CONFLICT (project_id, thread_id) DO UPDATE
   SET first_id = least(threads.first_id, excluded.first_id), last_id = greatest(threads.last_id, excluded.last_id),
       messages = threads.messages + 1;

-- mark_read
UPDATE recipients SET read_at = :now
 WHERE message_id = :message_id AND agent_id = :agent_id AND read_at IS NULL
RETURNING kind;

-- read_mark
SELECT read_at FROM recipients WHERE message_id = :message_id AND agent_id = :agent_id;

-- mark_acked
UPDATE recipients SET acked_at = :now
 WHERE message_id = :message_id AND agent_id = :agent_id AND acked_at IS NULL
RETURNING kind;

-- acked_mark
SELECT acked_at FROM recipients WHERE message_id = :message_id AND agent_id = :agent_id;

-- unannounced
SELECT m.id, r.seq, r.kind, m.sender_id, m.sender_name, m.importance, m.broadcast, m.created_ts
  FROM recipients r {index recipients_unread} JOIN messages m ON m.id = r.message_id
 WHERE r.agent_id = :agent_id AND r.read_at IS NULL AND r.announced_at IS NULL AND m.recalled_at IS NULL
 ORDER BY r.seq LIMIT :limit;

-- directed_unread
SELECT r.message_id, r.seq
  FROM recipients r {index recipients_unread} JOIN messages m ON m.id = r.message_id
 WHERE r.agent_id = :agent_id AND r.read_at IS NULL AND r.kind = 'to' AND m.broadcast = 0 AND m.recalled_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM message_runs h
                    WHERE h.message_id = r.message_id AND h.agent_id = r.agent_id AND h.ended_at IS NULL)
 ORDER BY r.seq DESC LIMIT :limit;

-- mark_announced
UPDATE recipients SET announced_at = :now, announced_by = :by
 WHERE message_id = :message_id AND agent_id = :agent_id AND announced_at IS NULL RETURNING kind;

-- recipient_kind
SELECT kind FROM recipients WHERE message_id = :message_id AND agent_id = :agent_id;

-- client_session
SELECT client, session_id, agent_id, bound_at FROM client_sessions WHERE client = :client AND session_id = :session_id;

-- sessions_seen
SELECT agent_id, max(bound_at) FROM client_sessions
 WHERE agent_id IN {ints :ids} GROUP BY agent_id;

-- bind_client_session
INSERT INTO client_sessions (client, session_id, agent_id, bound_at) VALUES (:client, :session_id, :agent_id, :now)
ON CONFLICT (client, session_id) DO UPDATE SET agent_id = excluded.agent_id, bound_at = excluded.bound_at;

-- end_client_session
DELETE FROM client_sessions WHERE client = :client AND session_id = :session_id;

-- purge_client_sessions
DELETE FROM client_sessions WHERE (client, session_id) IN
  (SELECT client, session_id FROM client_sessions WHERE bound_at < :before
    ORDER BY bound_at, client, session_id LIMIT :limit);

-- nudges
SELECT held_seq, notified_at FROM agent_nudges WHERE agent_id = :agent_id;

-- set_nudges
INSERT INTO agent_nudges (agent_id, held_seq, notified_at) VALUES (:agent_id, :held_seq, :notified_at)
ON CONFLICT (agent_id) DO UPDATE SET held_seq = excluded.held_seq, notified_at = excluded.notified_at;

-- file_views
-- In this table, the column `agent_id` contains the number of a viewer: an agent and one of its sessions.
SELECT file, agent_id, seen_blob, written_blob, written_at, changed_blob, changed_by, changed_at, notice, used_at
  FROM file_views WHERE file IN {texts :files} AND (agent_id = :viewer_id OR written_at > 0) ORDER BY file, agent_id;

-- due_file_views
SELECT file, agent_id, seen_blob, written_blob, written_at, changed_blob, changed_by, changed_at, notice, used_at
  FROM file_views WHERE agent_id = :viewer_id AND notice = 1 ORDER BY file LIMIT :limit;

-- put_file_view
INSERT INTO file_views (file, agent_id, seen_blob, written_blob, written_at, changed_blob, changed_by, changed_at,
                        notice, used_at)
VALUES (:file, :viewer_id, :seen_blob, :written_blob, :written_at, :changed_blob, :changed_by, :changed_at, :notice,
        :used_at)
ON CONFLICT (file, agent_id) DO UPDATE
  SET seen_blob = excluded.seen_blob, written_blob = excluded.written_blob, written_at = excluded.written_at,
      changed_blob = excluded.changed_blob, changed_by = excluded.changed_by, changed_at = excluded.changed_at,
      notice = excluded.notice, used_at = excluded.used_at;

-- note_file_change
-- A session that has read the new version needs no notice, even if an earlier notice was due: the change was reverted.
-- A session that was told of a change is not told again.
UPDATE file_views
   SET changed_blob = :blob, changed_by = :viewer_id, changed_at = :now,
       notice = CASE WHEN seen_blob = :blob THEN 0 WHEN notice = 2 THEN 2 ELSE 1 END
 WHERE file = :file AND agent_id <> :viewer_id AND used_at > :since AND seen_blob <> ''
   AND (seen_blob <> :blob OR notice > 0);

-- mark_file_views_told
UPDATE file_views SET notice = 2 WHERE agent_id = :viewer_id AND notice = 1;

-- purge_file_views
DELETE FROM file_views WHERE (file, agent_id) IN
  (SELECT file, agent_id FROM file_views WHERE used_at < :before ORDER BY used_at, file, agent_id LIMIT :limit);

-- mark_recalled
UPDATE messages
   SET recalled_at = coalesce(recalled_at, :now), subject = '', body_md = '', topic = '', check_value = NULL
 WHERE id = :id;

-- drop_attachments
DELETE FROM attachments WHERE message_id IN {ints :ids};

-- drop_orphan_blobs
DELETE FROM blobs WHERE sha256 IN {texts :hashes}
   AND NOT EXISTS (SELECT 1 FROM attachments a WHERE a.sha256 = blobs.sha256)
   AND NOT EXISTS (SELECT 1 FROM attachments a WHERE a.preview_sha256 = blobs.sha256)
   AND NOT EXISTS (SELECT 1 FROM file_pieces p WHERE p.piece = blobs.sha256);

-- aged_messages
SELECT m.id, m.thread_id, m.topic, m.created_ts,
       CASE WHEN m.recalled_at IS NULL AND
            (SELECT 1 FROM recipients r JOIN agents a ON a.id = r.agent_id
              WHERE r.message_id = m.id AND a.retired_at IS NULL
                AND (r.read_at IS NULL OR (m.ack_required = 1 AND r.acked_at IS NULL)) LIMIT 1) = 1
            THEN 1 ELSE 0 END,
       CASE WHEN (SELECT 1 FROM message_runs h WHERE h.message_id = m.id AND h.ended_at IS NULL LIMIT 1) = 1
              OR m.recalled_at IS NULL AND
            (SELECT 1 FROM recipients r JOIN agents a ON a.id = r.agent_id
              WHERE r.message_id = m.id AND a.retired_at IS NULL AND r.read_at IS NULL
                AND ((SELECT w.agent_id FROM runners w WHERE w.agent_id = r.agent_id) IS NOT NULL
                     OR (SELECT c.agent_id FROM chat_addresses c WHERE c.agent_id = r.agent_id) IS NOT NULL) LIMIT 1) = 1
            THEN 1 ELSE 0 END
  FROM messages m WHERE m.project_id = :project_id AND m.id > :after ORDER BY m.id LIMIT :limit;

-- aged_messages_of
SELECT m.id, m.thread_id, m.topic, m.created_ts,
       CASE WHEN m.recalled_at IS NULL AND
            (SELECT 1 FROM recipients r JOIN agents a ON a.id = r.agent_id
              WHERE r.message_id = m.id AND a.retired_at IS NULL
                AND (r.read_at IS NULL OR (m.ack_required = 1 AND r.acked_at IS NULL)) LIMIT 1) = 1
            THEN 1 ELSE 0 END,
       CASE WHEN (SELECT 1 FROM message_runs h WHERE h.message_id = m.id AND h.ended_at IS NULL LIMIT 1) = 1
              OR m.recalled_at IS NULL AND
            (SELECT 1 FROM recipients r JOIN agents a ON a.id = r.agent_id
              WHERE r.message_id = m.id AND a.retired_at IS NULL AND r.read_at IS NULL
                AND ((SELECT w.agent_id FROM runners w WHERE w.agent_id = r.agent_id) IS NOT NULL
                     OR (SELECT c.agent_id FROM chat_addresses c WHERE c.agent_id = r.agent_id) IS NOT NULL) LIMIT 1) = 1
            THEN 1 ELSE 0 END
  FROM messages m WHERE m.project_id = :project_id AND m.id IN {ints :ids} ORDER BY m.id;

-- end_of_page
SELECT id FROM messages WHERE project_id = :project_id AND id > :after ORDER BY id LIMIT 1 OFFSET :passed;

-- old_messages
SELECT m.id FROM messages m
 WHERE m.project_id = :project_id AND m.id > :after AND m.id <= :upto AND m.created_ts <= :before
   AND (:is_any = 1 OR m.thread_id IN {texts :threads} OR m.topic IN {texts :topics})
   AND (:with_awaited = 1 OR m.recalled_at IS NOT NULL OR NOT EXISTS
         (SELECT 1 FROM recipients r JOIN agents a ON a.id = r.agent_id
           WHERE r.message_id = m.id AND a.retired_at IS NULL
             AND (r.read_at IS NULL OR (m.ack_required = 1 AND r.acked_at IS NULL))))
 ORDER BY m.id;

-- attached_in
SELECT a.sha256, a.preview_sha256 FROM attachments a JOIN messages m ON m.id = a.message_id
 WHERE m.project_id = :project_id
   AND (a.sha256 IN {texts :hashes} OR (a.preview_sha256 IS NOT NULL AND a.preview_sha256 IN {texts :hashes}));

-- of_project
SELECT id FROM messages WHERE id IN {ints :ids} AND project_id = :project_id ORDER BY id;

-- threads_losing
SELECT thread_id, count(*) FROM messages WHERE id IN {ints :ids} GROUP BY thread_id ORDER BY thread_id;

-- inboxes_losing
SELECT agent_id, max(seq) FROM recipients WHERE message_id IN {ints :ids} GROUP BY agent_id ORDER BY agent_id;

-- raise_floor
UPDATE agents SET inbox_floor = {greatest}(inbox_floor, :seq), inbox_seq = {greatest}(inbox_seq, :seq) WHERE id = :agent_id;

-- delete_message_runs
DELETE FROM message_runs WHERE message_id IN {ints :ids};

-- delete_answers
DELETE FROM run_answers WHERE message_id IN {ints :ids};

-- delete_recipients
DELETE FROM recipients WHERE message_id IN {ints :ids};

-- delete_messages
DELETE FROM messages WHERE id IN {ints :ids};

-- shorten_thread
UPDATE threads SET messages = messages - :gone,
       first_id = coalesce((SELECT min(m.id) FROM messages m
                             WHERE m.project_id = :project_id AND m.thread_id = :thread_id), first_id),
       last_id = coalesce((SELECT max(m.id) FROM messages m
                            WHERE m.project_id = :project_id AND m.thread_id = :thread_id), last_id)
 WHERE project_id = :project_id AND thread_id = :thread_id;

-- drop_empty_thread
DELETE FROM threads WHERE project_id = :project_id AND thread_id = :thread_id AND messages <= 0;

-- insert_blob
INSERT INTO blobs (sha256, content) VALUES (:sha256, :content) ON CONFLICT (sha256) DO NOTHING;

-- blob
SELECT content FROM blobs WHERE sha256 = :sha256;

-- insert_attachment
INSERT INTO attachments (message_id, position, sha256, name, media_type, size, preview_sha256)
VALUES (:message_id, (SELECT count(*) FROM attachments WHERE message_id = :message_id), :sha256, :name, :media_type,
        :size, :preview_sha256);

-- attachments
SELECT message_id, sha256, name, media_type, size, preview_sha256
  FROM attachments WHERE message_id IN {ints :ids} ORDER BY message_id, position;

-- reservation
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.released_at, r.released_by, r.release_reason
  FROM file_reservations r JOIN agents a ON a.id = r.agent_id WHERE r.id = :id;

-- live_reservations
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.released_at, r.released_by, r.release_reason
  FROM file_reservations r {index file_reservations_live} JOIN agents a ON a.id = r.agent_id
 WHERE r.project_id = :project_id AND r.released_at IS NULL AND r.expires_at > :now
 ORDER BY r.id LIMIT :limit;

-- live_reservations_near
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.released_at, r.released_by, r.release_reason
  FROM file_reservations r {index file_reservations_live} JOIN agents a ON a.id = r.agent_id
 WHERE r.project_id = :project_id AND r.released_at IS NULL AND r.expires_at > :now
   AND r.prefix IN {texts :ancestors}
UNION ALL
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.released_at, r.released_by, r.release_reason
  FROM file_reservations r {index file_reservations_live} JOIN agents a ON a.id = r.agent_id
 WHERE r.project_id = :project_id AND r.released_at IS NULL AND r.expires_at > :now
   AND r.prefix >= :below AND r.prefix < :beyond
 ORDER BY 1 LIMIT :limit;

-- live_patterns
SELECT id, pattern FROM file_reservations {index file_reservations_live}
 WHERE project_id = :project_id AND released_at IS NULL AND expires_at > :now
   AND agent_id <> :but AND exclusive >= :exclusive_only;

-- live_patterns_near
SELECT id, pattern FROM file_reservations {index file_reservations_live}
 WHERE project_id = :project_id AND released_at IS NULL AND expires_at > :now
   AND agent_id <> :but AND exclusive >= :exclusive_only
   AND prefix IN {texts :ancestors}
UNION ALL
SELECT id, pattern FROM file_reservations {index file_reservations_live}
 WHERE project_id = :project_id AND released_at IS NULL AND expires_at > :now
   AND agent_id <> :but AND exclusive >= :exclusive_only
   AND prefix >= :below AND prefix < :beyond;

-- reservations_by_id
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.released_at, r.released_by, r.release_reason
  FROM file_reservations r JOIN agents a ON a.id = r.agent_id
 WHERE r.id IN {ints :ids} ORDER BY r.id;

-- reservations_held
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.released_at, r.released_by, r.release_reason
  FROM file_reservations r {index file_reservations_held} JOIN agents a ON a.id = r.agent_id
 WHERE r.agent_id = :agent_id AND r.project_id = :project_id AND r.released_at IS NULL AND r.expires_at > :now
   AND (CAST(:anywhere AS bigint) = 1 OR r.prefix IN {texts :ancestors}
        OR r.prefix >= :below AND r.prefix < :beyond)
 ORDER BY r.id LIMIT :limit;

-- reservations
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.released_at, r.released_by, r.release_reason
  FROM file_reservations r JOIN agents a ON a.id = r.agent_id
 WHERE r.project_id = :project_id AND r.id > :after ORDER BY r.id LIMIT :limit;

-- newest_reservations
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.released_at, r.released_by, r.release_reason
  FROM file_reservations r JOIN agents a ON a.id = r.agent_id
 WHERE r.project_id = :project_id ORDER BY r.id DESC LIMIT :limit;

-- insert_reservation
INSERT INTO file_reservations (project_id, agent_id, pattern, prefix, exclusive, reason, created_at, expires_at, ttl)
VALUES (:project_id, :agent_id, :pattern, :prefix, :exclusive, :reason, :now, :expires_at, :ttl)
RETURNING id;

-- note_reserved_in
UPDATE file_reservations SET reserved_in = :reserved_in
 WHERE id = :id AND agent_id = :agent_id AND reserved_in = '' AND released_at IS NULL
   AND expires_at = created_at + ttl;

-- reserved_in
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.released_at, r.released_by, r.release_reason
  FROM file_reservations r {index file_reservations_in} JOIN agents a ON a.id = r.agent_id
 WHERE r.reserved_in = :reserved_in AND r.reserved_in <> '' AND r.released_at IS NULL AND r.expires_at > :now
 ORDER BY r.id;

-- extend_reservation
UPDATE file_reservations SET expires_at = :expires_at, ttl = :ttl, exclusive = :exclusive, reason = :reason
 WHERE id = :id;

-- release_reservation
UPDATE file_reservations SET released_at = :now, released_by = :by, release_reason = :reason
 WHERE id = :id AND released_at IS NULL;

-- expired_reservations
SELECT r.id, r.project_id, r.agent_id, a.name, r.pattern, r.prefix, r.exclusive, r.reason, r.created_at,
       r.expires_at, r.ttl, r.expires_at, '', 'expired'
  FROM file_reservations r {index file_reservations_ending} JOIN agents a ON a.id = r.agent_id
 WHERE r.project_id = :project_id AND r.released_at IS NULL AND r.expires_at <= :now
 ORDER BY r.expires_at, r.id LIMIT 100;

-- expire_reservation
UPDATE file_reservations SET released_at = expires_at, release_reason = 'expired' WHERE id = :id;

-- reach
SELECT id, (SELECT status FROM contacts WHERE from_id = :sender_id AND to_id = a.id),
       CASE WHEN EXISTS (SELECT 1 FROM runners WHERE agent_id = a.id)
              OR EXISTS (SELECT 1 FROM chat_addresses WHERE agent_id = a.id) THEN 1 ELSE 0 END,
       CASE WHEN EXISTS (SELECT 1 FROM client_sessions WHERE agent_id = a.id) THEN 1 ELSE 0 END
  FROM agents a WHERE id IN {ints :ids};

-- contact
SELECT from_id, to_id, status, reason, created_at, decided_at FROM contacts WHERE from_id = :from_id AND to_id = :to_id;

-- contacts
SELECT from_id, to_id, status, reason, created_at, decided_at FROM contacts WHERE from_id = :agent_id
UNION
SELECT from_id, to_id, status, reason, created_at, decided_at FROM contacts WHERE to_id = :agent_id
ORDER BY created_at, from_id, to_id;

-- put_contact
INSERT INTO contacts (from_id, to_id, status, reason, created_at, decided_at)
VALUES (:from_id, :to_id, :status, :reason, :now, :decided_at)
ON CONFLICT (from_id, to_id) DO UPDATE
   SET status = excluded.status, reason = excluded.reason, decided_at = excluded.decided_at
RETURNING from_id, to_id, status, reason, created_at, decided_at;

-- answer
SELECT digest, answer FROM idempotency WHERE scope = :scope AND key = :key;

-- insert_answer
INSERT INTO idempotency (scope, key, digest, answer, created_at) VALUES (:scope, :key, :digest, :answer, :now);

-- purge_answers
DELETE FROM idempotency WHERE (scope, key) IN
  (SELECT scope, key FROM idempotency WHERE created_at < :before ORDER BY created_at LIMIT :limit);

-- runner
SELECT agent_id, runner, declared_by, updated_at FROM runners WHERE agent_id = :agent_id;

-- runners
SELECT agent_id, runner, declared_by, updated_at FROM runners WHERE agent_id > :after ORDER BY agent_id LIMIT :limit;

-- with_runner
SELECT agent_id, updated_at FROM runners WHERE agent_id IN {ints :ids}
 UNION ALL
SELECT agent_id, updated_at FROM chat_addresses WHERE agent_id IN {ints :ids};

-- unwoken
SELECT r.message_id, r.agent_id
  FROM (SELECT agent_id FROM runners UNION SELECT agent_id FROM chat_addresses) woken
 {cross} recipients r {index recipients_unread} ON r.agent_id = woken.agent_id
 {cross} messages m ON m.id = r.message_id
 {cross} agents a ON a.id = r.agent_id
 WHERE r.read_at IS NULL AND r.announced_at IS NULL AND m.recalled_at IS NULL AND a.retired_at IS NULL
   AND (r.message_id > :message_id OR (r.message_id = :message_id AND r.agent_id > :agent_id))
   AND NOT EXISTS (SELECT 1 FROM message_runs s WHERE s.message_id = r.message_id AND s.agent_id = r.agent_id)
 ORDER BY r.message_id, r.agent_id LIMIT :limit;

-- unwoken_count
SELECT count(*) FROM recipients r {index recipients_unread} JOIN messages m ON m.id = r.message_id
  JOIN agents a ON a.id = r.agent_id
 WHERE r.agent_id = :agent_id AND r.read_at IS NULL AND r.announced_at IS NULL AND m.recalled_at IS NULL
   AND a.retired_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM message_runs s WHERE s.message_id = r.message_id AND s.agent_id = r.agent_id);

-- put_runner
INSERT INTO runners (agent_id, runner, declared_by, updated_at, claims_tasks)
VALUES (:agent_id, :runner, :declared_by, :now, :claims_tasks)
ON CONFLICT (agent_id) DO UPDATE
   SET runner = excluded.runner, declared_by = excluded.declared_by, updated_at = excluded.updated_at,
       claims_tasks = excluded.claims_tasks;

-- drop_runner
DELETE FROM runners WHERE agent_id = :agent_id;

-- chat_address
SELECT platform, chat_id FROM chat_addresses WHERE agent_id = :agent_id;

-- reached_at
SELECT agent_id FROM chat_addresses WHERE platform = :platform AND chat_id = :chat_id ORDER BY agent_id;

-- put_chat_address
INSERT INTO chat_addresses (agent_id, platform, chat_id, updated_at) VALUES (:agent_id, :platform, :chat_id, :now)
ON CONFLICT (agent_id) DO UPDATE
   SET platform = excluded.platform, chat_id = excluded.chat_id, updated_at = excluded.updated_at;

-- drop_chat_address
DELETE FROM chat_addresses WHERE agent_id = :agent_id;

-- working_on
SELECT DISTINCT a.agent_id FROM active_runs a
 {cross} messages m ON m.project_id = :project_id AND m.thread_id = :thread_id
 {cross} message_runs r ON r.message_id = m.id AND r.agent_id = a.agent_id AND r.run_id = a.run_id
 WHERE a.agent_id IN {ints :ids};

-- waiting_runs
SELECT r.run_id, r.body FROM run_threads t JOIN runs r ON r.run_id = t.open_run_id
 WHERE t.thread_id IN {texts :thread_ids} AND r.status = 'waiting'
   AND NOT EXISTS (SELECT 1 FROM active_runs a WHERE a.run_id = r.run_id)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = r.run_id);

-- open_runs
SELECT r.run_id, r.body FROM run_threads t JOIN runs r ON r.run_id = t.open_run_id
 WHERE t.thread_id IN {texts :thread_ids}
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows WHERE release = {release} AND kind = 'run' AND id = r.run_id);

-- received
SELECT r.message_id, m.project_id, m.thread_id, r.kind, r.read_at, m.recalled_at, s.run_id, s.delivered_at, s.ended_at,
       (SELECT a.run_id FROM run_answers a WHERE a.message_id = r.message_id)
  FROM recipients r JOIN messages m ON m.id = r.message_id
  LEFT JOIN message_runs s ON s.message_id = r.message_id AND s.agent_id = r.agent_id
 WHERE r.agent_id = :agent_id AND r.message_id IN {ints :ids};

-- message_runs
SELECT message_id, agent_id, run_id, delivered_at, ended_at, failure FROM message_runs
 WHERE message_id IN {ints :ids};

-- put_message_run
INSERT INTO message_runs (message_id, agent_id, run_id, delivered_at, ended_at, failure)
VALUES (:message_id, :agent_id, :run_id, :delivered_at, :ended_at, :failure)
ON CONFLICT (message_id, agent_id) DO UPDATE
   SET run_id = excluded.run_id, delivered_at = excluded.delivered_at, ended_at = excluded.ended_at,
       failure = excluded.failure;

-- begin_run
INSERT INTO active_runs (run_id, agent_id, began_at) VALUES (:run_id, :agent_id, :now) ON CONFLICT (run_id) DO NOTHING;

-- ask
INSERT INTO questions (run_id, question_id, text, asked_at, timeout_ms, on_timeout, asked)
SELECT run_id, CAST(:question_id AS text), CAST(:text AS text), CAST(:asked_at AS bigint), CAST(:timeout_ms AS bigint),
       CAST(:on_timeout AS text), CAST(:asked AS text)
  FROM active_runs WHERE run_id = :run_id AND agent_id = :agent_id
ON CONFLICT (run_id, question_id) DO NOTHING;

-- is_active
SELECT 1 FROM active_runs WHERE run_id = :run_id AND agent_id = :agent_id;

-- questions
SELECT question_id, text, timeout_ms, on_timeout, asked, asked_at FROM questions WHERE run_id = :run_id ORDER BY asked_at, question_id;

-- snoozed
SELECT run_id, question_id, until FROM snoozed_questions WHERE run_id IN {texts :run_ids} AND until > :now;

-- snoozed_until
SELECT run_id, question_id, until FROM snoozed_questions {index snoozed_until} WHERE until > :now ORDER BY until LIMIT :limit;

-- drop_snoozed
DELETE FROM snoozed_questions {index snoozed_until} WHERE until <= :now;

-- unsnooze
DELETE FROM snoozed_questions WHERE run_id = :run_id AND question_id = :question_id;

-- snooze
INSERT INTO snoozed_questions (run_id, question_id, until, snoozed_by) VALUES (:run_id, :question_id, :until, :snoozed_by);

-- end_run
DELETE FROM active_runs
 WHERE run_id = :run_id AND (:has_asked = 1 OR NOT EXISTS (SELECT 1 FROM questions q WHERE q.run_id = active_runs.run_id))
RETURNING agent_id, began_at,
          CASE WHEN EXISTS (SELECT 1 FROM tasks {index tasks_in_run}
                             WHERE run_id = active_runs.run_id AND state = 'claimed' AND run_id <> '') THEN 1 ELSE 0 END;

-- answering_run
SELECT run_id FROM run_answers WHERE message_id = :message_id;

-- answers_among
SELECT message_id FROM run_answers WHERE run_id = :run_id AND message_id IN {ints :message_ids};

-- asking_among
SELECT a.message_id FROM run_answers a JOIN run_questions q ON q.run_id = a.run_id
 WHERE a.message_id IN {ints :message_ids} AND q.answered_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM run_answers b WHERE b.run_id = a.run_id AND b.message_id > a.message_id)
 ORDER BY a.message_id DESC LIMIT 1;

-- newest_report
SELECT message_id FROM run_answers WHERE run_id = :run_id ORDER BY message_id DESC LIMIT 1;

-- report_of
SELECT m.id, m.created_ts FROM run_answers a JOIN messages m ON m.id = a.message_id
 WHERE a.run_id = :run_id AND m.created_ts >= :at ORDER BY m.id LIMIT 1;

-- note_answer
INSERT INTO run_answers (message_id, run_id) VALUES (:message_id, :run_id) ON CONFLICT (message_id) DO NOTHING;

-- counts
SELECT (SELECT count(*) FROM projects), (SELECT count(*) FROM agents),
       (SELECT count(*) FROM messages),
       (SELECT count(*) FROM file_reservations {index file_reservations_ending}
         WHERE released_at IS NULL),
       (SELECT count(*) FROM outbox WHERE kind = 'archive' AND status IN ('pending', 'claimed')),
       (SELECT count(*) FROM runners);

-- count_unread
-- A CROSS JOIN, as SQLite begins with its first table then: else it looks up the message of each unread one.
SELECT (SELECT count(*) FROM recipients {index recipients_unread} WHERE read_at IS NULL) -
       (SELECT count(*) FROM messages m {index messages_recalled} CROSS JOIN recipients r
         WHERE r.message_id = m.id AND m.recalled_at IS NOT NULL AND r.read_at IS NULL);

-- any_project
SELECT 1 FROM projects LIMIT 1;

-- restore_projects
INSERT INTO projects (id, slug, human_key, created_at, spelling, git_identity, owner)
VALUES (:id, :slug, :human_key, :created_at, :spelling, :git_identity, :owner);

-- restore_project_aliases
INSERT INTO project_aliases (human_key, project_id) VALUES (:human_key, :project_id);

-- restore_agents
INSERT INTO agents (id, project_id, name, name_key, program, model, task_description, contact_policy, created_at,
                    last_active_at, retired_at, token_hash, inbox_seq, inbox_floor)
VALUES (:id, :project_id, :name, :name_key, :program, :model, :task_description, :contact_policy, :created_at,
        :last_active_at, :retired_at, :token_hash, :inbox_seq, :inbox_floor);

-- restore_messages
INSERT INTO messages (id, project_id, sender_id, subject, body_md, importance, ack_required, created_ts, sender_name,
                      thread_id, topic, broadcast, reply_to, recalled_at, check_value)
VALUES (:id, :project_id, :sender_id, :subject, :body_md, :importance, :ack_required, :created_ts, :sender_name,
        :thread_id, :topic, :broadcast, :reply_to, :recalled_at, :check_value);

-- restore_recipients
INSERT INTO recipients (message_id, agent_id, kind, seq, read_at, acked_at, position, announced_at, announced_by)
VALUES (:message_id, :agent_id, :kind, :seq, :read_at, :acked_at, :position, :announced_at, :announced_by);

-- restore_blobs
INSERT INTO blobs (sha256, content) VALUES (:sha256, :content);

-- restore_attachments
INSERT INTO attachments (message_id, position, sha256, name, media_type, size, preview_sha256)
VALUES (:message_id, :position, :sha256, :name, :media_type, :size, :preview_sha256);

-- restore_file_reservations
INSERT INTO file_reservations (id, project_id, agent_id, pattern, prefix, exclusive, reason, created_at, expires_at,
                               ttl, released_at, released_by, release_reason)
VALUES (:id, :project_id, :agent_id, :pattern, :prefix, :exclusive, :reason, :created_at, :expires_at, :ttl,
        :released_at, :released_by, :release_reason);

-- messages_after
SELECT id, project_id, sender_id, sender_name, thread_id, subject, body_md, importance, ack_required,
       created_ts, topic, broadcast, reply_to, recalled_at
  FROM messages WHERE id > :after ORDER BY id LIMIT :limit;

-- messages_to_check
SELECT id, project_id, sender_id, sender_name, thread_id, subject, body_md, importance, ack_required,
       created_ts, topic, broadcast, reply_to, recalled_at, check_value
  FROM messages WHERE id > :after ORDER BY id LIMIT :limit;

-- go_on_counting @postgres
SELECT setval(pg_get_serial_sequence('projects', 'id'), (SELECT max(id) FROM projects)),
       setval(pg_get_serial_sequence('agents', 'id'), (SELECT max(id) FROM agents)),
       setval(pg_get_serial_sequence('messages', 'id'), (SELECT max(id) FROM messages)),
       setval(pg_get_serial_sequence('file_reservations', 'id'), (SELECT max(id) FROM file_reservations));

-- token
SELECT id, name, hash, scopes, project_id, created_at, expires_at, replaced_at, revoked_at, last_used_at
  FROM tokens WHERE id = :id;

-- tokens_named
SELECT id, name, hash, scopes, project_id, created_at, expires_at, replaced_at, revoked_at, last_used_at
  FROM tokens WHERE name = :name ORDER BY created_at, id;

-- tokens
SELECT id, name, hash, scopes, project_id, created_at, expires_at, replaced_at, revoked_at, last_used_at
  FROM tokens WHERE id > :after ORDER BY id LIMIT :limit;

-- put_token
INSERT INTO tokens (id, name, hash, scopes, project_id, created_at, expires_at, replaced_at, revoked_at, last_used_at)
VALUES (:id, :name, :hash, :scopes, :project_id, :created_at, :expires_at, :replaced_at, :revoked_at, :last_used_at)
ON CONFLICT (id) DO UPDATE
   SET name = excluded.name, hash = excluded.hash, scopes = excluded.scopes, project_id = excluded.project_id,
       created_at = excluded.created_at, expires_at = excluded.expires_at, replaced_at = excluded.replaced_at,
       revoked_at = excluded.revoked_at, last_used_at = excluded.last_used_at;

-- put_login_code
INSERT INTO login_codes (hash, ends_at) VALUES (:hash, :ends_at);

-- drop_login_codes
DELETE FROM login_codes
 WHERE hash NOT IN (SELECT hash FROM login_codes ORDER BY ends_at DESC, hash LIMIT :most);

-- take_login_code
DELETE FROM login_codes WHERE hash = :hash RETURNING ends_at;

-- ended_session
SELECT 1 FROM ended_sessions WHERE hash = :hash;

-- end_session
INSERT INTO ended_sessions (hash, ends_at) VALUES (:hash, :ends_at) ON CONFLICT (hash) DO NOTHING;

-- drop_ended_sessions
DELETE FROM ended_sessions WHERE ends_at <= :now;

-- note_token_use
UPDATE tokens SET last_used_at = :used_at WHERE id = :id AND (last_used_at IS NULL OR last_used_at < :used_at);

-- traces
SELECT name, traceparent FROM traces WHERE name IN {texts :names};

-- drop_traces
DELETE FROM traces WHERE name IN {texts :names};

-- put_trace
INSERT INTO traces (name, traceparent) VALUES (:name, :traceparent)
ON CONFLICT (name) DO UPDATE SET traceparent = excluded.traceparent;
