-- Direct chats of one person on several channels: whose each is, the code that was given there, and wrong ones entered there.

CREATE TABLE linked_chats (
  platform     TEXT NOT NULL,
  chat_id      TEXT NOT NULL,
  person       TEXT,
  shares       INTEGER NOT NULL CHECK (shares IN (0, 1)),
  code_hash    TEXT,
  code_until   INTEGER NOT NULL,
  failures     INTEGER NOT NULL,
  locked_until INTEGER NOT NULL,
  PRIMARY KEY (platform, chat_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX linked_chats_person ON linked_chats (person) WHERE person IS NOT NULL;
CREATE INDEX linked_chats_code ON linked_chats (code_hash) WHERE code_hash IS NOT NULL;
