-- Notes: short facts of a project; which session or run was given which; and subscriptions to events.

CREATE TABLE notes (
  id          INTEGER PRIMARY KEY,
  project_id  INTEGER NOT NULL,
  subject     TEXT NOT NULL,
  body        TEXT NOT NULL,
  paths       TEXT NOT NULL,
  task_id     INTEGER,
  author_id   INTEGER NOT NULL,
  run_id      TEXT NOT NULL,
  commit_name TEXT NOT NULL,
  replaces    TEXT NOT NULL,
  replaced_by INTEGER,
  created_at  INTEGER NOT NULL,
  ends_at     INTEGER NOT NULL
) STRICT;
CREATE INDEX notes_active ON notes (project_id, ends_at);

CREATE TABLE notes_given (
  place    TEXT NOT NULL,
  note_id  INTEGER NOT NULL,
  given_at INTEGER NOT NULL,
  PRIMARY KEY (place, note_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX notes_given_at ON notes_given (given_at, place, note_id);

CREATE TABLE subscriptions (
  id         INTEGER PRIMARY KEY,
  project_id INTEGER NOT NULL,
  agent_id   INTEGER NOT NULL,
  kind       TEXT NOT NULL,
  about      TEXT NOT NULL,
  is_once    INTEGER NOT NULL CHECK (is_once IN (0, 1)),
  cursor     INTEGER NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX subscriptions_of_project ON subscriptions (project_id, cursor);
CREATE INDEX subscriptions_of_agent ON subscriptions (agent_id);
