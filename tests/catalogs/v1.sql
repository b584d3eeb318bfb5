-- The catalog of a data directory as version 1 of the schema left it. Kept as it is: tests/it/catalog.rs opens it.
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
CREATE TABLE fixed_setting (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "fixed_setting" VALUES('stream.edge_feature_dimension','172');
CREATE TABLE refinery_schema_history(
             version int4 PRIMARY KEY,
             name VARCHAR(255),
             applied_on VARCHAR(255),
             checksum VARCHAR(255));
INSERT INTO "refinery_schema_history" VALUES(1,'checkpoints','2026-11-22T11:35:12.254870068Z','8908437818558476208');
COMMIT;
