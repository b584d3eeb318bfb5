-- What the daemon knows about itself. The event log is the truth about the stream; this is the
-- truth about what was learned from it.

CREATE TABLE checkpoint (
    id                INTEGER PRIMARY KEY,
    -- Log position up to which the learner had remembered the stream.
    position          INTEGER NOT NULL,
    model_version     INTEGER NOT NULL,
    -- File name inside the checkpoint folder.
    file              TEXT    NOT NULL UNIQUE,
    bytes             INTEGER NOT NULL,
    crc32c            INTEGER NOT NULL,
    -- Quality when it was written; NULL when not measured yet.
    average_precision REAL,
    baseline          REAL,
    created_unix_ms   INTEGER NOT NULL
) STRICT;

-- Settings that are fixed for the life of a data directory.
CREATE TABLE fixed_setting (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
