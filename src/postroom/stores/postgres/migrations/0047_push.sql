-- The browsers that people have asked to be notified in, and the questions and failures shown there.

CREATE TABLE push_subscriptions (
  id           text COLLATE "C" PRIMARY KEY,
  endpoint     text COLLATE "C" NOT NULL UNIQUE,
  p256dh       text COLLATE "C" NOT NULL,
  auth         text COLLATE "C" NOT NULL,
  person       text COLLATE "C" NOT NULL,
  form_token   text COLLATE "C" NOT NULL,
  server_key   text COLLATE "C" NOT NULL,
  created_at   bigint NOT NULL,
  ends_at      bigint NOT NULL,
  seen_at      bigint NOT NULL,
  delivered_at bigint,
  error        text COLLATE "C" NOT NULL
);
CREATE INDEX push_subscriptions_of_session ON push_subscriptions (form_token);

CREATE TABLE push_notices (
  subscription_id text COLLATE "C" NOT NULL,
  item            text COLLATE "C" NOT NULL,
  created_at      bigint NOT NULL,
  closed_at       bigint,
  PRIMARY KEY (subscription_id, item)
);

CREATE INDEX runs_asked ON runs (updated_at, run_id) WHERE status = 'waiting';
