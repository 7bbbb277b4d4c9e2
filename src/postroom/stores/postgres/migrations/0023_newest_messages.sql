-- The newest messages of a sender: pages ask for them, and read all messages to find them.

CREATE INDEX messages_sender ON messages (sender_id, id);
