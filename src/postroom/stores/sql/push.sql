-- Web Push: the browsers in which people are notified, and the questions and failures shown there.

-- part subscription
id, endpoint, p256dh, auth, person, form_token, server_key, created_at, ends_at, seen_at, delivered_at, error

-- subscriptions
SELECT {part subscription} FROM push_subscriptions ORDER BY created_at, id;

-- subscription
SELECT {part subscription} FROM push_subscriptions WHERE id = :id;

-- put
INSERT INTO push_subscriptions ({part subscription})
VALUES (:id, :endpoint, :p256dh, :auth, :person, :form_token, :server_key, :created_at, :ends_at, :seen_at, :delivered_at, :error);

-- drop
DELETE FROM push_subscriptions WHERE id IN {texts :ids};

-- drop_endpoint
DELETE FROM push_subscriptions WHERE endpoint = :endpoint;

-- drop_session
DELETE FROM push_subscriptions WHERE form_token = :form_token;

-- see
UPDATE push_subscriptions SET seen_at = :seen_at WHERE seen_at < :seen_at;

-- note_result
UPDATE push_subscriptions SET delivered_at = coalesce(:delivered_at, delivered_at), error = :error WHERE id = :id;

-- notices
SELECT subscription_id, item, created_at, closed_at FROM push_notices ORDER BY subscription_id, item;

-- notice
SELECT 1 FROM push_notices WHERE subscription_id = :subscription_id AND item = :item;

-- drop_notice
DELETE FROM push_notices WHERE subscription_id = :subscription_id AND item = :item;

-- add_notice
INSERT INTO push_notices (subscription_id, item, created_at) VALUES (:subscription_id, :item, :now)
ON CONFLICT (subscription_id, item) DO UPDATE SET created_at = excluded.created_at, closed_at = NULL;

-- close_notice
UPDATE push_notices SET closed_at = :now WHERE subscription_id = :subscription_id AND item = :item AND closed_at IS NULL;

-- purge_notices
DELETE FROM push_notices
 WHERE closed_at < :before OR subscription_id NOT IN (SELECT id FROM push_subscriptions);
