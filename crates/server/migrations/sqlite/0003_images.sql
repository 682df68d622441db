-- Images by name. Their layers are files, named after what is in them; the details say which.
CREATE TABLE images (
    name       TEXT    PRIMARY KEY NOT NULL,
    digest     TEXT    NOT NULL,
    details    TEXT    NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
