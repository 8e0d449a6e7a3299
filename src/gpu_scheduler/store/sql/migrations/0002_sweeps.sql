-- Jobs of one sweep are found by its name, which stands in how they are run.

ALTER TABLE launches
ADD COLUMN sweep TEXT GENERATED ALWAYS AS (json_extract(launch, '$.sweep')) VIRTUAL;

CREATE INDEX launches_by_sweep ON launches (sweep) WHERE sweep IS NOT NULL;
