-- Sources that an operator holds. A restart does not let them go on.

CREATE TABLE paused_source (
    source        TEXT PRIMARY KEY,
    -- Name of the key that held it, or `local`.
    paused_by     TEXT    NOT NULL,
    since_unix_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
