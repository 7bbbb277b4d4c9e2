-- Questions are found by their numbers, by the time when their wait ends, and those of a project or of chats by the time when
-- they were asked or answered.
--
-- `home` is the part of the thread's name before its first slash: a project, or all chats.

CREATE TABLE run_questions (
  run_id      TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
  number      TEXT NOT NULL,
  call_id     TEXT NOT NULL,
  home        TEXT NOT NULL,
  asked_at    INTEGER NOT NULL,
  answered_at INTEGER,
  ends_at     INTEGER,
  PRIMARY KEY (run_id, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX run_questions_number ON run_questions (number);
CREATE INDEX run_questions_open ON run_questions (home, asked_at, run_id) WHERE answered_at IS NULL;
CREATE INDEX run_questions_answered ON run_questions (home, answered_at) WHERE answered_at IS NOT NULL;
CREATE INDEX run_questions_ends ON run_questions (ends_at, run_id) WHERE ends_at IS NOT NULL;

-- The `updated_at` of the run when its questions were stored there. An older release leaves it as it is.
ALTER TABLE runs ADD COLUMN numbered_at INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_unnumbered ON runs (run_id) WHERE status = 'waiting' AND numbered_at <> updated_at;
