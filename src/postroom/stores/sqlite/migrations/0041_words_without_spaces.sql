-- The search index finds words of scripts without spaces, and symbols. FTS5 cannot cut these, so the index holds the
-- texts as the function indexed_text writes them, and no reference to the texts of messages.

DROP TRIGGER messages_reindexed;
DROP TABLE messages_fts;
CREATE VIRTUAL TABLE messages_fts USING fts5 (
  subject, body_md, sender_name, topic, content = '', tokenize = 'unicode61 remove_diacritics 2'
);
INSERT INTO messages_fts (rowid, subject, body_md, sender_name, topic)
SELECT id, indexed_text(subject), indexed_text(body_md), indexed_text(sender_name), indexed_text(topic)
  FROM messages WHERE id <= (SELECT indexed_to FROM search_index_progress);

CREATE TRIGGER messages_reindexed AFTER UPDATE OF subject, body_md, sender_name, topic ON messages
  WHEN OLD.id <= (SELECT indexed_to FROM search_index_progress)
BEGIN
  INSERT INTO messages_fts (messages_fts, rowid, subject, body_md, sender_name, topic)
  VALUES ('delete', OLD.id, indexed_text(OLD.subject), indexed_text(OLD.body_md), indexed_text(OLD.sender_name),
          indexed_text(OLD.topic));
  INSERT INTO messages_fts (rowid, subject, body_md, sender_name, topic)
  VALUES (NEW.id, indexed_text(NEW.subject), indexed_text(NEW.body_md), indexed_text(NEW.sender_name),
          indexed_text(NEW.topic));
END;
