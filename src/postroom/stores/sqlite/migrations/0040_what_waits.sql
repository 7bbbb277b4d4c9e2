-- Indexes, so that the cost of a look grows neither with what waits nor with history: the newest run of a thread that
-- was ever started, however many are queued there; the effects of a target that stand in no order.
CREATE INDEX runs_started ON runs (thread_id, updated_at, created_at, run_id) WHERE status <> 'created';

CREATE INDEX outbox_unordered ON outbox (kind, target, (coalesce(lease_until, available_at)), place)
  WHERE status IN ('pending', 'claimed') AND order_key IS NULL;
