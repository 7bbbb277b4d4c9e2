-- What the run of an agent makes of a message, and the runs that are at work, are named by the words of the field.

ALTER TABLE handlings RENAME TO message_runs;
ALTER TABLE message_runs RENAME COLUMN injected_at TO delivered_at;
ALTER INDEX handlings_pkey RENAME TO message_runs_pkey;
ALTER TABLE sittings RENAME TO active_runs;
ALTER INDEX sittings_pkey RENAME TO active_runs_pkey;
