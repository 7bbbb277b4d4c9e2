-- Notes of projects, and which session or run was given which of them.

-- part note
n.id, n.project_id, n.subject, n.body, n.paths, n.task_id, n.author_id, n.run_id, n.commit_name, n.replaces, n.replaced_by,
       n.created_at, n.ends_at

-- note
SELECT {part note} FROM notes n WHERE n.id = :id;

-- some
SELECT {part note} FROM notes n WHERE n.id IN {ints :ids};

-- active
SELECT {part note}
  FROM notes n {index notes_active} WHERE n.project_id = :project_id AND n.ends_at > :now ORDER BY n.id DESC LIMIT :limit;

-- insert_note
INSERT INTO notes (project_id, subject, body, paths, task_id, author_id, run_id, commit_name, replaces, created_at, ends_at)
VALUES (:project_id, :subject, :text, :paths, :task_id, :author_id, :run_id, :commit, :replaces, :created_at, :ends_at)
RETURNING id;

-- end_note
UPDATE notes SET ends_at = :ends_at, replaced_by = :replaced_by WHERE id = :id;

-- given
SELECT note_id, given_at FROM notes_given WHERE place = :place;

-- give
INSERT INTO notes_given (place, note_id, given_at) VALUES (:place, :note_id, :now) ON CONFLICT (place, note_id) DO NOTHING;

-- forget_given
DELETE FROM notes_given WHERE place = :place;

-- purge_given
DELETE FROM notes_given WHERE (place, note_id) IN
  (SELECT place, note_id FROM notes_given WHERE given_at < :before ORDER BY given_at, place, note_id LIMIT :limit);
