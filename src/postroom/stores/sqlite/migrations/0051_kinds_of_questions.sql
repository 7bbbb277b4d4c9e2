-- The kind of answer that a question takes, and questions that a person put off until a time.

ALTER TABLE questions ADD COLUMN asked TEXT NOT NULL DEFAULT '{}';

CREATE TABLE snoozed_questions (
  run_id      TEXT NOT NULL,
  question_id TEXT NOT NULL,
  until       INTEGER NOT NULL,
  snoozed_by  TEXT NOT NULL,
  PRIMARY KEY (run_id, question_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX snoozed_until ON snoozed_questions (until);
