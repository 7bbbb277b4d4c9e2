-- set_aside
INSERT INTO run_quarantine (kind, id, reason, at) VALUES ($1::text, $2::text, $3::text, {now})
    ON CONFLICT DO NOTHING
RETURNING id
