-- Whether a run waits with questions: its thread's other runs wait until it has ended.

ALTER TABLE runs ADD COLUMN holds_others bigint NOT NULL DEFAULT 0 CHECK (holds_others IN (0, 1));
UPDATE runs SET holds_others = 1 WHERE status = 'waiting' AND jsonb_array_length(coalesce(body::jsonb #> '{waiting,tickets}', '[]')) > 0;
