-- Chats get the columns that they have on SQLite: `is_open` says what `status` does, for the indexes.

DROP INDEX chat_lines_open;
DROP INDEX chat_lines_open_of_session;
DROP INDEX chat_lines_ended;
ALTER TABLE chat_lines DROP COLUMN open_id, DROP COLUMN ended_at, ADD COLUMN is_open bigint;
UPDATE chat_lines SET is_open = CASE WHEN status IN ('waiting', 'handed_over') THEN 1 ELSE 0 END;
ALTER TABLE chat_lines
  ALTER COLUMN is_open SET NOT NULL,
  ADD CHECK (is_open = CASE WHEN status IN ('waiting', 'handed_over') THEN 1 ELSE 0 END),
  ALTER COLUMN sender_id TYPE text COLLATE "C",
  ALTER COLUMN body TYPE text COLLATE "C",
  ALTER COLUMN reason TYPE text COLLATE "C";
CREATE INDEX chat_lines_open ON chat_lines (line_id) INCLUDE (status) WHERE is_open = 1;
CREATE INDEX chat_lines_open_of_session ON chat_lines (session_key, line_id) INCLUDE (status) WHERE is_open = 1;
CREATE INDEX chat_lines_ended ON chat_lines (updated_at, line_id) INCLUDE (status) WHERE is_open = 0;

-- Up to where each chat is known: an adapter asks its platform for what came after.
CREATE INDEX chat_lines_newest ON chat_lines (platform, line_id);

ALTER TABLE chat_sessions
  ALTER COLUMN source TYPE text COLLATE "C",
  ALTER COLUMN settings TYPE text COLLATE "C";
ALTER TABLE chat_people ALTER COLUMN name TYPE text COLLATE "C";
ALTER TABLE chat_requests ALTER COLUMN name TYPE text COLLATE "C";
ALTER TABLE chat_guesses ALTER COLUMN wrong TYPE bigint;
