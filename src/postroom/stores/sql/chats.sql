-- Chats: inbound messages by key, by id and by what is open; sessions and their threads; people, who asks, and linked chats.

-- inbound
SELECT inbound_id, platform, account, chat_id, message_id, session_key, sender_id, body, status, received_at,
       updated_at, revision, thread_id, reason
  FROM inbound_messages
 WHERE platform = :platform AND account = :account AND chat_id = :chat_id AND message_id = :message_id;

-- receive
INSERT INTO inbound_messages (platform, account, chat_id, message_id, session_key, sender_id, body, status, received_at,
                        updated_at, revision, thread_id, is_open)
VALUES (:platform, :account, :chat_id, :message_id, :session_key, :sender_id, :body, :status, :now, :now, 1, :thread_id,
        1)
ON CONFLICT (platform, account, chat_id, message_id) DO NOTHING
RETURNING inbound_id;

-- inbound_by_id
SELECT inbound_id, platform, account, chat_id, message_id, session_key, sender_id, body, status, received_at,
       updated_at, revision, thread_id, reason
  FROM inbound_messages WHERE inbound_id IN {ints :ids} ORDER BY inbound_id;

-- readable_inbound
SELECT inbound_id, platform, account, chat_id, message_id, session_key, sender_id, body, status, received_at,
       updated_at, revision, thread_id, reason
  FROM inbound_messages
 WHERE inbound_id IN {ints :ids}
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows q WHERE q.release = {release} AND q.kind = 'inbound' AND q.id = CAST(inbound_id AS text))
 ORDER BY inbound_id;

-- move
UPDATE inbound_messages
   SET status = :status, is_open = :is_open, thread_id = coalesce(:thread_id, thread_id),
       reason = coalesce(:reason, reason), updated_at = :now
 WHERE inbound_id IN {ints :ids} AND status IN {texts :before};

-- edit
UPDATE inbound_messages SET body = :body, revision = :revision, updated_at = :now WHERE inbound_id = :inbound_id;

-- open_inbound
SELECT inbound_id, platform, account, chat_id, message_id, session_key, sender_id, body, status, received_at,
       updated_at, revision, thread_id, reason
  FROM inbound_messages {index inbound_messages_open}
 WHERE is_open = 1 AND inbound_id > :after AND (CAST(:status AS text) IS NULL OR status = :status)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows q WHERE q.release = {release} AND q.kind = 'inbound' AND q.id = CAST(inbound_id AS text))
 ORDER BY inbound_id LIMIT :limit;

-- open_inbound_of_session
SELECT inbound_id, platform, account, chat_id, message_id, session_key, sender_id, body, status, received_at,
       updated_at, revision, thread_id, reason
  FROM inbound_messages {index inbound_messages_open_of_session}
 WHERE is_open = 1 AND session_key = :session_key AND inbound_id > :after
   AND (CAST(:status AS text) IS NULL OR status = :status)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows q WHERE q.release = {release} AND q.kind = 'inbound' AND q.id = CAST(inbound_id AS text))
 ORDER BY inbound_id LIMIT :limit;

-- newest
SELECT inbound_id, platform, account, chat_id, message_id, session_key, sender_id, body, status, received_at,
       updated_at, revision, thread_id, reason
  FROM inbound_messages {index inbound_messages_newest}
 WHERE platform = :platform
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows q WHERE q.release = {release} AND q.kind = 'inbound' AND q.id = CAST(inbound_id AS text))
 ORDER BY inbound_id DESC LIMIT :limit;

-- counts
SELECT status, count(*) FROM inbound_messages {index inbound_messages_open} WHERE is_open = 1 GROUP BY status
 UNION ALL
SELECT status, count(*) FROM inbound_messages {index inbound_messages_ended} WHERE is_open = 0 GROUP BY status;

-- purge
DELETE FROM inbound_messages
 WHERE inbound_id IN (SELECT inbound_id FROM inbound_messages {index inbound_messages_ended}
                    WHERE is_open = 0 AND updated_at < :older_than
                    ORDER BY updated_at, inbound_id LIMIT :limit)
RETURNING inbound_id;

-- forget_purged
DELETE FROM unreadable_rows WHERE kind = 'inbound' AND id IN {texts :ids};

-- session
SELECT session_key, thread_id, source, title, settings, created_at, updated_at, active_at, revision
  FROM chat_sessions WHERE session_key = :session_key;

-- sessions
SELECT session_key, thread_id, source, title, settings, created_at, updated_at, active_at, revision
  FROM chat_sessions
 WHERE session_key > :after
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows q WHERE q.release = {release} AND q.kind = 'session' AND q.id = session_key)
 ORDER BY session_key LIMIT :limit;

-- put_session
INSERT INTO chat_sessions (session_key, thread_id, source, title, settings, created_at, updated_at, active_at,
                           revision)
