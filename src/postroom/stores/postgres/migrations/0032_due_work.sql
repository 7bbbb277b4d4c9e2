-- after: 0031
--
-- An index for one question has a condition that only this question states. The planner takes an index of nothing but
-- open rows, when few are open, for any other question whose conditions imply that of the index, as well, and reads it
-- from end to end; beside a transaction that stays open it passes over all that was ever open. The release
-- before finds its rows by other indexes of these tables meanwhile.

DROP INDEX run_dispatches_urgent, run_dispatches_due, run_dispatches_of_tenant, run_dispatches_run, runs_open;
CREATE INDEX run_dispatches_urgent ON run_dispatches (priority, created_at, dispatch_id)
  INCLUDE (available_at, thread_id) WHERE status = 'Queued' AND is_open = 1;
CREATE INDEX run_dispatches_due ON run_dispatches (available_at) INCLUDE (thread_id)
  WHERE status = 'Queued' AND is_open = 1;
CREATE INDEX run_dispatches_of_tenant ON run_dispatches (tenant, priority, created_at, dispatch_id)
  WHERE status = 'Queued' AND is_open = 1 AND tenant <> '';
CREATE UNIQUE INDEX run_dispatches_run ON run_dispatches (run_id) WHERE is_open = 1 AND run_id > '';
CREATE INDEX runs_open ON runs (run_id) WHERE status <> 'done' AND run_id > '';
