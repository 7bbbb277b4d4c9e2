-- Whether a run waits with questions: its thread's other runs wait behind it.

ALTER TABLE runs ADD COLUMN asks bigint NOT NULL DEFAULT 0 CHECK (asks IN (0, 1));
UPDATE runs SET asks = 1 WHERE status = 'waiting' AND jsonb_array_length(coalesce(body::jsonb #> '{waiting,tickets}', '[]')) > 0;
