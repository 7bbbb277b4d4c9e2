-- Executions that the end of a server, or a lost lease, has cut off are counted apart from failures of the work, with a
-- bound of their own. A row without that bound counts each of them as a failed attempt, as earlier releases do.
ALTER TABLE run_dispatches ADD COLUMN interruption_count bigint NOT NULL DEFAULT 0 CHECK (interruption_count >= 0);
ALTER TABLE run_dispatches ADD COLUMN max_interruptions bigint CHECK (max_interruptions >= 0);

-- Queued runs that have started before: a budget counts them beside those that execute.
CREATE INDEX run_dispatches_again ON run_dispatches (available_at, tenant, limit_key)
  WHERE status = 'Queued' AND attempt_count + interruption_count > 0;

-- How many runs of an agent may execute at once, each of another mail thread.
ALTER TABLE agents ADD COLUMN runs_at_once bigint NOT NULL DEFAULT 1 CHECK (runs_at_once >= 1);
