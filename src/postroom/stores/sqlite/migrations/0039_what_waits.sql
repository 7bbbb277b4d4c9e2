-- Indexes, so that the cost of a look grows neither with what waits nor with history: the newest run of a thread that
-- was ever started, however many are queued there; the effects of a target that stand in no order.
CREATE INDEX runs_started ON runs (thread_id, updated_at, created_at, run_id) WHERE status <> 'created';

CREATE INDEX outbox_unordered ON outbox (kind, target, (coalesce(lease_until, available_at)), place)
  WHERE status IN ('pending', 'claimed') AND order_key IS NULL;

-- The run that was given the message to read, so that a repeated message finds its run without a look at the others.
-- NULL: no run, or one of a release before.
ALTER TABLE run_messages ADD COLUMN given_to TEXT;
