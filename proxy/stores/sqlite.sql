-- The statements of the SQLite store, by name. `doc` is the whole row (codec.py); the columns beside it are what
-- the indexes and lists need. Times are milliseconds; leases are of the boot clock, the rest of the wall clock.
-- What is due names its index: SQLite 3.45 prefers `created_ms`, and would read every record that there ever was.

-- name: schema_1
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE operations (
    id TEXT PRIMARY KEY,
    scope TEXT NOT NULL,
    route TEXT NOT NULL,
    key TEXT NOT NULL,
    subject TEXT,
    state TEXT NOT NULL,
    knowledge TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    due_ms INTEGER,
    oldest_ms INTEGER NOT NULL,
    lease_until_ms INTEGER NOT NULL,
    lease_epoch TEXT NOT NULL,
    amount INTEGER NOT NULL,
    currency TEXT NOT NULL,
    unresolved INTEGER NOT NULL,
    doubt INTEGER NOT NULL,
    purgeable INTEGER NOT NULL,
    doc BLOB NOT NULL
);
CREATE INDEX operations_created ON operations (created_ms, id);
CREATE INDEX operations_key ON operations (key);
CREATE INDEX operations_unresolved ON operations (created_ms, id) WHERE unresolved = 1;
CREATE INDEX operations_in_flight ON operations (created_ms, id) WHERE state = 'in_flight';
CREATE INDEX operations_due ON operations (due_ms, id) WHERE due_ms IS NOT NULL;
CREATE INDEX operations_held ON operations (route, knowledge, currency, amount, oldest_ms)
    WHERE unresolved = 1 AND state <> 'in_flight';
CREATE INDEX operations_purgeable ON operations (route, updated_ms) WHERE purgeable = 1;
CREATE TABLE subjects (
    handle TEXT NOT NULL,
    scope TEXT NOT NULL,
    updated_ms INTEGER NOT NULL,
    listed INTEGER NOT NULL,
    doc BLOB NOT NULL,
    PRIMARY KEY (handle, scope)
) WITHOUT ROWID;
CREATE INDEX subjects_empty ON subjects (updated_ms) WHERE listed = 0;

-- name: get_meta
SELECT value FROM meta WHERE name = :name;

