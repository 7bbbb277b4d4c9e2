-- Since when bytes are there, so that those of a file on its way are kept until its message has them.

ALTER TABLE file_pieces ADD COLUMN stored_at INTEGER NOT NULL DEFAULT 0;
CREATE INDEX chat_files_bytes ON chat_files (sha256);
CREATE INDEX file_pieces_stored ON file_pieces (stored_at) WHERE position = 0;
