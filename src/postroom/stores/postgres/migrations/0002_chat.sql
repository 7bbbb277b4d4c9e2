-- Chats: lines as they came in, sessions and their conversations, people and who asks to be let in.

-- A number of `line_id` is taken before its row can be seen, so that a lower one may come to light after a higher.
CREATE TABLE chat_lines (
  line_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  platform    text COLLATE "C" NOT NULL CHECK (btrim(platform, E' \t\n\r\f\v') <> ''),
  account     text COLLATE "C" NOT NULL CHECK (btrim(account, E' \t\n\r\f\v') <> ''),
  chat_id     text COLLATE "C" NOT NULL CHECK (btrim(chat_id, E' \t\n\r\f\v') <> ''),
  message_id  text COLLATE "C" NOT NULL CHECK (btrim(message_id, E' \t\n\r\f\v') <> ''),
  session_key text COLLATE "C" NOT NULL CHECK (btrim(session_key, E' \t\n\r\f\v') <> ''),
  sender_id   text,
  body        text NOT NULL,
  status      text COLLATE "C" NOT NULL
              CHECK (status IN ('waiting', 'handed_over', 'done', 'failed', 'rejected', 'retracted')),
  received_at bigint NOT NULL,
  updated_at  bigint NOT NULL,
  revision    bigint NOT NULL CHECK (revision > 0),
  thread_id   text COLLATE "C",
  reason      text,
  -- For the indexes: null once the line is not open, and until then. By these names alone are open lines and
  -- ended ones looked for, so that no plan can take the way over all there ever were.
  open_id     bigint GENERATED ALWAYS AS
              (CASE WHEN status IN ('waiting', 'handed_over') THEN line_id END) STORED,
  ended_at    bigint GENERATED ALWAYS AS
              (CASE WHEN status IN ('waiting', 'handed_over') THEN NULL ELSE updated_at END) STORED,
  CONSTRAINT chat_lines_key UNIQUE (platform, account, chat_id, message_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);

CREATE INDEX chat_lines_open ON chat_lines (open_id) INCLUDE (status) WHERE open_id IS NOT NULL;
CREATE INDEX chat_lines_open_of_session ON chat_lines (session_key, open_id) INCLUDE (status)
  WHERE open_id IS NOT NULL;
CREATE INDEX chat_lines_ended ON chat_lines (ended_at, line_id) INCLUDE (status) WHERE ended_at IS NOT NULL;

CREATE TABLE chat_sessions (
  session_key text COLLATE "C" PRIMARY KEY CHECK (btrim(session_key, E' \t\n\r\f\v') <> ''),
  thread_id   text COLLATE "C" NOT NULL UNIQUE CHECK (btrim(thread_id, E' \t\n\r\f\v') <> ''),
  source      text NOT NULL,
  title       text COLLATE "C",
  settings    text NOT NULL,
  created_at  bigint NOT NULL,
  updated_at  bigint NOT NULL,
  active_at   bigint NOT NULL,
  revision    bigint NOT NULL CHECK (revision > 0)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE chat_conversations (
  thread_id   text COLLATE "C" PRIMARY KEY CHECK (btrim(thread_id, E' \t\n\r\f\v') <> ''),
  session_key text COLLATE "C" NOT NULL CHECK (btrim(session_key, E' \t\n\r\f\v') <> ''),
  title       text COLLATE "C",
  created_at  bigint NOT NULL,
  active_at   bigint NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX chat_conversations_title ON chat_conversations (session_key, title) WHERE title IS NOT NULL;
CREATE INDEX chat_conversations_active ON chat_conversations (session_key, active_at DESC, thread_id);

CREATE TABLE chat_people (
  platform text COLLATE "C" NOT NULL CHECK (btrim(platform, E' \t\n\r\f\v') <> ''),
  user_id  text COLLATE "C" NOT NULL CHECK (btrim(user_id, E' \t\n\r\f\v') <> ''),
  role     text COLLATE "C" NOT NULL CHECK (role IN ('owner', 'operator', 'member', 'viewer')),
  name     text,
  added_at bigint NOT NULL,
  PRIMARY KEY (platform, user_id)
);

-- One request a person; the code itself is nowhere.
CREATE TABLE chat_requests (
  platform   text COLLATE "C" NOT NULL CHECK (btrim(platform, E' \t\n\r\f\v') <> ''),
  user_id    text COLLATE "C" NOT NULL CHECK (btrim(user_id, E' \t\n\r\f\v') <> ''),
  code_hash  text COLLATE "C" NOT NULL CHECK (btrim(code_hash, E' \t\n\r\f\v') <> ''),
  name       text,
  asked_at   bigint NOT NULL,
  expires_at bigint NOT NULL,
  PRIMARY KEY (platform, user_id)
);

-- Wrong codes since the last right one, and until when no more are looked at. The row is its platform's lock.
CREATE TABLE chat_guesses (
  platform     text COLLATE "C" PRIMARY KEY,
  wrong        integer NOT NULL CHECK (wrong >= 0),
  locked_until bigint NOT NULL
) WITH (fillfactor = 50);

-- Looked through by people, and cleared away, without reading what is still to be done.
CREATE INDEX run_outbox_dead ON run_outbox (outbox_id, lane) WHERE status = 'dead_letter';
CREATE INDEX run_outbox_delivered ON run_outbox (created_at, place) WHERE status = 'delivered';

-- Of those with the same key none is taken before an older one is done: answers stand in a chat in order.
ALTER TABLE run_outbox ADD COLUMN order_key text COLLATE "C";
CREATE INDEX run_outbox_in_line ON run_outbox (lane, target, order_key, place)
  WHERE status IN ('pending', 'claimed') AND order_key IS NOT NULL;
