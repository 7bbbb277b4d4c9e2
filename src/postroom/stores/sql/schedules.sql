-- Schedules by kind and name. One that is paused has no next instant, and is never due.

-- named
SELECT schedule_id, kind, name, cron, every_ms, zone, payload, missed, overlap, jitter_ms, created_at,
       starts_at, tick_at, next_at, submitted, passed_over, last_at, last_id, last_error
  FROM schedules WHERE kind = :kind AND name = :name;

-- listed
SELECT schedule_id, kind, name, cron, every_ms, zone, payload, missed, overlap, jitter_ms, created_at,
       starts_at, tick_at, next_at, submitted, passed_over, last_at, last_id, last_error
  FROM schedules
 WHERE kind = :kind AND name > :after
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows q WHERE q.release = {release} AND q.kind = 'schedule' AND q.id = schedule_id)
 ORDER BY name LIMIT :limit;

-- due
SELECT schedule_id, kind, name, cron, every_ms, zone, payload, missed, overlap, jitter_ms, created_at,
       starts_at, tick_at, next_at, submitted, passed_over, last_at, last_id, last_error
  FROM schedules
 WHERE kind = :kind AND next_at <= :now
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows q WHERE q.release = {release} AND q.kind = 'schedule' AND q.id = schedule_id)
 ORDER BY next_at LIMIT :limit;

-- next_at
SELECT next_at FROM schedules
 WHERE kind = :kind AND next_at IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM unreadable_rows q WHERE q.release = {release} AND q.kind = 'schedule' AND q.id = schedule_id)
 ORDER BY next_at LIMIT 1;

-- insert
INSERT INTO schedules (schedule_id, kind, name, cron, every_ms, zone, payload, missed, overlap, jitter_ms, created_at,
                       starts_at, tick_at, next_at, submitted, passed_over, last_at, last_id, last_error)
VALUES (:schedule_id, :kind, :name, :cron, :every_ms, :zone, :payload, :missed, :overlap, :jitter_ms, :created_at,
        :starts_at, :tick_at, :next_at, :submitted, :passed_over, :last_at, :last_id, :last_error);

-- put
UPDATE schedules
   SET cron = :cron, every_ms = :every_ms, zone = :zone, payload = :payload, missed = :missed, overlap = :overlap,
       jitter_ms = :jitter_ms, starts_at = :starts_at, tick_at = :tick_at,
       next_at = :next_at, submitted = :submitted, passed_over = :passed_over, last_at = :last_at,
       last_id = :last_id, last_error = :last_error
 WHERE schedule_id = :schedule_id;

-- remove
DELETE FROM schedules WHERE schedule_id = :schedule_id;
