-- Servers that share a database: what one does at a time, who does it and until when; and which of them may run
-- a thread, where without a row any may; and the codes that open the pages once, at each of them.

CREATE TABLE leases (
  name text COLLATE "C" PRIMARY KEY,
  holder text COLLATE "C" NOT NULL,
  about text COLLATE "C" NOT NULL,
  fence bigint NOT NULL,
  since bigint NOT NULL,
  until bigint NOT NULL
);

CREATE TABLE thread_places (
  thread_id text COLLATE "C" PRIMARY KEY,
  place text COLLATE "C" NOT NULL
);

CREATE TABLE login_codes (
  hash text COLLATE "C" PRIMARY KEY,
  ends_at bigint NOT NULL
);
