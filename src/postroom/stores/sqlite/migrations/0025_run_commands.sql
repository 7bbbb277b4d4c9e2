-- What was asked of a run while another process had it: to end, or to go on with a decision.

CREATE TABLE run_commands (
  dispatch_id TEXT NOT NULL,
  call_id TEXT NOT NULL,
  body TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (dispatch_id, call_id)
) STRICT, WITHOUT ROWID;
