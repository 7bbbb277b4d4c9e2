-- Which store this is: kept also beside the token and in the archive, so that another one in its place is noticed.

CREATE TABLE store_identity (
  id       INTEGER PRIMARY KEY CHECK (id = 1),
  store_id TEXT NOT NULL
);
