-- Chats: lines as they came in, sessions and their conversations, people and who asks to be let in.
--
-- The CHECKs are written as those of the runs are, and for the same reasons.

-- AUTOINCREMENT: the id of a line that was removed names a message on a thread, and is never given again.
-- `is_open` says what `status` does, for the indexes.
CREATE TABLE chat_lines (
  line_id     INTEGER PRIMARY KEY AUTOINCREMENT,
  platform    TEXT NOT NULL CHECK (platform > '!' OR trim(platform, char(9, 10, 13, 32)) <> ''),
  account     TEXT NOT NULL CHECK (account > '!' OR trim(account, char(9, 10, 13, 32)) <> ''),
  chat_id     TEXT NOT NULL CHECK (chat_id > '!' OR trim(chat_id, char(9, 10, 13, 32)) <> ''),
  message_id  TEXT NOT NULL CHECK (message_id > '!' OR trim(message_id, char(9, 10, 13, 32)) <> ''),
  session_key TEXT NOT NULL CHECK (session_key > '!' OR trim(session_key, char(9, 10, 13, 32)) <> ''),
  sender_id   TEXT,
  body        TEXT NOT NULL,
  status      TEXT NOT NULL,
  received_at INTEGER NOT NULL,
  updated_at  INTEGER NOT NULL,
  revision    INTEGER NOT NULL CHECK (revision > 0),
  thread_id   TEXT,
  reason      TEXT,
  is_open     INTEGER NOT NULL,
  CHECK (CASE
         WHEN status IN ('waiting', 'handed_over') THEN is_open = 1
         WHEN status IN ('done', 'failed') OR status IN ('rejected', 'retracted') THEN is_open = 0
         ELSE 0
         END)
) STRICT;
CREATE UNIQUE INDEX chat_lines_key ON chat_lines (platform, account, chat_id, message_id);

-- What is open, all in all and by session, so that finding it costs what is open; the rest by age.
CREATE INDEX chat_lines_open ON chat_lines (line_id, status) WHERE is_open = 1;
CREATE INDEX chat_lines_open_of_session ON chat_lines (session_key, line_id, status) WHERE is_open = 1;
CREATE INDEX chat_lines_ended ON chat_lines (updated_at, line_id, status) WHERE is_open = 0;

CREATE TABLE chat_sessions (
  session_key TEXT NOT NULL PRIMARY KEY
              CHECK (session_key > '!' OR trim(session_key, char(9, 10, 13, 32)) <> ''),
  thread_id   TEXT NOT NULL UNIQUE CHECK (thread_id > '!' OR trim(thread_id, char(9, 10, 13, 32)) <> ''),
  source      TEXT NOT NULL,
  title       TEXT,
  settings    TEXT NOT NULL,
  created_at  INTEGER NOT NULL,
  updated_at  INTEGER NOT NULL,
  active_at   INTEGER NOT NULL,
  revision    INTEGER NOT NULL CHECK (revision > 0)
) STRICT;

CREATE TABLE chat_conversations (
  thread_id   TEXT NOT NULL PRIMARY KEY
              CHECK (thread_id > '!' OR trim(thread_id, char(9, 10, 13, 32)) <> ''),
  session_key TEXT NOT NULL CHECK (session_key > '!' OR trim(session_key, char(9, 10, 13, 32)) <> ''),
  title       TEXT,
  created_at  INTEGER NOT NULL,
  active_at   INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX chat_conversations_title ON chat_conversations (session_key, title) WHERE title IS NOT NULL;
CREATE INDEX chat_conversations_active ON chat_conversations (session_key, active_at DESC, thread_id);

CREATE TABLE chat_people (
  platform TEXT NOT NULL CHECK (platform > '!' OR trim(platform, char(9, 10, 13, 32)) <> ''),
  user_id  TEXT NOT NULL CHECK (user_id > '!' OR trim(user_id, char(9, 10, 13, 32)) <> ''),
  role     TEXT NOT NULL CHECK (role IN ('owner', 'operator') OR role IN ('member', 'viewer')),
  name     TEXT,
  added_at INTEGER NOT NULL,
  PRIMARY KEY (platform, user_id)
) STRICT, WITHOUT ROWID;

-- One request a person; the code itself is nowhere.
CREATE TABLE chat_requests (
  platform   TEXT NOT NULL CHECK (platform > '!' OR trim(platform, char(9, 10, 13, 32)) <> ''),
  user_id    TEXT NOT NULL CHECK (user_id > '!' OR trim(user_id, char(9, 10, 13, 32)) <> ''),
  code_hash  TEXT NOT NULL CHECK (code_hash > '!' OR trim(code_hash, char(9, 10, 13, 32)) <> ''),
  name       TEXT,
  asked_at   INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  PRIMARY KEY (platform, user_id)
) STRICT, WITHOUT ROWID;

-- Wrong codes since the last right one, and until when no more are looked at.
CREATE TABLE chat_guesses (
  platform     TEXT NOT NULL PRIMARY KEY,
  wrong        INTEGER NOT NULL CHECK (wrong >= 0),
  locked_until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Looked through by people, and cleared away, without reading what is still to be done.
CREATE INDEX run_outbox_dead ON run_outbox (outbox_id, lane) WHERE status = 'dead_letter';
CREATE INDEX run_outbox_delivered ON run_outbox (created_at, place) WHERE status = 'delivered';

-- Of those with the same key none is taken before an older one is done: answers stand in a chat in order.
ALTER TABLE run_outbox ADD COLUMN order_key TEXT;
CREATE INDEX run_outbox_in_line ON run_outbox (lane, target, order_key, place)
  WHERE status IN ('pending', 'claimed') AND order_key IS NOT NULL;

-- Up to where each chat is known: an adapter asks its platform for what came after.
CREATE INDEX chat_lines_newest ON chat_lines (platform, line_id);
