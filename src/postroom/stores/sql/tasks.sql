-- Tasks: one statement a heading; `stores.statements` says what stands in braces.

-- part task
t.id, t.project_id, t.title, t.body_md, t.paths, t.priority, t.assignee, t.acceptance, t.state, t.open_dependencies,
       t.author_id, t.holder_id, t.epoch, t.lease_ms, t.lease_ends_at, t.claimed_at, t.reason, t.commit_name, t.output,
       t.result, t.created_at, t.changed_at, t.changed_by

-- task
SELECT {part task} FROM tasks t WHERE t.id = :id;

-- some
SELECT {part task} FROM tasks t WHERE t.id IN {ints :ids};

-- ready
SELECT {part task}
  FROM tasks t {index tasks_ready}
 WHERE t.project_id = :project_id AND t.assignee = :assignee AND t.state = 'ready' AND (t.priority, t.id) > (:priority, :after)
 ORDER BY t.priority, t.id LIMIT :limit;

-- listed
SELECT {part task}
  FROM tasks t {index tasks_listed}
 WHERE t.project_id = :project_id AND t.state = :state AND (t.priority, t.id) > (:priority, :after)
 ORDER BY t.priority, t.id LIMIT :limit;

-- ended
SELECT {part task}
  FROM tasks t {index tasks_ended}
 WHERE t.project_id = :project_id AND t.state = :state AND t.state IN ('done', 'cancelled')
   AND (t.changed_at, t.id) < (:changed_at, :before)
 ORDER BY t.changed_at DESC, t.id DESC LIMIT :limit;

-- unclaimed_of
SELECT t.author_id, t.id, t.title
  FROM tasks t {index tasks_listed}
 WHERE t.project_id = :project_id AND t.state IN ('ready', 'waiting', 'blocked') AND t.assignee = :assignee
 ORDER BY t.id;

-- held
SELECT {part task} FROM tasks t {index tasks_held} WHERE t.holder_id = :agent_id AND t.state = 'claimed' ORDER BY t.id;

-- is_renewal_due
SELECT 1
  FROM tasks {index tasks_held}
 WHERE holder_id = :agent_id AND state = 'claimed' AND lease_ends_at > :now AND lease_ends_at - :now <= lease_ms * 3 / 4
 LIMIT 1;

-- count_reviews
SELECT count(*)
  FROM (SELECT 1 FROM tasks {index tasks_listed} WHERE project_id = :project_id AND state = 'review' LIMIT :limit) few;

-- in_run
SELECT {part task}
  FROM tasks t {index tasks_in_run} WHERE t.run_id = :run_id AND t.state = 'claimed' AND t.run_id <> '' ORDER BY t.id;

-- claiming_agents
SELECT agent_id FROM runners {index runners_claiming} WHERE claims_tasks = 1 AND agent_id > :after ORDER BY agent_id LIMIT :limit;

-- leases_ended
SELECT {part task}
  FROM tasks t {index tasks_leases}
 WHERE t.project_id = :project_id AND t.state = 'claimed' AND t.lease_ends_at <= :now
 ORDER BY t.lease_ends_at, t.id LIMIT 100;

-- dependencies
SELECT d.task_id, d.depends_on, t.state
  FROM task_dependencies d JOIN tasks t ON t.id = d.depends_on WHERE d.task_id IN {ints :ids} ORDER BY 1, 2;

-- dependents
SELECT {part task}
  FROM task_dependencies d {index task_dependents} JOIN tasks t ON t.id = d.task_id WHERE d.depends_on = :id ORDER BY t.id;

-- insert_task
INSERT INTO tasks (project_id, title, body_md, paths, priority, assignee, acceptance, state, open_dependencies, author_id,
                   created_at, changed_at, changed_by)
VALUES (:project_id, :title, :text, :paths, :priority, :assignee, :acceptance, :state, :open_dependencies, :author_id,
        :now, :now, :author_id)
RETURNING id;

-- edit_task
UPDATE tasks
   SET title = :title, body_md = :text, paths = :paths, priority = :priority, assignee = :assignee,
       acceptance = :acceptance, open_dependencies = :open_dependencies
 WHERE id = :id;

-- claim_task
UPDATE tasks
   SET state = 'claimed', holder_id = :holder_id, epoch = epoch + 1, lease_ms = :lease_ms, lease_ends_at = :lease_ends_at,
       claimed_at = :now, run_id = :run_id, reason = '', changed_at = :now, changed_by = :holder_id
 WHERE id = :id AND state = 'ready';

-- move_task
UPDATE tasks
   SET state = :state, holder_id = :holder_id, lease_ends_at = NULL, run_id = '', reason = :reason, changed_at = :now,
       changed_by = :by
 WHERE id = :id;

-- note_result
UPDATE tasks SET commit_name = :commit, output = :output, result = :result WHERE id = :id;

-- touch_tasks
UPDATE tasks SET lease_ends_at = {greatest}(lease_ends_at, :now + lease_ms)
 WHERE holder_id = :id AND state = 'claimed' AND lease_ends_at > :now;

-- drop_dependencies
DELETE FROM task_dependencies WHERE task_id = :task_id;

-- insert_dependency
INSERT INTO task_dependencies (task_id, depends_on) VALUES (:task_id, :depends_on);

-- count_down
UPDATE tasks SET open_dependencies = open_dependencies - 1
 WHERE id IN (SELECT task_id FROM task_dependencies WHERE depends_on = :id);
