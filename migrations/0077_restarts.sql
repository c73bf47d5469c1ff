-- +goose Up

-- A restart that is known by the device's boot poll is a change like the one that a
-- device reports: time lines show both, and alerts count both. So device_boots goes.
-- Of a device that reports, and of one that has just been let in, its boots are left
-- out: they are on record already, or were the first.
INSERT INTO report_changes (device_id, at, code, params)
SELECT b.device_id, b.at, 'restarted', '{"proof": "boot_poll"}'
FROM device_boots b JOIN devices d ON d.id = b.device_id
WHERE b.at > d.enrolled_at + interval '5 minutes'
    AND NOT EXISTS (SELECT FROM device_vitals v WHERE v.device_id = b.device_id)
ON CONFLICT DO NOTHING;
DROP TABLE device_boots;

CREATE INDEX report_changes_restarts ON report_changes (at, device_id) WHERE code = 'restarted';
