-- What one server does at a time, of all that work on one database: who does it, and until when.

CREATE TABLE leases (
  name text COLLATE "C" PRIMARY KEY,
  holder text COLLATE "C" NOT NULL,
  about text COLLATE "C" NOT NULL,
  fence bigint NOT NULL,
  since bigint NOT NULL,
  until bigint NOT NULL
);
