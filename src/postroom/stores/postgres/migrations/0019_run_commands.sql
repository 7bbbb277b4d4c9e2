-- What was asked of a run while another process had it: to end, or to go on with a decision.

CREATE TABLE run_commands (
  dispatch_id text COLLATE "C" NOT NULL,
  call_id text COLLATE "C" NOT NULL,
  body text COLLATE "C" NOT NULL,
  created_at bigint NOT NULL,
  PRIMARY KEY (dispatch_id, call_id)
);
