-- Tasks that agents claim, each under a lease with an epoch, and what they depend on.

CREATE TABLE tasks (
  id                INTEGER PRIMARY KEY,
  project_id        INTEGER NOT NULL,
  title             TEXT NOT NULL,
  body_md           TEXT NOT NULL,
  paths             TEXT NOT NULL,
  priority          INTEGER NOT NULL,
  assignee          TEXT NOT NULL,
  acceptance        TEXT NOT NULL,
  state             TEXT NOT NULL CHECK (state IN ('ready', 'claimed', 'review', 'blocked', 'waiting', 'done', 'cancelled')),
  open_dependencies INTEGER NOT NULL CHECK (open_dependencies >= 0),
  author_id         INTEGER NOT NULL,
  holder_id         INTEGER,
  epoch             INTEGER NOT NULL DEFAULT 0,
  lease_ms          INTEGER NOT NULL DEFAULT 0,
  lease_ends_at     INTEGER,
  claimed_at        INTEGER,
  run_id            TEXT NOT NULL DEFAULT '',
  reason            TEXT NOT NULL DEFAULT '',
  commit_name       TEXT NOT NULL DEFAULT '',
  output            TEXT NOT NULL DEFAULT '',
  result            TEXT NOT NULL DEFAULT '',
  created_at        INTEGER NOT NULL,
  changed_at        INTEGER NOT NULL,
  changed_by        INTEGER,
  CHECK ((state = 'claimed') = (lease_ends_at IS NOT NULL)),
  CHECK (state <> 'claimed' OR holder_id IS NOT NULL)
) STRICT;
CREATE INDEX tasks_ready ON tasks (project_id, assignee, priority, id) WHERE state = 'ready';
CREATE INDEX tasks_listed ON tasks (project_id, state, priority, id);
CREATE INDEX tasks_ended ON tasks (project_id, state, changed_at, id) WHERE state IN ('done', 'cancelled');
CREATE INDEX tasks_leases ON tasks (project_id, lease_ends_at) WHERE state = 'claimed';
CREATE INDEX tasks_held ON tasks (holder_id) WHERE state = 'claimed';
CREATE INDEX tasks_in_run ON tasks (run_id) WHERE state = 'claimed' AND run_id <> '';

CREATE TABLE task_dependencies (
  task_id    INTEGER NOT NULL REFERENCES tasks (id),
  depends_on INTEGER NOT NULL REFERENCES tasks (id),
  PRIMARY KEY (task_id, depends_on)
) STRICT, WITHOUT ROWID;
CREATE INDEX task_dependents ON task_dependencies (depends_on);

-- Whether an agent gets tasks without asking: the server claims them for it, and runs it with each.
ALTER TABLE runners ADD COLUMN claims_tasks INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runners_claiming ON runners (agent_id) WHERE claims_tasks = 1;
