-- Agents that postroom runs itself, what their runs made of the letters that woke them, and which letters
-- tell the end of a run. Most agents and letters have no row here.

CREATE TABLE runners (
  agent_id    INTEGER PRIMARY KEY REFERENCES agents (id),
  runner      TEXT NOT NULL,
  declared_by TEXT NOT NULL CHECK (declared_by IN ('operator', 'file')),
  updated_at  INTEGER NOT NULL
);

CREATE TABLE handlings (
  message_id  INTEGER NOT NULL,
  agent_id    INTEGER NOT NULL,
  run_id      TEXT NOT NULL,
  injected_at INTEGER NOT NULL,
  ended_at    INTEGER,
  failure     TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (message_id, agent_id),
  FOREIGN KEY (message_id, agent_id) REFERENCES recipients (message_id, agent_id)
) WITHOUT ROWID;

CREATE TABLE run_answers (
  message_id INTEGER PRIMARY KEY REFERENCES messages (id),
  run_id     TEXT NOT NULL
);
