-- +goose Up

-- Reasons were English sentences; from now on each is a code with parameters,
-- and text is made of them where it is shown. The forms below are the sentences
-- that were written so far. A text of no known form becomes the code "legacy"
-- with the parameter detail.

CREATE TABLE fleetd_0017_forms (
    place integer GENERATED ALWAYS AS IDENTITY,
    kind  text NOT NULL, -- '' of a reason, 'part' within one, 'presence' of a device
    code  text NOT NULL,
    form  text NOT NULL, -- regular expression
    names text[] NOT NULL -- of what it captures
);
INSERT INTO fleetd_0017_forms (kind, code, form, names) VALUES
    ('', 'device_retired', 'the device was retired', '{}'),
    ('', 'does_not_fit', 'the device does not fit any more', '{}'),
    ('', 'link_revoked', 'the link was revoked while the device was being updated', '{}'),
    ('', 'stopped_while_sending', 'fleetd stopped while the call was being sent: the device may have been told', '{}'),
    ('', 'restarted_in_download', 'fleetd restarted during the download', '{}'),
    ('', 'device_busy', 'the device had no room for the call', '{}'),
    ('', 'call_not_sent', 'the call was not sent: ([a-z_]+): (.+?)', '{error,detail}'),
    ('', 'call_not_sent', 'the call was not sent: ([a-z_]+)', '{error}'),
    ('', 'other_build', 'the device came back with a build that is neither the image nor the one it had before: (.+?)', '{build}'),
    ('', 'rolled_back', 'the device took the image and came back with the build it had before: the new one did not last', '{}'),
    ('', 'restarted_early', 'restarted during the download, and runs its old build', '{}'),
    ('', 'download_too_slow', 'the download took longer than (\S+); ([\d,]+) of ([\d,]+) KiB were sent', '{limit_ms,sent_bytes,image_bytes}'),
    ('', 'download_stalled', 'the download stalled for (\S+); ([\d,]+) of ([\d,]+) KiB were sent', '{idle_ms,sent_bytes,image_bytes}'),
    ('', 'download_broke_off', 'the download broke off; ([\d,]+) of ([\d,]+) KiB were sent', '{sent_bytes,image_bytes}'),
    ('', 'download_broke_off_because', 'the download broke off; ([\d,]+) of ([\d,]+) KiB were sent: (.+?)', '{sent_bytes,image_bytes,why}'),
    ('', 'call_refused', 'the device answered the call with an error', '{}'),
    ('', 'running_unconfirmed', 'runs the new build, but its boot poll never arrived: it is unconfirmed and falls back at its next restart', '{}'),
    ('', 'running_poll_unseen', 'runs the new build and is connected, but its boot poll never arrived', '{}'),
    ('', 'no_boot_poll', 'boot poll: the device has the whole image and did not poll since', '{}'),
    ('', 'no_boot_poll_because', 'boot poll: (.+?)', '{why}'),
    ('', 'image_refused', 'the device refused the image: it had every byte and went on with its old build', '{}'),
    ('', 'may_still_fetch', 'was told of the image and has not fetched it: it still may', '{}'),
    ('', 'offer_not_fetched', 'was offered the image and did not fetch it', '{}'),
    ('', 'not_fetched', 'was told to upgrade and did not fetch the image', '{}'),
    ('', 'never_connected', 'connect: polled with the new build and never connected', '{}'),
    ('', 'check_failed', 'a health check failed', '{}'),
    ('', 'soaked_not_connected', 'the soak is over; waits for connection: the device went away during the soak', '{}'),
    ('', 'soaked_not_checked', 'the soak is over; waits for answer to the health checks', '{}'),
    ('', 'verifying_no_connection', 'verifying: no connection: the device went away during the soak', '{}'),
    ('', 'verifying_no_answer', 'verifying: no answer to the health checks', '{}'),
    ('', 'reconnected_too_often', 'reconnected (\d+) times in the soak, at most (\d+) are allowed', '{times,most}'),
    ('', 'awaiting_report', 'came back with the build it had before; waits for the device to say why', '{}'),
    ('', 'device_failed', 'the device says: it failed', '{}'),
    ('', 'device_reported', 'the device says: (.+?)', '{detail}'),
    ('', 'restart_ordered', 'was told to restart, so that it asks for its firmware', '{}'),
    ('', 'campaign_aborted', 'the campaign was aborted', '{}'),
    ('', 'campaign_time_up', 'the campaign''s time was up', '{}'),
    ('', 'image_revoked', 'the image was revoked', '{}'),
    ('', 'busy_in_campaign', 'busy in campaign (.+?)', '{name}'),
    ('', 'taken_over', 'taken over by campaign (.+?)', '{name}'),
    ('', 'download_revoked', 'the link was revoked', '{}'),
    ('', 'download_unreadable', 'fleetd could not read the image', '{}'),
    ('', 'download_stuck', 'the device took no more bytes', '{}'),
    ('', 'download_conn_closed', 'the connection ended', '{}'),
    ('', 'download_resumed', 'from byte (\d+) on', '{offset}'),
    ('', 'failed_attempts', '(\d+) failed attempts within 24 hours', '{times}'),
    ('', 'failed_attempts', '(\d+) failed attempts within (\S+)', '{times,within_ms}'),
    ('', 'abort_rule', '(\d+) of (\d+) devices in (.+?) ended ([a-z_]+) \((\S+) %\); the rule stops at (.+?) of at least (\d+)', '{counted,of,scope,outcome,share,limit,sample}'),
    ('', 'aborted_by', 'aborted by (.+?)', '{name}'),
    ('', 'no_window', 'no window opens within the next 400 days', '{}'),
    ('', 'next_window', 'the next window opens at (\d{4}-\d\d-\d\d \d\d:\d\d (?:UTC|[+-]\d{2,4}))', '{opens_at}'),
    ('', 'release_revoked', 'release (.+?) was revoked: (.+?)', '{version,detail}'),
    ('', 'release_gone', 'the release is gone', '{}'),
    ('', 'image_was_revoked', 'the image (.+?) was revoked: (.+?)', '{image,detail}'),
    ('', 'image_gone', 'the image (.+?) is gone', '{image}'),
    ('', 'wave_passed', 'wave (.+?) was judged good: (.+?); the next one waits for an operator', '{name,verdict}'),
    ('', 'wave_failed_gate', 'wave (.+?) failed: (.+?); advance or abort', '{name,verdict}'),
    ('', 'wave_failed', 'wave (.+?) failed: (.+?)', '{name,verdict}'),
    ('', 'wave_empty', 'the wave holds no device', '{}'),
    ('', 'wave_no_verdict', 'no device of the wave came to a verdict \((\d+) skipped, canceled or removed\): nothing speaks for the image', '{left_out}'),
    ('', 'wave_hopeless', '(\d+) of (\d+) devices succeeded \((\S+) %\); (\S+) % cannot be reached any more', '{succeeded,of,share,needed}'),
    ('', 'wave_under_way', '(\d+) of (\d+) devices are not done', '{open,size}'),
    ('', 'wave_soaking', '(\d+) devices have to stay well for (\S+)', '{devices,soak_ms}'),
    ('', 'wave_unreachable', '(\d+) of (\d+) verdicts; (\d+) devices cannot be reached', '{verdicts,needed,unreachable}'),
    ('', 'wave_too_few', '(\d+) of (\d+) devices succeeded \((\S+) %\), of (\S+) % needed', '{succeeded,of,share,needed}'),
    ('', 'wave_some_left', '(\d+) of (\d+) devices succeeded \((\S+) %\); (\d+) could not be reached yet', '{succeeded,of,share,unreachable}'),
    ('', 'wave_rate', '(\d+) of (\d+) devices succeeded \((\S+) %\)', '{succeeded,of,share}'),
    ('', 'wave_opened_by_hand', 'opened the next wave by hand', '{}'),
    ('', 'fit_unknown', 'no boot poll told its chip and partitions', '{}'),
    ('', 'fit_release', 'release (.+?) has no image for (.+?) with (.+?)', '{version,board,chip}'),
    ('', 'fit_board', 'the image is for (.+?), the device is a (.+?)', '{board,other}'),
    ('', 'fit_chip', 'the image is for (.+?), the device has (.+?)', '{chip,other}'),
    ('', 'fit_rev_min', 'chip revision (.+?), the image needs (.+?)', '{revision,least}'),
    ('', 'fit_rev_max', 'chip revision (.+?), the image takes up to (.+?)', '{revision,highest}'),
    ('', 'fit_slot', 'slot of ([\d,]+) KiB, image of ([\d,]+) KiB', '{slot_kib,image_kib}'),
    ('', 'fit_no_slot', 'its flash has no OTA slot', '{}'),
    ('', 'fit_partition', '(.+?) needs a partition named (.+?); the device has (.+?)', '{version,name,labels}'),
    ('', 'fit_held', 'held by (.+?): (.+?)', '{name,detail}'),
    ('', 'fit_newer', 'runs (.+?), newer than (.+?)', '{version,other}'),
    ('', 'fit_other_build', 'runs another build of (.+?)', '{version}'),
    ('', 'fit_busy', 'has a part in the campaign (.+?)', '{name}'),
    ('', 'fit_no_tool', 'offers no (.+?)', '{tool}'),
    ('', 'check_tools_lost_more', 'tools that must stay are gone: (.+?), (\d+) more', '{tools,more}'),
    ('', 'check_tools_lost', 'tools that must stay are gone: (.+?)', '{tools}'),
    ('', 'check_heap', '([\d,]+) KiB of heap were free at the least, ([\d,]+) before the upgrade: (\S+) %, at least (\d+) % must be', '{after_bytes,before_bytes,share,least}'),
    ('part', 'scope_campaign', 'the campaign', '{}'),
    ('part', 'scope_wave_named', 'wave (\d+) \((.+?)\)', '{wave,name}'),
    ('part', 'scope_wave', 'wave (\d+)', '{wave}'),
    ('part', 'scope_board_unnamed', 'board \(not stated\)', '{}'),
    ('part', 'scope_board', 'board (.+?)', '{name}'),
    ('part', 'limit_first', 'the first', '{}'),
    ('part', 'limit_share', '(\S+) %', '{share}'),
    ('presence', 'connected', 'connected from (.+?)', '{address}'),
    ('presence', 'disconnected', 'disconnected', '{}'),
    ('presence', 'disconnected_because', 'disconnected: (.+?)', '{detail}'),
    ('presence', 'connection_lost', 'connection lost', '{}'),
    ('presence', 'connection_lost_because', 'connection lost: (.+?)', '{detail}'),
    ('presence', 'answered_again', 'answered again', '{}'),
    ('presence', 'fleetd_started', 'fleetd started', '{}');

