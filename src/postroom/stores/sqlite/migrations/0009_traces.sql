-- Where in a trace (W3C `traceparent`) letters were written and runs were at work. Rows come only while telemetry
-- is on, and hold nothing that somebody wrote.

CREATE TABLE traces (
  name        TEXT PRIMARY KEY,
  traceparent TEXT NOT NULL CHECK (length(traceparent) = 55)
) STRICT, WITHOUT ROWID;