VALUES (:session_key, :thread_id, :source, :title, :settings, :created_at, :updated_at, :active_at, :revision)
ON CONFLICT (session_key) DO UPDATE
   SET thread_id = excluded.thread_id, source = excluded.source, title = excluded.title,
       settings = excluded.settings, updated_at = excluded.updated_at, active_at = excluded.active_at,
       revision = excluded.revision;

-- thread
SELECT thread_id, session_key, title, created_at, active_at
  FROM chat_conversations WHERE thread_id = :thread_id;

-- threads
SELECT thread_id, session_key, title, created_at, active_at
  FROM chat_conversations {index chat_conversations_active}
 WHERE session_key = :session_key ORDER BY active_at DESC, thread_id LIMIT :limit;

-- threads_titled
SELECT thread_id, session_key, title, created_at, active_at
  FROM chat_conversations {index chat_conversations_title}
 WHERE session_key = :session_key AND title = :title AND title IS NOT NULL LIMIT :limit;

-- take_session_away
DELETE FROM chat_sessions WHERE session_key = :session_key;

-- rename_threads
UPDATE chat_conversations SET session_key = :new_key WHERE session_key = :session_key;

-- rename_inbound
UPDATE inbound_messages SET session_key = :new_key WHERE session_key = :session_key AND is_open = 1;

-- put_thread
INSERT INTO chat_conversations (thread_id, session_key, title, created_at, active_at)
VALUES (:thread_id, :session_key, :title, :created_at, :active_at)
ON CONFLICT (thread_id) DO UPDATE SET title = excluded.title, active_at = excluded.active_at;

-- person
SELECT platform, user_id, role, name, added_at
  FROM chat_people WHERE platform = :platform AND user_id = :user_id;

-- people
SELECT platform, user_id, role, name, added_at
  FROM chat_people
 WHERE (platform, user_id) > (:after_platform, :after_id)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows q WHERE q.release = {release} AND q.kind = 'person' AND q.id = platform || ' ' || user_id)
 ORDER BY platform, user_id LIMIT :limit;

-- people_of_platform
SELECT platform, user_id, role, name, added_at
  FROM chat_people
 WHERE platform = :platform AND (platform, user_id) > (:after_platform, :after_id)
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows q WHERE q.release = {release} AND q.kind = 'person' AND q.id = platform || ' ' || user_id)
 ORDER BY user_id LIMIT :limit;

-- let_in
INSERT INTO chat_people (platform, user_id, role, name, added_at) VALUES (:platform, :user_id, :role, :name, :added_at)
ON CONFLICT (platform, user_id) DO UPDATE SET role = excluded.role, name = excluded.name
RETURNING platform, user_id, role, name, added_at;

-- shut_out
DELETE FROM chat_people WHERE platform = :platform AND user_id = :user_id;

-- pairing_failures
SELECT failures, locked_until FROM pairing_failures WHERE platform = :platform;

-- put_pairing_failures
INSERT INTO pairing_failures (platform, failures, locked_until) VALUES (:platform, :failures, :locked_until)
ON CONFLICT (platform) DO UPDATE SET failures = excluded.failures, locked_until = excluded.locked_until;

-- request_of
SELECT platform, user_id, code_hash, name, asked_at, expires_at
  FROM chat_requests WHERE platform = :platform AND user_id = :user_id;

-- drop_ended_requests
DELETE FROM chat_requests WHERE platform = :platform AND expires_at <= :now AND asked_at <= :asked_until;

-- put_request
INSERT INTO chat_requests (platform, user_id, code_hash, name, asked_at, expires_at)
VALUES (:platform, :user_id, :code_hash, :name, :asked_at, :expires_at)
ON CONFLICT (platform, user_id) DO UPDATE
   SET code_hash = excluded.code_hash, name = excluded.name, asked_at = excluded.asked_at,
       expires_at = excluded.expires_at;

-- request_with_code
SELECT platform, user_id, code_hash, name, asked_at, expires_at
  FROM chat_requests
 WHERE platform = :platform AND code_hash = :code_hash AND expires_at > :now
 ORDER BY asked_at, user_id LIMIT 1;

-- requests
SELECT platform, user_id, code_hash, name, asked_at, expires_at
  FROM chat_requests
 WHERE (CAST(:platform AS text) IS NULL OR platform = :platform) AND expires_at > :now
 ORDER BY asked_at, platform, user_id LIMIT :limit;

-- forget_request
DELETE FROM chat_requests WHERE platform = :platform AND user_id = :user_id;

-- forget_requests
DELETE FROM chat_requests WHERE platform = :platform;

-- linked_chat
SELECT platform, chat_id, person, shares, code_hash, code_until, failures, locked_until
  FROM linked_chats WHERE platform = :platform AND chat_id = :chat_id;

