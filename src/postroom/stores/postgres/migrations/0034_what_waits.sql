-- An index, so that the cost of a look does not grow with what waits: the effects of a target that stand in no order.
CREATE INDEX outbox_unordered ON outbox (kind, target, (coalesce(lease_until, available_at)), place)
  WHERE status IN ('pending', 'claimed') AND order_key IS NULL;

-- The run that was given the message to read, so that a repeated message finds its run without a look at the others.
-- NULL: no run, or one of a release before.
ALTER TABLE run_messages ADD COLUMN given_to TEXT;
