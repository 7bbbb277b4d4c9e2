-- A message that comes in from a chat is an inbound message, a wrong code of a pairing is a failure, a question has a
-- time-out, and who was reminded of mail was notified: the words of the field.

ALTER TABLE chat_lines RENAME TO inbound_messages;
ALTER TABLE inbound_messages RENAME COLUMN line_id TO inbound_id;
ALTER INDEX chat_lines_pkey RENAME TO inbound_messages_pkey;
ALTER INDEX chat_lines_key RENAME TO inbound_messages_key;
ALTER INDEX chat_lines_open RENAME TO inbound_messages_open;
ALTER INDEX chat_lines_open_of_session RENAME TO inbound_messages_open_of_session;
ALTER INDEX chat_lines_ended RENAME TO inbound_messages_ended;
ALTER INDEX chat_lines_newest RENAME TO inbound_messages_newest;
UPDATE run_quarantine SET kind = 'inbound' WHERE kind = 'line';

ALTER TABLE chat_guesses RENAME TO pairing_failures;
ALTER TABLE pairing_failures RENAME COLUMN wrong TO failures;
ALTER INDEX chat_guesses_pkey RENAME TO pairing_failures_pkey;

ALTER TABLE questions RENAME COLUMN patience TO timeout_ms;
ALTER TABLE agent_nudges RENAME COLUMN told_at TO notified_at;
