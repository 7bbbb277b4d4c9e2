-- What is queued for each tenant: a long queue of one must not hide what another has.

CREATE INDEX run_dispatches_of_tenant ON run_dispatches (tenant, priority, created_at, dispatch_id)
  WHERE status = 'Queued' AND tenant <> '';
