-- The index holds words as the function indexed_text folds them, so FTS5 folds nothing itself: its tables know fewer letters
-- than those of PostgreSQL's side. Messages with more than some 16,000 characters of scripts without spaces, of which the
-- index takes only the first, are found by an index of their own.

DROP TABLE messages_fts;
CREATE VIRTUAL TABLE messages_fts USING fts5 (subject, body_md, sender_name, topic, content = '', tokenize = 'ascii');
INSERT INTO messages_fts (rowid, subject, body_md, sender_name, topic)
SELECT id, indexed_text(subject), indexed_text(body_md), indexed_text(sender_name), indexed_text(topic)
  FROM messages WHERE id <= (SELECT indexed_to FROM search_index_progress);

CREATE INDEX messages_cut ON messages (project_id, id) WHERE length(CAST(body_md AS BLOB)) - length(body_md) > 32000;
