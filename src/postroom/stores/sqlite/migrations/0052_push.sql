-- The browsers that people have asked to be notified in, and the questions and failures shown there.

CREATE TABLE push_subscriptions (
  id           TEXT PRIMARY KEY,
  endpoint     TEXT NOT NULL UNIQUE,
  p256dh       TEXT NOT NULL,
  auth         TEXT NOT NULL,
  person       TEXT NOT NULL,
  form_token   TEXT NOT NULL,
  server_key   TEXT NOT NULL,
  created_at   INTEGER NOT NULL,
  ends_at      INTEGER NOT NULL,
  seen_at      INTEGER NOT NULL,
  delivered_at INTEGER,
  error        TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX push_subscriptions_of_session ON push_subscriptions (form_token);

CREATE TABLE push_notices (
  subscription_id TEXT NOT NULL,
  item            TEXT NOT NULL,
  created_at      INTEGER NOT NULL,
  closed_at       INTEGER,
  PRIMARY KEY (subscription_id, item)
) STRICT, WITHOUT ROWID;

CREATE INDEX runs_asked ON runs (updated_at, run_id) WHERE status = 'waiting';
