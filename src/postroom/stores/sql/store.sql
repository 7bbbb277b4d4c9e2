-- set_aside
INSERT INTO run_quarantine (kind, id, reason, at)
VALUES (:kind, :id, :reason, :at)
ON CONFLICT (kind, id) DO NOTHING
RETURNING kind;

-- probe
INSERT INTO probe (id, written_at)
VALUES (1, :now)
ON CONFLICT (id) DO UPDATE SET written_at = excluded.written_at
RETURNING written_at;

-- rehearse
SAVEPOINT rehearsal;

-- forget_rehearsal
ROLLBACK TO SAVEPOINT rehearsal;

-- end_rehearsal
RELEASE SAVEPOINT rehearsal;
