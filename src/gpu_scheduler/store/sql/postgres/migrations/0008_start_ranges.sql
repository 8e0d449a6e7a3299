-- The forecast before its calibration, and the range that four in five starts fall in; NULL in
-- estimates of an older version.
ALTER TABLE estimates ADD COLUMN forecast_ms bigint;
ALTER TABLE estimates ADD COLUMN earliest_ms bigint;
ALTER TABLE estimates ADD COLUMN latest_ms bigint;
