-- What is unread is counted without a look at each message: from all of it goes what was recalled, which is little.

CREATE INDEX messages_recalled ON messages (id) WHERE recalled_at IS NOT NULL;
