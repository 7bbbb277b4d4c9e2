-- Runs that hold others of their thread back: whoever looks for due work asks for them, and read all runs to find none.

CREATE INDEX runs_holding ON runs (thread_id) WHERE status <> 'done' AND holds_others = 1;
