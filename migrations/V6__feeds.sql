-- How far the change feed of a target (topic, brokers, format) is: every event below `position` is in what was delivered.

CREATE TABLE feed (
    target        TEXT PRIMARY KEY,
    position      INTEGER NOT NULL,
    -- Version of the weights with which the last pass over all nodes began.
    model_version INTEGER
) STRICT, WITHOUT ROWID;

-- Deleted nodes that its readers do not know of yet, in the order of their deletion.
CREATE TABLE feed_deletion (
    id   INTEGER PRIMARY KEY,
    node TEXT NOT NULL UNIQUE
) STRICT;
