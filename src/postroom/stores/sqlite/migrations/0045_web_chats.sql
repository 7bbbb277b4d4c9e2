-- The chat page: its conversations, and the entries that each of them shows.

CREATE TABLE web_conversations (
  person          TEXT NOT NULL,
  conversation_id TEXT NOT NULL,
  title           TEXT NOT NULL,
  created_at      INTEGER NOT NULL,
  active_at       INTEGER NOT NULL,
  PRIMARY KEY (person, conversation_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX web_conversations_newest ON web_conversations (person, active_at);

CREATE TABLE web_entries (
  person          TEXT NOT NULL,
  entry_id        TEXT NOT NULL,
  conversation_id TEXT NOT NULL,
  position        INTEGER NOT NULL,
  body            TEXT NOT NULL,
  PRIMARY KEY (person, entry_id)
) STRICT;
CREATE INDEX web_entries_newest ON web_entries (person, conversation_id, position);