-- +goose StatementBegin
CREATE FUNCTION fleetd_0017_reason(said text, of_kind text) RETURNS jsonb LANGUAGE plpgsql AS $body$
DECLARE
    f     record;
    found text[];
    param jsonb;
    all_  jsonb;
BEGIN
    FOR f IN SELECT * FROM fleetd_0017_forms WHERE kind = of_kind ORDER BY place LOOP
        found := regexp_match(said, '^(?:' || f.form || ')$');
        CONTINUE WHEN found IS NULL;
        all_ := '{}';
        FOR i IN 1 .. cardinality(f.names) LOOP
            IF f.names[i] IN ('why', 'verdict') THEN
                param := fleetd_0017_reason(found[i], '');
            ELSIF f.names[i] IN ('scope', 'limit') THEN
                param := fleetd_0017_reason(found[i], 'part');
            ELSIF f.names[i] = 'outcome' THEN
                param := jsonb_build_object('code', 'outcome_' || found[i]);
            ELSIF f.names[i] = 'opens_at' THEN
                param := to_jsonb(to_char(found[i]::timestamptz AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'));
            ELSIF f.names[i] LIKE '%\_ms' THEN
                param := to_jsonb(round(extract(epoch FROM found[i]::interval) * 1000)::bigint);
            ELSIF f.names[i] LIKE '%\_bytes' THEN
                param := to_jsonb(replace(found[i], ',', '')::bigint * 1024);
            ELSIF f.names[i] LIKE '%\_kib' THEN
                param := to_jsonb(replace(found[i], ',', '')::bigint);
            ELSIF f.names[i] IN ('offset', 'times', 'most', 'counted', 'of', 'sample', 'wave', 'left_out', 'succeeded', 'open',
                'size', 'devices', 'verdicts', 'unreachable', 'more')
                OR f.code = 'check_heap' AND f.names[i] = 'least' OR f.code = 'wave_unreachable' AND f.names[i] = 'needed' THEN
                param := to_jsonb(found[i]::bigint);
            ELSE
                param := to_jsonb(found[i]);
            END IF;
            all_ := all_ || jsonb_build_object(f.names[i], param);
        END LOOP;
        IF f.code = 'failed_attempts' AND NOT all_ ? 'within_ms' THEN
            all_ := all_ || '{"within_ms": 86400000}';
        END IF;
        IF all_ = '{}' THEN
            RETURN jsonb_build_object('code', f.code);
        END IF;
        RETURN jsonb_build_object('code', f.code, 'params', all_);
    END LOOP;
    RETURN jsonb_build_object('code', 'legacy', 'params', jsonb_build_object('detail', said));
EXCEPTION WHEN data_exception THEN -- a number or time that is none
    RETURN jsonb_build_object('code', 'legacy', 'params', jsonb_build_object('detail', said));
END
$body$;
-- +goose StatementEnd

-- What an event said depends on its kind. asked: an operator asked for the retry.
-- +goose StatementBegin
CREATE FUNCTION fleetd_0017_event(kind text, asked boolean, said text) RETURNS jsonb LANGUAGE plpgsql AS $body$
DECLARE
    found text[];
BEGIN
    CASE
    WHEN kind IN ('planned', 'unfit') OR kind = 'canceled' AND said = 'superseded' THEN
        RETURN jsonb_build_object('code', 'skipped', 'params', jsonb_build_object('skip', said));
    WHEN kind = 'wave_opened' THEN
        RETURN jsonb_build_object('code', 'wave', 'params', jsonb_build_object('name', said));
    WHEN kind = 'connect' THEN
        RETURN jsonb_build_object('code', 'address', 'params', jsonb_build_object('address', said));
    WHEN kind IN ('disconnect', 'connection_lost') THEN
        RETURN jsonb_build_object('code', 'connection_ended', 'params', jsonb_build_object('detail', said));
    WHEN kind IN ('answer', 'late_answer') THEN
        RETURN jsonb_build_object('code', 'answered', 'params', jsonb_build_object('detail', said));
    WHEN kind = 'retry' AND asked THEN
        RETURN jsonb_build_object('code', 'retry_asked', 'params', jsonb_build_object('name', said));
    WHEN kind IN ('refused', 'not_sent') THEN
        found := regexp_match(said, '^tool_error: (invalid|not_found|busy|no_memory|no_space|timeout|unavailable|refused|corrupt|'
            || 'wrong_target|io|unsupported|canceled): (.*)$');
        IF found IS NOT NULL THEN
            RETURN jsonb_build_object('code', 'tool_refused', 'params',
                jsonb_build_object('error', found[1], 'detail', found[2]));
        END IF;
        found := regexp_match(said, '^([a-z0-9_]+): (.*)$');
        IF found[1] = 'tool_error' THEN
            RETURN jsonb_build_object('code', 'tool_refused_text', 'params', jsonb_build_object('detail', found[2]));
        ELSIF found IS NOT NULL THEN
            RETURN jsonb_build_object('code', 'call_failed', 'params',
                jsonb_build_object('error', found[1], 'detail', found[2]));
        END IF;
    WHEN kind = 'job' THEN
        found := regexp_match(said, '^progress (\d{1,3})$');
        IF found IS NOT NULL THEN
            RETURN jsonb_build_object('code', 'job_progress', 'params', jsonb_build_object('percent', found[1]::bigint));
        END IF;
        found := regexp_match(said, '^failed (\S*): ?(.*)$');
        IF found IS NOT NULL THEN
            RETURN jsonb_build_object('code', 'job_failed', 'params',
                jsonb_build_object('error', found[1], 'detail', found[2]));
        END IF;
        IF said IN ('accepted', 'done') THEN
            RETURN jsonb_build_object('code', 'job_' || said);
        END IF;
    ELSE
    END CASE;
    RETURN fleetd_0017_reason(said, '');
END
$body$;
-- +goose StatementEnd

ALTER TABLE campaigns ADD COLUMN reason_code text NOT NULL DEFAULT '', ADD COLUMN reason_params jsonb;
ALTER TABLE waves ADD COLUMN verdict_code text NOT NULL DEFAULT '', ADD COLUMN verdict_params jsonb;
ALTER TABLE deployments ADD COLUMN reason_code text NOT NULL DEFAULT '', ADD COLUMN reason_params jsonb;
ALTER TABLE deployment_events ADD COLUMN reason_code text NOT NULL DEFAULT '', ADD COLUMN reason_params jsonb;
ALTER TABLE quarantines ADD COLUMN reason_code text NOT NULL DEFAULT '', ADD COLUMN reason_params jsonb;
ALTER TABLE devices ADD COLUMN presence_evidence_code text NOT NULL DEFAULT '', ADD COLUMN presence_evidence_params jsonb;

-- Each different text is looked at once.
UPDATE campaigns c SET reason_code = r.reason ->> 'code', reason_params = r.reason -> 'params'
FROM (SELECT id, CASE WHEN state = 'denied' OR pause_reason = 'operator'
        THEN jsonb_build_object('code', 'by_operator', 'params', jsonb_build_object('detail', reason))
        ELSE fleetd_0017_reason(reason, '') END AS reason
    FROM campaigns WHERE reason <> '') r
WHERE c.id = r.id;

UPDATE waves w SET verdict_code = r.reason ->> 'code', verdict_params = r.reason -> 'params'
FROM (SELECT verdict, fleetd_0017_reason(verdict, '') AS reason FROM (SELECT DISTINCT verdict FROM waves WHERE verdict <> '') d) r
WHERE w.verdict = r.verdict;

UPDATE deployments w SET reason_code = r.reason ->> 'code', reason_params = r.reason -> 'params'
FROM (SELECT said, fleetd_0017_reason(said, '') AS reason
    FROM (SELECT DISTINCT reason AS said FROM deployments WHERE reason <> '' AND skip <> 'image_revoked') d) r
WHERE w.reason = r.said AND w.skip <> 'image_revoked';
UPDATE deployments SET reason_code = 'fit_revoked', reason_params = jsonb_build_object('detail', reason)
WHERE reason <> '' AND skip = 'image_revoked' AND wave < 0;
UPDATE deployments SET reason_code = 'does_not_fit' WHERE reason <> '' AND skip = 'image_revoked' AND wave >= 0;

UPDATE deployment_events e SET reason_code = r.reason ->> 'code', reason_params = r.reason -> 'params'
FROM (SELECT kind, asked, detail, fleetd_0017_event(kind, asked, detail) AS reason
    FROM (SELECT DISTINCT kind, finished_state AS asked, detail
        FROM (SELECT kind, detail, from_state IN ('succeeded', 'failed', 'timed_out', 'rolled_back', 'wrong_build', 'unhealthy',
                'rejected', 'skipped', 'canceled', 'expired', 'aborted', 'removed') AS finished_state
            FROM deployment_events WHERE detail <> '') all_) d) r
WHERE e.kind = r.kind AND e.detail = r.detail
    AND r.asked = (e.from_state IN ('succeeded', 'failed', 'timed_out', 'rolled_back', 'wrong_build', 'unhealthy', 'rejected',
        'skipped', 'canceled', 'expired', 'aborted', 'removed'));

UPDATE quarantines q SET reason_code = r.reason ->> 'code', reason_params = r.reason -> 'params'
FROM (SELECT said, fleetd_0017_reason(said, '') AS reason
    FROM (SELECT DISTINCT reason AS said FROM quarantines WHERE reason <> '') d) r
WHERE q.reason = r.said;

UPDATE devices d SET presence_evidence_code = r.reason ->> 'code', presence_evidence_params = r.reason -> 'params'
FROM (SELECT said, silent, CASE WHEN silent
        THEN jsonb_build_object('code', 'does_not_answer', 'params', jsonb_build_object('detail', said))
        ELSE fleetd_0017_reason(said, 'presence') END AS reason
    FROM (SELECT DISTINCT presence_evidence AS said, presence = 'unresponsive' AS silent
        FROM devices WHERE presence_evidence <> '') d) r
WHERE d.presence_evidence = r.said AND (d.presence = 'unresponsive') = r.silent;

ALTER TABLE campaigns DROP COLUMN reason;
ALTER TABLE waves DROP COLUMN verdict;
ALTER TABLE deployments DROP COLUMN reason;
ALTER TABLE deployment_events DROP COLUMN detail;
ALTER TABLE quarantines DROP COLUMN reason;
ALTER TABLE devices DROP COLUMN presence_evidence;

DROP FUNCTION fleetd_0017_event(text, boolean, text);
DROP FUNCTION fleetd_0017_reason(text, text);
DROP TABLE fleetd_0017_forms;
