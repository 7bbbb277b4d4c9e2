-- A message that comes in from a chat is an inbound message, a wrong code of a pairing is a failure, a question has a
-- time-out, and who was reminded of mail was notified: the words of the field.

DROP INDEX chat_lines_key;
DROP INDEX chat_lines_open;
DROP INDEX chat_lines_open_of_session;
DROP INDEX chat_lines_ended;
DROP INDEX chat_lines_newest;
ALTER TABLE chat_lines RENAME TO inbound_messages;
ALTER TABLE inbound_messages RENAME COLUMN line_id TO inbound_id;
CREATE UNIQUE INDEX inbound_messages_key ON inbound_messages (platform, account, chat_id, message_id);
CREATE INDEX inbound_messages_open ON inbound_messages (inbound_id, status) WHERE is_open = 1;
CREATE INDEX inbound_messages_open_of_session ON inbound_messages (session_key, inbound_id, status) WHERE is_open = 1;
CREATE INDEX inbound_messages_ended ON inbound_messages (updated_at, inbound_id, status) WHERE is_open = 0;
CREATE INDEX inbound_messages_newest ON inbound_messages (platform, inbound_id);
UPDATE run_quarantine SET kind = 'inbound' WHERE kind = 'line';

ALTER TABLE chat_guesses RENAME TO pairing_failures;
ALTER TABLE pairing_failures RENAME COLUMN wrong TO failures;

ALTER TABLE questions RENAME COLUMN patience TO timeout_ms;
ALTER TABLE agent_nudges RENAME COLUMN told_at TO notified_at;

ALTER TABLE settled RENAME TO search_index_progress;
ALTER TABLE search_index_progress RENAME COLUMN settled_to TO indexed_to;
