-- In which run, or in which session of a client, a path was reserved: its end releases that and nothing else.

ALTER TABLE file_reservations ADD COLUMN reserved_in TEXT NOT NULL DEFAULT '';
CREATE INDEX file_reservations_in ON file_reservations (reserved_in) WHERE released_at IS NULL AND reserved_in <> '';
