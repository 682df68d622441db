-- Lists are counted and leafed through without reading the rows themselves, and what expires next
-- is found without looking at all snapshots.
DROP INDEX sandboxes_by_owner;
CREATE INDEX sandboxes_by_owner ON sandboxes (owner, created_at, id, observed, template);
CREATE INDEX snapshots_by_expiry ON snapshots (expires_at) WHERE expires_at IS NOT NULL;
