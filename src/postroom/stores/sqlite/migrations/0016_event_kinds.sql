-- What an earlier version called a pause is a question; a message that a run has begun with is delivered.

UPDATE events SET event_kind = 'delivery.delivered' WHERE origin = 'mail' AND event_kind = 'delivery.injected';
UPDATE events SET event_kind = 'question.asked' WHERE origin = 'mail' AND event_kind = 'pause.asked';
UPDATE events SET event_kind = 'question.answered' WHERE origin = 'mail' AND event_kind = 'pause.answered';
UPDATE events SET event_kind = 'run.waiting' WHERE origin = 'mail' AND event_kind = 'run.paused';
