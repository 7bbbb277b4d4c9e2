-- Schedules: what is submitted again and again. One that is paused has no next instant.

CREATE TABLE schedules (
  schedule_id text COLLATE "C" PRIMARY KEY,
  kind text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  cron text COLLATE "C",
  every_ms bigint,
  zone text COLLATE "C" NOT NULL,
  payload text COLLATE "C" NOT NULL,
  missed text COLLATE "C" NOT NULL,
  overlap text COLLATE "C" NOT NULL,
  jitter_ms bigint NOT NULL,
  created_at bigint NOT NULL,
  starts_at bigint NOT NULL,
  tick_at bigint NOT NULL,
  next_at bigint,
  submitted bigint NOT NULL,
  passed_over bigint NOT NULL,
  last_at bigint,
  last_id text COLLATE "C",
  last_error text COLLATE "C",
  UNIQUE (kind, name)
);
CREATE INDEX schedules_due ON schedules (kind, next_at);
