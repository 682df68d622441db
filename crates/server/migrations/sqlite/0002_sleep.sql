-- Sandboxes that stand still, and what keeps them awake. SQLite can't change a check in place, so
-- the table is made anew.
CREATE TABLE sandboxes_new (
    id              TEXT    PRIMARY KEY NOT NULL,
    owner           TEXT    NOT NULL,
    template        TEXT    NOT NULL,
    config          TEXT    NOT NULL,
    desired         TEXT    NOT NULL CHECK (desired IN
                        ('running', 'frozen', 'released', 'deleted')),
    observed        TEXT    NOT NULL CHECK (observed IN
                        ('starting', 'running', 'freezing', 'frozen', 'thawing', 'releasing',
                         'released', 'failed', 'deleting')),
    why             TEXT    CHECK (why IN ('pause', 'ttl', 'auto_stop', 'runtime_lost')),
    generation      INTEGER NOT NULL CHECK (generation >= 1),
    slot            INTEGER NOT NULL UNIQUE,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    claimed_at      INTEGER NOT NULL,
    expires_at      INTEGER,
    hard_expires_at INTEGER,
    -- Requests to keep it awake, JSON: [{id, owner, since, expires_at}].
    holds           TEXT    NOT NULL DEFAULT '[]'
) STRICT;

INSERT INTO sandboxes_new (id, owner, template, config, desired, observed, why, generation, slot,
                           created_at, updated_at, claimed_at, expires_at, hard_expires_at)
SELECT id, owner, template, config, desired, observed, why, generation, slot,
       created_at, updated_at, claimed_at, expires_at, hard_expires_at
FROM sandboxes;

DROP TABLE sandboxes;
ALTER TABLE sandboxes_new RENAME TO sandboxes;
CREATE INDEX sandboxes_by_owner ON sandboxes (owner, created_at, id);
