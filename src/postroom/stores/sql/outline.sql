-- The shape of a database; see `stores.outline`.

-- schema
SELECT CASE WHEN sql LIKE 'CREATE VIRTUAL %' THEN 'virtual table' ELSE type END, name, sql FROM sqlite_schema
 WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY type DESC, name;

-- schema @postgres
WITH tables AS (
  SELECT oid, relname FROM pg_class
   WHERE relkind = 'r' AND relnamespace = CAST(quote_ident(current_schema()) AS regnamespace)
), parts AS (
  SELECT a.attrelid AS oid, CAST(a.attnum AS bigint) AS place,
         concat_ws(' ', quote_ident(a.attname), format_type(a.atttypid, a.atttypmod),
                   CASE WHEN a.attnotnull THEN 'NOT NULL' END,
                   'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid)) AS part
    FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
   WHERE a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
  SELECT conrelid, 10000 + row_number() OVER (ORDER BY conname),
         concat_ws(' ', 'CONSTRAINT', quote_ident(conname), pg_get_constraintdef(oid))
    FROM pg_constraint WHERE contype <> 'n'
)
SELECT 'table', relname,
       'CREATE TABLE ' || quote_ident(relname) || E' (\n  ' || string_agg(part, E',\n  ' ORDER BY place) || E'\n)'
  FROM tables JOIN parts USING (oid) GROUP BY relname
UNION ALL
SELECT 'index', i.relname, pg_get_indexdef(i.oid)
  FROM tables AS t JOIN pg_index AS x ON x.indrelid = t.oid JOIN pg_class AS i ON i.oid = x.indexrelid
 WHERE NOT EXISTS (SELECT 1 FROM pg_constraint AS c WHERE c.conindid = i.oid)
 ORDER BY 1 DESC, 2;

-- steps
SELECT version, name, applied_at FROM schema_migrations ORDER BY version;

-- states
SELECT status, count(*) FROM run_dispatches GROUP BY status ORDER BY status;

-- queue
SELECT dispatch_id, run_id, status, attempt_count, max_attempts, created_at, available_at, updated_at
  FROM run_dispatches WHERE status IN ('Queued', 'Claimed', 'DeadLetter')
 ORDER BY updated_at, dispatch_id LIMIT :limit;

-- checks @postgres
WITH tables AS (
  SELECT oid FROM pg_class
   WHERE relkind = 'r' AND relnamespace = CAST(quote_ident(current_schema()) AS regnamespace)
)
SELECT format('table %s', CAST(oid AS regclass)),
       format('SELECT 0 * count(CAST(t AS text)) FROM %s AS t', CAST(oid AS regclass)) FROM tables
UNION ALL
SELECT format('constraint %s of table %s', conname, CAST(conrelid AS regclass)),
       format('SELECT count(*) FROM %s WHERE NOT (%s)', CAST(conrelid AS regclass), pg_get_expr(conbin, conrelid))
  FROM pg_constraint WHERE contype = 'c' AND conrelid IN (SELECT oid FROM tables)
UNION ALL
SELECT format('foreign key %s of table %s', c.conname, CAST(c.conrelid AS regclass)),
       format('SELECT count(*) FROM %s AS a WHERE %s AND NOT EXISTS (SELECT 1 FROM %s AS b WHERE %s)',
              CAST(c.conrelid AS regclass), string_agg(format('a.%I IS NOT NULL', l.attname), ' AND '),
              CAST(c.confrelid AS regclass), string_agg(format('b.%I = a.%I', r.attname, l.attname), ' AND '))
  FROM pg_constraint AS c CROSS JOIN LATERAL unnest(c.conkey, c.confkey) AS k (from_number, to_number)
  JOIN pg_attribute AS l ON l.attrelid = c.conrelid AND l.attnum = k.from_number
  JOIN pg_attribute AS r ON r.attrelid = c.confrelid AND r.attnum = k.to_number
 WHERE c.contype = 'f' AND c.conrelid IN (SELECT oid FROM tables)
 GROUP BY c.oid, c.conname, c.conrelid, c.confrelid
UNION ALL
SELECT format('index %s, which was not built to its end', CAST(indexrelid AS regclass)), 'SELECT 1'
  FROM pg_index WHERE NOT indisvalid AND indrelid IN (SELECT oid FROM tables)
 ORDER BY 1;
