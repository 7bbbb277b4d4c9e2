-- The kind of answer that a question takes, and questions that a person put off until a time.

ALTER TABLE questions ADD COLUMN asked text COLLATE "C" NOT NULL DEFAULT '{}';

CREATE TABLE snoozed_questions (
  run_id      text COLLATE "C" NOT NULL,
  question_id text COLLATE "C" NOT NULL,
  until       bigint NOT NULL,
  snoozed_by  text COLLATE "C" NOT NULL,
  PRIMARY KEY (run_id, question_id)
);
CREATE INDEX snoozed_until ON snoozed_questions (until);
