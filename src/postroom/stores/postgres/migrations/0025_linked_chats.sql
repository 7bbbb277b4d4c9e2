-- Direct chats of one person on several channels: whose each is, the code that was given there, and wrong ones entered there.

CREATE TABLE linked_chats (
  platform     text COLLATE "C" NOT NULL,
  chat_id      text COLLATE "C" NOT NULL,
  person       text COLLATE "C",
  shares       bigint NOT NULL CHECK (shares IN (0, 1)),
  code_hash    text COLLATE "C",
  code_until   bigint NOT NULL,
  failures     bigint NOT NULL,
  locked_until bigint NOT NULL,
  PRIMARY KEY (platform, chat_id)
);
CREATE INDEX linked_chats_person ON linked_chats (person) WHERE person IS NOT NULL;
CREATE INDEX linked_chats_code ON linked_chats (code_hash) WHERE code_hash IS NOT NULL;
