-- How long a question waits for its answer, in milliseconds, and what its silence means then.

ALTER TABLE questions ADD COLUMN patience INTEGER CHECK (patience > 0);
ALTER TABLE questions ADD COLUMN on_timeout TEXT NOT NULL DEFAULT 'wait'
  CHECK (on_timeout IN ('wait', 'cancel', 'no') AND (patience IS NULL) = (on_timeout = 'wait'));
