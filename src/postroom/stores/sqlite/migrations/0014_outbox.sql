-- One outbox: what mail stored for the archive stands with what the ends of runs stored. Whom a message has not
-- woken is found by the messages themselves.

ALTER TABLE outbox RENAME TO mail_outbox;
CREATE TABLE outbox (
  place            INTEGER PRIMARY KEY,
  outbox_id        TEXT NOT NULL UNIQUE,
  kind             TEXT NOT NULL,
  target           TEXT NOT NULL,
  order_key        TEXT,
  payload          TEXT NOT NULL,
  status           TEXT NOT NULL CHECK (status IN ('pending', 'claimed')
                                         OR status IN ('delivered', 'dead_letter')),
  available_at     INTEGER NOT NULL,
  created_at       INTEGER NOT NULL,
  dedupe_key       TEXT,
  attempt_count    INTEGER NOT NULL CHECK (attempt_count >= 0),
  max_attempts     INTEGER NOT NULL,
  claim_token      TEXT,
  lease_until      INTEGER,
  last_error       TEXT,
  may_have_arrived INTEGER NOT NULL DEFAULT 0 CHECK (may_have_arrived IN (0, 1)),
  CHECK ((status = 'claimed') = (claim_token IS NOT NULL)
         AND (status = 'claimed') = (lease_until IS NOT NULL))
) STRICT;
INSERT INTO outbox (place, outbox_id, kind, target, order_key, payload, status, available_at, created_at, dedupe_key,
                    attempt_count, max_attempts, claim_token, lease_until, last_error, may_have_arrived)
SELECT place, outbox_id, lane, target, order_key, payload, status, available_at, created_at, dedupe_key,
       attempt_count, max_attempts, claim_token, lease_until, last_error, may_have_arrived
  FROM run_outbox;
INSERT INTO outbox (outbox_id, kind, target, payload, status, available_at, created_at, attempt_count, max_attempts,
                    last_error)
SELECT 'out_mail_' || id, topic, CAST(project_id AS TEXT), json_object('record', key),
       'pending', 0, created_at, attempts, 1000000, nullif(last_error, '')
  FROM mail_outbox WHERE topic = 'archive' ORDER BY id;
DROP TABLE run_outbox;
DROP TABLE mail_outbox;

CREATE UNIQUE INDEX outbox_key ON outbox (kind, target, dedupe_key) WHERE dedupe_key IS NOT NULL;
CREATE INDEX outbox_open ON outbox (kind, target, place, available_at, lease_until)
  WHERE status IN ('pending', 'claimed');
-- Of those with the same key none is taken before an older one is done: answers stand in a chat in order.
CREATE INDEX outbox_in_line ON outbox (kind, target, order_key, place)
  WHERE status IN ('pending', 'claimed') AND order_key IS NOT NULL;
-- Looked through by people, and cleared away, without reading what is still to be done.
CREATE INDEX outbox_dead ON outbox (outbox_id, kind) WHERE status = 'dead_letter';
CREATE INDEX outbox_delivered ON outbox (created_at, place) WHERE status = 'delivered';
