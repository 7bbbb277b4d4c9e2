-- Whether an effect may have been performed already is a column, and no part of the text of its last error.

ALTER TABLE run_outbox ADD COLUMN may_have_arrived INTEGER NOT NULL DEFAULT 0 CHECK (may_have_arrived IN (0, 1));
UPDATE run_outbox SET may_have_arrived = 1
 WHERE status IN ('pending', 'claimed') AND last_error GLOB '#[0-9]* tried [0-9]*[?]: *';
UPDATE run_outbox SET last_error = substr(last_error, instr(last_error, ': ') + 2)
 WHERE last_error GLOB '#[0-9]* tried [0-9]*: *';

-- The chat in which a person is reached has columns; it stood as JSON in the place of a runner.

CREATE TABLE chat_addresses (
  agent_id   INTEGER PRIMARY KEY REFERENCES agents (id),
  platform   TEXT NOT NULL,
  chat_id    TEXT NOT NULL,
  updated_at INTEGER NOT NULL
);
CREATE INDEX chat_addresses_chat ON chat_addresses (platform, chat_id);
INSERT INTO chat_addresses (agent_id, platform, chat_id, updated_at)
SELECT agent_id, json_extract(runner, '$.platform'), json_extract(runner, '$.chat_id'), updated_at FROM runners
 WHERE runner LIKE '{"kind": "chat", %';
DELETE FROM runners WHERE runner LIKE '{"kind": "chat", %';
