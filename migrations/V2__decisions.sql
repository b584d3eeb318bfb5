-- What the gate between the weights that are trained and those that are served has decided, window by window.

CREATE TABLE decision (
    id                INTEGER PRIMARY KEY,
    -- One past the last log record that was learned.
    position          INTEGER NOT NULL,
    verdict           TEXT    NOT NULL CHECK (verdict IN ('promoted', 'held', 'rolled_back')),
    -- Versions of the weights: trained, served until then, kept from before that. NULL where there was none.
    candidate         INTEGER NOT NULL,
    published         INTEGER,
    kept              INTEGER,
    -- Average precision of each on the same batches.
    candidate_ap      REAL    NOT NULL,
    published_ap      REAL,
    kept_ap           REAL,
    edgebank_ap       REAL    NOT NULL,
    created_unix_ms   INTEGER NOT NULL
) STRICT;
