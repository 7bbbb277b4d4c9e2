-- A check value of each message's subject, text and topic, computed when the message is written. NULL: the message
-- was written by an earlier release, or was recalled.
ALTER TABLE messages ADD COLUMN check_value INTEGER;
