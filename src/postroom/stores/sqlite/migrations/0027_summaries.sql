-- What a conversation was about before its newest messages: a run reads from the newest summary on. The messages that it
-- stands for stay, and name it; one that is hidden from all later runs names 0.

ALTER TABLE run_messages ADD COLUMN summary INTEGER;
CREATE INDEX run_messages_unsummarized ON run_messages (thread_id, seq) WHERE summary IS NULL;

CREATE TABLE run_summaries (
  thread_id TEXT NOT NULL,
  number INTEGER NOT NULL CHECK (number > 0),
  since INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (thread_id, number)
) STRICT, WITHOUT ROWID;
