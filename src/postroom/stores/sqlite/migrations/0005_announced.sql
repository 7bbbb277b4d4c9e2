-- What a recipient was told of, by whom; which agent a client's session acts as; what hooks said to an agent.

ALTER TABLE recipients ADD COLUMN announced_at INTEGER;
ALTER TABLE recipients ADD COLUMN announced_by TEXT CHECK ((announced_by IS NULL) = (announced_at IS NULL));

CREATE TABLE client_sessions (
  client     TEXT NOT NULL,
  session_id TEXT NOT NULL,
  agent_id   INTEGER NOT NULL REFERENCES agents (id),
  bound_at   INTEGER NOT NULL,
  PRIMARY KEY (client, session_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX client_sessions_bound ON client_sessions (bound_at);
CREATE INDEX client_sessions_agent ON client_sessions (agent_id);

-- `held_seq`: the newest letter for which a turn was held; `told_at`: when a line was last given mid-turn.
CREATE TABLE agent_nudges (
  agent_id INTEGER PRIMARY KEY REFERENCES agents (id),
  held_seq INTEGER NOT NULL,
  told_at  INTEGER NOT NULL
) STRICT;
