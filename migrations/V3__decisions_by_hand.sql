-- Decisions of an operator stand beside those of the gate. They rest on no figures: candidate_ap and edgebank_ap are
-- NULL, and `candidate` is the version that was promoted.

CREATE TABLE decision_of_anybody (
    id                INTEGER PRIMARY KEY,
    -- One past the last log record that was learned.
    position          INTEGER NOT NULL,
    verdict           TEXT    NOT NULL CHECK (verdict IN ('promoted', 'held', 'rolled_back')),
    -- Versions of the weights: trained, served until then, kept from before that. NULL where there was none.
    candidate         INTEGER NOT NULL,
    published         INTEGER,
    kept              INTEGER,
    -- Average precision of each on the same batches.
    candidate_ap      REAL,
    published_ap      REAL,
    kept_ap           REAL,
    edgebank_ap       REAL,
    created_unix_ms   INTEGER NOT NULL,
    CHECK ((candidate_ap IS NULL) = (edgebank_ap IS NULL))
) STRICT;

INSERT INTO decision_of_anybody SELECT * FROM decision;
DROP TABLE decision;
ALTER TABLE decision_of_anybody RENAME TO decision;
