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

-- Runs of agents that have begun and not ended, and what they ask a person before they can go on.
CREATE TABLE sittings (
  run_id   TEXT PRIMARY KEY,
  agent_id INTEGER NOT NULL REFERENCES agents (id),
  began_at INTEGER NOT NULL
);

CREATE TABLE questions (
  run_id      TEXT NOT NULL REFERENCES sittings (run_id) ON DELETE CASCADE,
  question_id TEXT NOT NULL,
  text        TEXT NOT NULL,
  asked_at    INTEGER NOT NULL,
  PRIMARY KEY (run_id, question_id)
) WITHOUT ROWID;
