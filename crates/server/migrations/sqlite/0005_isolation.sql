-- How far the processes of a sandbox were kept apart: it is never started with less. No value
-- where no start succeeded yet, and in rows of older servers, which read it from what the newest
-- launch was told.
ALTER TABLE sandboxes ADD COLUMN isolation TEXT CHECK (isolation IN ('nested', 'two-uid', 'none'));
