-- Snapshots: the files of sandboxes as of one instant. One that is not ready was being made or
-- deleted by a server that was killed. Nothing refers to the source: a snapshot outlives it.
CREATE TABLE snapshots (
    id          TEXT    PRIMARY KEY NOT NULL,
    owner       TEXT    NOT NULL,
    name        TEXT,
    description TEXT,
    sandbox     TEXT    NOT NULL,
    template    TEXT    NOT NULL,
    -- The image below the files, JSON; no value is the image `host`.
    image       TEXT,
    -- Names the range of host ids that the files belong to: that of the source.
    slot        INTEGER NOT NULL,
    state       TEXT    NOT NULL CHECK (state IN ('making', 'ready', 'deleting')),
    files       INTEGER NOT NULL,
    bytes       INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER
) STRICT;

CREATE INDEX snapshots_by_owner ON snapshots (owner, created_at, id);
CREATE UNIQUE INDEX snapshots_by_name ON snapshots (owner, name);

-- The snapshot that a sandbox's disk is being put back to.
ALTER TABLE sandboxes ADD COLUMN restoring TEXT;
