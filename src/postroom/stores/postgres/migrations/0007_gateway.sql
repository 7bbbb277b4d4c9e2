-- Whether an effect may have been performed already is a column, and no part of the text of its last error.

ALTER TABLE run_outbox ADD COLUMN may_have_arrived bigint NOT NULL DEFAULT 0 CHECK (may_have_arrived IN (0, 1));
UPDATE run_outbox SET may_have_arrived = 1
 WHERE status IN ('pending', 'claimed') AND last_error ~ '^#[0-9]+ tried [0-9]+[?]: ';
UPDATE run_outbox SET last_error = regexp_replace(last_error, '^#[0-9]+ tried [0-9]+[?]?: ', '')
 WHERE last_error ~ '^#[0-9]+ tried [0-9]+[?]?: ';

-- The chat in which a person is reached has columns; it stood as JSON in the place of a runner.

CREATE TABLE chat_addresses (
  agent_id   bigint PRIMARY KEY REFERENCES agents (id),
  platform   text COLLATE "C" NOT NULL,
  chat_id    text COLLATE "C" NOT NULL,
  updated_at bigint NOT NULL
);
CREATE INDEX chat_addresses_chat ON chat_addresses (platform, chat_id);
INSERT INTO chat_addresses (agent_id, platform, chat_id, updated_at)
SELECT agent_id, runner::json ->> 'platform', runner::json ->> 'chat_id', updated_at FROM runners
 WHERE runner LIKE '{"kind": "chat", %';
DELETE FROM runners WHERE runner LIKE '{"kind": "chat", %';
