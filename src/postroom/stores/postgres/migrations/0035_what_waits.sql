-- An index, so that the cost of a look does not grow with what waits: the effects of a target that stand in no order.
CREATE INDEX outbox_unordered ON outbox (kind, target, (coalesce(lease_until, available_at)), place)
  WHERE status IN ('pending', 'claimed') AND order_key IS NULL;
