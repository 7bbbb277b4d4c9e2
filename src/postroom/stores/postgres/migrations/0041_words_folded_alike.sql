-- The words of messages with other than ASCII characters are cut anew, folded as on SQLite. The program that applies this step
-- does it, in the same transaction. Messages with more than some 16,000 characters of scripts without spaces, of which the
-- index takes only the first, are found by an index of their own.

CREATE INDEX messages_cut ON messages (project_id, id) WHERE octet_length(body_md) - length(body_md) > 32000;
