-- Budgets with windows: when each ends, and who asks for all whose budget is used up; what they hold back in the queue.

ALTER TABLE run_spending ADD COLUMN window_end INTEGER NOT NULL DEFAULT 0;
ALTER TABLE run_spending ADD COLUMN asked_by TEXT NOT NULL DEFAULT '';
ALTER TABLE run_spending ADD COLUMN is_refused INTEGER NOT NULL DEFAULT 0 CHECK (is_refused IN (0, 1));
CREATE INDEX run_spending_asked ON run_spending (window_end) WHERE asked_by <> '';
CREATE INDEX run_spending_old ON run_spending (window_end) WHERE window_end > 0;

ALTER TABLE run_dispatches ADD COLUMN held_by TEXT NOT NULL DEFAULT '';
ALTER TABLE run_dispatches ADD COLUMN held_until INTEGER NOT NULL DEFAULT 0;
CREATE INDEX run_dispatches_held ON run_dispatches (held_until, held_by) WHERE held_until > 0;
