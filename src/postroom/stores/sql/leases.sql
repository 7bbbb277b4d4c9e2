-- Leases by name: which server does what only one does at a time.

-- listed
SELECT name, holder, about, fence, since, until FROM leases ORDER BY name;

-- put
INSERT INTO leases (name, holder, about, fence, since, until)
VALUES (:name, :holder, :about, :fence, :since, :until)
ON CONFLICT (name) DO UPDATE
   SET holder = excluded.holder, about = excluded.about, fence = excluded.fence, since = excluded.since,
       until = excluded.until;

-- renew
UPDATE leases SET until = :until WHERE name IN {texts :names};

-- remove
DELETE FROM leases WHERE name IN {texts :names};

-- hold
UPDATE leases SET fence = fence WHERE name = :name AND holder = :holder AND fence = :fence AND until > :now;
