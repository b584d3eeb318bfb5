-- The catalog of a data directory as version 6 of the schema left it. Kept as it is: tests/it/catalog.rs opens it.
BEGIN TRANSACTION;
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
INSERT INTO "checkpoint" VALUES(1,115200,569,'00000000000000115200.checkpoint',13171883,1983298528,0.9768,0.9425,1795347322351);
INSERT INTO "checkpoint" VALUES(2,120000,593,'00000000000000120000.checkpoint',13171900,4294967295,NULL,NULL,1795347322360);
CREATE TABLE "decision" (
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
    created_unix_ms   INTEGER NOT NULL, anchor    INTEGER, anchor_ap REAL,
    CHECK ((candidate_ap IS NULL) = (edgebank_ap IS NULL))
) STRICT;
INSERT INTO "decision" VALUES(1,11400,'held',57,NULL,NULL,0.8345,NULL,NULL,0.9057,1795347313119,NULL,NULL);
INSERT INTO "decision" VALUES(2,49800,'promoted',249,185,121,0.9614,0.9598,0.9509,0.941,1795347316264,121,0.9509);
INSERT INTO "decision" VALUES(3,49900,'rolled_back',185,249,NULL,NULL,NULL,NULL,NULL,1795347316270,NULL,NULL);
CREATE TABLE feed (
    target        TEXT PRIMARY KEY,
    position      INTEGER NOT NULL,
    -- Version of the weights with which the last pass over all nodes began.
    model_version INTEGER
) STRICT, WITHOUT ROWID;
INSERT INTO "feed" VALUES('embeddings',119900,590);
CREATE TABLE feed_deletion (
    id   INTEGER PRIMARY KEY,
    node TEXT NOT NULL UNIQUE
) STRICT;
INSERT INTO "feed_deletion" VALUES(3,'user:7');
CREATE TABLE fixed_setting (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "fixed_setting" VALUES('stream.edge_feature_dimension','172');
CREATE TABLE paused_source (
    source        TEXT PRIMARY KEY,
    -- Name of the key that held it, or `local`.
    paused_by     TEXT    NOT NULL,
    since_unix_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "paused_source" VALUES('kafka:payments','local',1795347316280);
CREATE TABLE refinery_schema_history(
             version int4 PRIMARY KEY,
             name VARCHAR(255),
             applied_on VARCHAR(255),
             checksum VARCHAR(255));
INSERT INTO "refinery_schema_history" VALUES(1,'checkpoints','2026-11-22T12:45:56.341563568Z','8908437818558476208');
INSERT INTO "refinery_schema_history" VALUES(2,'decisions','2026-11-22T12:45:56.341569808Z','8936636395821686134');
INSERT INTO "refinery_schema_history" VALUES(3,'decisions_by_hand','2026-11-22T12:45:56.3415712Z','12209715052497693670');
INSERT INTO "refinery_schema_history" VALUES(4,'paused_sources','2026-11-22T12:45:56.341572281Z','8978001171561587191');
INSERT INTO "refinery_schema_history" VALUES(5,'anchors','2026-11-24T22:45:56.341572281Z','16209493800227596743');
INSERT INTO "refinery_schema_history" VALUES(6,'feeds','2026-11-26T02:20:56.341572281Z','13366226030198458925');
COMMIT;
