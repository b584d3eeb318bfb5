-- The gate compares candidates with an anchor, the best version that was promoted in the last day, where it compared them
-- with the kept version; a rollback of the gate goes back to it. NULL in decisions from before that, and kept_ap in later
-- ones.

ALTER TABLE decision ADD COLUMN anchor    INTEGER;
ALTER TABLE decision ADD COLUMN anchor_ap REAL;