-- linked_chat_with_code
SELECT platform, chat_id, person, shares, code_hash, code_until, failures, locked_until
  FROM linked_chats {index linked_chats_code}
 WHERE code_hash = :code_hash AND code_hash IS NOT NULL AND code_until > :now ORDER BY platform, chat_id LIMIT 1;

-- linked_chats_of
SELECT platform, chat_id, person, shares, code_hash, code_until, failures, locked_until
  FROM linked_chats {index linked_chats_person}
 WHERE person = :person AND person IS NOT NULL ORDER BY platform, chat_id LIMIT :limit;

-- put_linked_chat
INSERT INTO linked_chats (platform, chat_id, person, shares, code_hash, code_until, failures, locked_until)
VALUES (:platform, :chat_id, :person, :shares, :code_hash, :code_until, :failures, :locked_until)
ON CONFLICT (platform, chat_id) DO UPDATE
   SET person = excluded.person, shares = excluded.shares, code_hash = excluded.code_hash,
       code_until = excluded.code_until, failures = excluded.failures, locked_until = excluded.locked_until;

-- files
SELECT thread_id, message_id, position, name, media_type, size, sha256, missing, transcript
  FROM chat_files WHERE thread_id = :thread_id AND message_id IN {texts :message_ids}
 ORDER BY thread_id, message_id, position;

-- put_file
INSERT INTO chat_files (thread_id, message_id, position, name, media_type, size, sha256, missing, transcript)
VALUES (:thread_id, :message_id, :position, :name, :media_type, :size, :sha256, :missing, :transcript)
ON CONFLICT (thread_id, message_id, position) DO UPDATE
   SET name = excluded.name, media_type = excluded.media_type, size = excluded.size, sha256 = excluded.sha256,
       missing = excluded.missing, transcript = excluded.transcript;

-- count_pieces
SELECT count(*) FROM file_pieces WHERE sha256 = :sha256;

-- piece
SELECT b.content FROM file_pieces p JOIN blobs b ON b.sha256 = p.piece
 WHERE p.sha256 = :sha256 AND p.position = :position
UNION ALL
SELECT b.content FROM blobs b
 WHERE b.sha256 = :sha256 AND :position = 0
   AND NOT EXISTS (SELECT 1 FROM file_pieces p WHERE p.sha256 = :sha256);

-- put_piece
INSERT INTO file_pieces (sha256, position, piece, stored_at) VALUES (:sha256, :position, :piece, :now)
ON CONFLICT (sha256, position) DO UPDATE SET stored_at = excluded.stored_at;

-- keep_pieces
UPDATE file_pieces SET stored_at = :now WHERE sha256 = :sha256;

-- unused_pieces
SELECT p.sha256, p.piece FROM file_pieces p
 WHERE p.sha256 IN (SELECT f.sha256 FROM file_pieces f
                     WHERE f.position = 0 AND f.stored_at < :before
                       AND NOT EXISTS (SELECT 1 FROM chat_files c WHERE c.sha256 = f.sha256)
                     ORDER BY f.stored_at LIMIT :limit);

-- drop_pieces
DELETE FROM file_pieces WHERE sha256 IN {texts :hashes} AND stored_at < :before;

-- drop_files
DELETE FROM chat_files WHERE thread_id IN {texts :thread_ids};

-- web_conversations
SELECT person, conversation_id, title, created_at, active_at
  FROM web_conversations {index web_conversations_newest}
 WHERE person = :person AND active_at < :before ORDER BY active_at DESC LIMIT :limit;

-- web_conversation
SELECT person, conversation_id, title, created_at, active_at
  FROM web_conversations WHERE person = :person AND conversation_id = :conversation_id;

-- put_web_conversation
INSERT INTO web_conversations (person, conversation_id, title, created_at, active_at)
VALUES (:person, :conversation_id, :title, :created_at, :active_at)
ON CONFLICT (person, conversation_id) DO UPDATE SET title = excluded.title, active_at = excluded.active_at;

-- drop_web_conversation
DELETE FROM web_conversations WHERE person = :person AND conversation_id = :conversation_id;

-- drop_web_entries
DELETE FROM web_entries WHERE person = :person AND conversation_id = :conversation_id;

-- web_entries
SELECT person, conversation_id, entry_id, position, body
  FROM web_entries {index web_entries_newest}
 WHERE person = :person AND conversation_id = :conversation_id AND position < :before
 ORDER BY position DESC LIMIT :limit;

-- web_entry
SELECT person, conversation_id, entry_id, position, body
  FROM web_entries WHERE person = :person AND entry_id = :entry_id;

-- put_web_entry
INSERT INTO web_entries (person, conversation_id, entry_id, position, body)
VALUES (:person, :conversation_id, :entry_id, :position, :body)
ON CONFLICT (person, entry_id) DO UPDATE SET body = excluded.body;
