-- What earlier versions called a letter is a message.

UPDATE project_events SET kind = 'message.' || substr(kind, 8) WHERE kind IN ('letter.sent', 'letter.recalled');
UPDATE traces SET name = 'message/' || substr(name, 8) WHERE name LIKE 'letter/%';
UPDATE run_outbox SET lane = 'mail' WHERE lane = 'letters';
