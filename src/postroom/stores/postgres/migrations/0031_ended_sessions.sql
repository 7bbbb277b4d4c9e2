-- Sessions of the pages that were logged out, until they would have ended anyway: no server takes their cookies.

CREATE TABLE ended_sessions (
  hash text COLLATE "C" PRIMARY KEY,
  ends_at bigint NOT NULL
);
