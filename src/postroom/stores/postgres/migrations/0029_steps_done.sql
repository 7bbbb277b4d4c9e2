-- How much of an effect is known to have happened, in the steps of its handler: what follows a text is sent once.

ALTER TABLE outbox ADD COLUMN steps_done bigint NOT NULL DEFAULT 0 CHECK (steps_done >= 0);
