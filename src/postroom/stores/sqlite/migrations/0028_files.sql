-- Files of chats: which file stands where in which message of a thread, or was left by which run; their bytes in pieces.

CREATE TABLE chat_files (
  thread_id  TEXT NOT NULL,
  message_id TEXT NOT NULL,
  position   INTEGER NOT NULL,
  name       TEXT NOT NULL,
  media_type TEXT NOT NULL,
  size       INTEGER NOT NULL,
  sha256     TEXT,
  missing    TEXT,
  transcript TEXT,
  PRIMARY KEY (thread_id, message_id, position),
  CHECK (sha256 IS NOT NULL OR missing IS NOT NULL)
) WITHOUT ROWID;
CREATE TABLE file_pieces (
  sha256   TEXT NOT NULL,
  position INTEGER NOT NULL,
  piece    TEXT NOT NULL REFERENCES blobs (sha256),
  PRIMARY KEY (sha256, position)
) WITHOUT ROWID;
CREATE INDEX file_pieces_blob ON file_pieces (piece);
