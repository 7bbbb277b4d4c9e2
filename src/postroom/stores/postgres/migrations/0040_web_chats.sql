-- The chat page: its conversations, and the entries that each of them shows.

CREATE TABLE web_conversations (
  person          text COLLATE "C" NOT NULL,
  conversation_id text COLLATE "C" NOT NULL,
  title           text COLLATE "C" NOT NULL,
  created_at      bigint NOT NULL,
  active_at       bigint NOT NULL,
  PRIMARY KEY (person, conversation_id)
);
CREATE INDEX web_conversations_newest ON web_conversations (person, active_at);

CREATE TABLE web_entries (
  person          text COLLATE "C" NOT NULL,
  entry_id        text COLLATE "C" NOT NULL,
  conversation_id text COLLATE "C" NOT NULL,
  position        bigint NOT NULL,
  body            text COLLATE "C" NOT NULL,
  PRIMARY KEY (person, entry_id)
);
CREATE INDEX web_entries_newest ON web_entries (person, conversation_id, position);
