-- Files of chats: which file stands where in which message of a thread, or was left by which run; their bytes in pieces.

CREATE TABLE chat_files (
  thread_id  text COLLATE "C" NOT NULL,
  message_id text COLLATE "C" NOT NULL,
  position   bigint NOT NULL,
  name       text COLLATE "C" NOT NULL,
  media_type text COLLATE "C" NOT NULL,
  size       bigint NOT NULL,
  sha256     text COLLATE "C",
  missing    text COLLATE "C",
  transcript text COLLATE "C",
  PRIMARY KEY (thread_id, message_id, position),
  CHECK (sha256 IS NOT NULL OR missing IS NOT NULL)
);
CREATE TABLE file_pieces (
  sha256   text COLLATE "C" NOT NULL,
  position bigint NOT NULL,
  piece    text COLLATE "C" NOT NULL REFERENCES blobs (sha256),
  PRIMARY KEY (sha256, position)
);
CREATE INDEX file_pieces_blob ON file_pieces (piece);
