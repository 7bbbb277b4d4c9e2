-- Whether a run waits with questions: its thread's other runs wait until it has ended.

ALTER TABLE runs ADD COLUMN holds_others INTEGER NOT NULL DEFAULT 0 CHECK (holds_others IN (0, 1));
UPDATE runs SET holds_others = 1 WHERE status = 'waiting' AND json_array_length(body, '$.waiting.tickets') > 0;
