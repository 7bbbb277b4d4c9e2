-- The version of a file that each agent last read and last wrote, as hooks of client programs reported it.

CREATE TABLE file_views (
  file         text COLLATE "C" NOT NULL,
  agent_id     bigint NOT NULL,
  seen_blob    text COLLATE "C" NOT NULL,
  written_blob text COLLATE "C" NOT NULL,
  written_at   bigint NOT NULL,
  changed_blob text COLLATE "C" NOT NULL,
  changed_by   bigint,
  changed_at   bigint NOT NULL,
  notice       bigint NOT NULL CHECK (notice IN (0, 1, 2)),
  used_at      bigint NOT NULL,
  PRIMARY KEY (file, agent_id)
) WITH (fillfactor = 70);
CREATE INDEX file_views_due ON file_views (agent_id) WHERE notice = 1;
CREATE INDEX file_views_used ON file_views (used_at);