-- name: put_meta
INSERT INTO meta (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: count_due
SELECT count(*) FROM operations WHERE due_ms IS NOT NULL AND due_ms <= ?;

-- name: get_operation
SELECT doc FROM operations WHERE id = ?;

-- name: get_operation_rows
SELECT wanted.column1, doc FROM (VALUES (?)) AS wanted CROSS JOIN operations ON id = wanted.column1;

-- name: put_operation
INSERT INTO operations (
    id, scope, route, key, subject, state, knowledge, created_ms, updated_ms, due_ms, oldest_ms,
    lease_until_ms, lease_epoch, amount, currency, unresolved, doubt, purgeable, doc
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    subject = excluded.subject, state = excluded.state, knowledge = excluded.knowledge,
    updated_ms = excluded.updated_ms, due_ms = excluded.due_ms, oldest_ms = excluded.oldest_ms,
    lease_until_ms = excluded.lease_until_ms, lease_epoch = excluded.lease_epoch,
    amount = excluded.amount, currency = excluded.currency, unresolved = excluded.unresolved,
    doubt = excluded.doubt, purgeable = excluded.purgeable, doc = excluded.doc;

-- name: drop_operation
DELETE FROM operations WHERE id = ?;

-- name: get_subject_rows
SELECT wanted.column1, wanted.column2, doc
FROM (VALUES (?, ?)) AS wanted CROSS JOIN subjects ON handle = wanted.column1 AND scope = wanted.column2;

-- name: get_subjects
SELECT doc FROM subjects WHERE handle = ?;

-- name: put_subject
INSERT INTO subjects (handle, scope, updated_ms, listed, doc) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (handle, scope) DO UPDATE SET
    updated_ms = excluded.updated_ms, listed = excluded.listed, doc = excluded.doc;

-- name: drop_subject
DELETE FROM subjects WHERE handle = ? AND scope = ?;

-- name: find_by_key
SELECT doc FROM operations WHERE key = :key;

-- name: find_newest
SELECT doc FROM operations
WHERE (created_ms, id) < (:at_ms, :id) AND created_ms >= :since_ms AND created_ms < :until_ms
    AND (:route IS NULL OR route = :route) AND (:knowledge IS NULL OR knowledge = :knowledge)
ORDER BY created_ms DESC, id DESC LIMIT :limit;

-- name: find_oldest
SELECT doc FROM operations
WHERE (created_ms, id) > (:at_ms, :id) AND created_ms >= :since_ms AND created_ms < :until_ms
    AND (:route IS NULL OR route = :route) AND (:knowledge IS NULL OR knowledge = :knowledge)
ORDER BY created_ms, id LIMIT :limit;

-- name: find_unresolved_newest
SELECT doc FROM operations
WHERE unresolved = 1
    AND (created_ms, id) < (:at_ms, :id) AND created_ms >= :since_ms AND created_ms < :until_ms
    AND (:route IS NULL OR route = :route) AND knowledge = :knowledge
ORDER BY created_ms DESC, id DESC LIMIT :limit;

-- name: find_unresolved_oldest
SELECT doc FROM operations
WHERE unresolved = 1
    AND (created_ms, id) > (:at_ms, :id) AND created_ms >= :since_ms AND created_ms < :until_ms
    AND (:route IS NULL OR route = :route) AND knowledge = :knowledge
ORDER BY created_ms, id LIMIT :limit;

-- name: find_lapsed_newest
SELECT doc FROM operations
WHERE state = 'in_flight' AND (lease_epoch <> :epoch OR lease_until_ms <= :lease_ms)
    AND (created_ms, id) < (:at_ms, :id) AND created_ms >= :since_ms AND created_ms < :until_ms
    AND (:route IS NULL OR route = :route) AND (:knowledge IS NULL OR knowledge = :knowledge)
ORDER BY created_ms DESC, id DESC LIMIT :limit;

-- name: find_lapsed_oldest
SELECT doc FROM operations
WHERE state = 'in_flight' AND (lease_epoch <> :epoch OR lease_until_ms <= :lease_ms)
    AND (created_ms, id) > (:at_ms, :id) AND created_ms >= :since_ms AND created_ms < :until_ms
    AND (:route IS NULL OR route = :route) AND (:knowledge IS NULL OR knowledge = :knowledge)
ORDER BY created_ms, id LIMIT :limit;

-- name: find_due_newest
SELECT doc FROM operations INDEXED BY operations_due
WHERE due_ms <= :due_before_ms AND (due_ms, id) < (:at_ms, :id)
    AND created_ms >= :since_ms AND created_ms < :until_ms
    AND (:route IS NULL OR route = :route) AND (:knowledge IS NULL OR knowledge = :knowledge)
ORDER BY due_ms DESC, id DESC LIMIT :limit;

-- name: find_due_oldest
SELECT doc FROM operations INDEXED BY operations_due
WHERE due_ms <= :due_before_ms AND (due_ms, id) > (:at_ms, :id)
    AND created_ms >= :since_ms AND created_ms < :until_ms
    AND (:route IS NULL OR route = :route) AND (:knowledge IS NULL OR knowledge = :knowledge)
ORDER BY due_ms, id LIMIT :limit;

-- name: holdings
SELECT route, knowledge, currency, COUNT(*), SUM(amount), MIN(oldest_ms) FROM (
    SELECT route, knowledge, currency, amount, oldest_ms FROM operations
    WHERE unresolved = 1 AND state <> 'in_flight'
    UNION ALL
    SELECT route, knowledge, currency, amount, oldest_ms FROM operations
    WHERE state = 'in_flight' AND (doubt = 1 OR lease_epoch <> :epoch OR lease_until_ms <= :lease_ms)
)
GROUP BY route, knowledge, currency ORDER BY route, knowledge, currency;

-- name: purgeable
SELECT doc FROM operations
WHERE purgeable = 1 AND route = :route AND updated_ms <= :before_ms
    AND (updated_ms, id) > (:at_ms, :id)
ORDER BY updated_ms, id LIMIT :limit;

-- name: empty_subjects
SELECT doc FROM subjects WHERE listed = 0 AND updated_ms < :before_ms ORDER BY updated_ms LIMIT :limit;
