-- Sandboxes: what was asked for (desired) and what is known (observed). Times are nanoseconds
-- since 1970; no value means "not set".
CREATE TABLE sandboxes (
    id              TEXT    PRIMARY KEY NOT NULL,
    owner           TEXT    NOT NULL,
    template        TEXT    NOT NULL,
    config          TEXT    NOT NULL,
    desired         TEXT    NOT NULL CHECK (desired IN ('running', 'released', 'deleted')),
    observed        TEXT    NOT NULL CHECK (observed IN
                        ('starting', 'running', 'releasing', 'released', 'failed', 'deleting')),
    why             TEXT    CHECK (why IN ('pause', 'ttl', 'runtime_lost')),
    generation      INTEGER NOT NULL CHECK (generation >= 1),
    slot            INTEGER NOT NULL UNIQUE,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    claimed_at      INTEGER NOT NULL,
    expires_at      INTEGER,
    hard_expires_at INTEGER
) STRICT;

CREATE INDEX sandboxes_by_owner ON sandboxes (owner, created_at, id);

-- Keys: only the SHA-256 of a key is kept.
CREATE TABLE api_keys (
    id         TEXT    PRIMARY KEY NOT NULL,
    hash       BLOB    NOT NULL UNIQUE CHECK (length(hash) = 32),
    owner      TEXT    NOT NULL,
    role       TEXT    NOT NULL CHECK (role IN ('admin', 'member', 'read_only')),
    name       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER
) STRICT;
