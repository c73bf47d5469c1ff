package migrations_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"fleetd/fleet"
	"fleetd/fleet/postgres/pgtest"
	"fleetd/migrations"
	"fleetd/web/i18n"
)

// upTo returns a database as it was after the migration with that number.
func upTo(t *testing.T, version int64) *pgxpool.Pool {
	t.Helper()
	db := open(t, pgtest.Empty(t))
	sqlDB := stdlib.OpenDBFromPool(db)
	defer sqlDB.Close()
	p, err := goose.NewProvider(goose.DialectPostgres, sqlDB, migrations.Files())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
	return db
}

func exec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// An oldReason is a stored sentence and the reason that replaces it. The English text of the code
// equals the sentence, except for the format of numbers.
type oldReason struct {
	said string
	want fleet.Reason
	text string // of the code; "" if equal to said
}

var because = fleet.Because

// oldReasons lists all sentences that were stored for deployments.
var oldReasons = []oldReason{
	{"the device was retired", because("device_retired"), ""},
	{"the device does not fit any more", because("does_not_fit"), "the device no longer fits"},
	{"the link was revoked while the device was being updated", because("link_revoked"), ""},
	{"fleetd stopped while the call was being sent: the device may have been told", because("stopped_while_sending"),
		"fleetd stopped while the call was being sent: the device may have received it"},
	{"fleetd restarted during the download", because("restarted_in_download"), ""},
	{"the device had no room for the call", because("device_busy"), "the device had no buffer left for the call"},
	{"the call was not sent: device_offline: the device is not connected", because("call_not_sent", "error",
		"device_offline", "detail", "the device is not connected"), ""},
	{"the device came back with a build that is neither the image nor the one it had before: 0123456789ab",
		because("other_build", "build", "0123456789ab"), "the device came back with a build that is neither the image nor its previous one: 0123456789ab"},
	{"the device took the image and came back with the build it had before: the new one did not last",
		because("rolled_back"), "the device accepted the image but came back with its previous build: the new build did not pass its trial"},
	{"restarted during the download, and runs its old build", because("restarted_early"), "restarted during the download and runs its old build"},
	{"the download took longer than 16m15s; 16 of 2600 KiB were sent", because("download_too_slow", "limit_ms",
		16*time.Minute+15*time.Second, "sent_bytes", 16<<10, "image_bytes", 2600<<10),
		"the download took longer than 16 min 15 s; 16.0 KiB of 2.5 MiB were sent"},
	{"the download stalled for 1m30s; 12 of 586 KiB were sent", because("download_stalled", "idle_ms", 90*time.Second,
		"sent_bytes", 12<<10, "image_bytes", 586<<10), "the download stalled for 1 min 30 s; 12.0 KiB of 586 KiB were sent"},
	{"the download broke off; 12 of 586 KiB were sent", because("download_broke_off", "sent_bytes", 12<<10,
		"image_bytes", 586<<10), "the download broke off; 12.0 KiB of 586 KiB were sent"},
	{"the download broke off; 12 of 586 KiB were sent: the connection ended", because("download_broke_off_because",
		"sent_bytes", 12<<10, "image_bytes", 586<<10, "why", because("download_conn_closed")),
		"the download broke off; 12.0 KiB of 586 KiB were sent: the connection ended"},
	{"the download broke off; 12 of 586 KiB were sent: write: broken pipe", because("download_broke_off_because",
		"sent_bytes", 12<<10, "image_bytes", 586<<10, "why", because("legacy", "detail", "write: broken pipe")),
		"the download broke off; 12.0 KiB of 586 KiB were sent: write: broken pipe"},
	{"the device answered the call with an error", because("call_refused"), ""},
	{"runs the new build, but its boot poll never arrived: it is unconfirmed and falls back at its next restart",
		because("running_unconfirmed"), "runs the new build, but its boot poll never arrived; the build is unconfirmed and will be rolled back at the next restart"},
	{"runs the new build and is connected, but its boot poll never arrived", because("running_poll_unseen"), ""},
	{"boot poll: runs the new build and is connected, but its boot poll never arrived", because("no_boot_poll_because",
		"why", because("running_poll_unseen")), ""},
	{"boot poll: runs the new build, but its boot poll never arrived: it is unconfirmed and falls back at its next restart",
		because("no_boot_poll_because", "why", because("running_unconfirmed")), "boot poll: runs the new build, but its boot poll never arrived; the build is unconfirmed and will be rolled back at the next restart"},
	{"boot poll: the device has the whole image and did not poll since", because("no_boot_poll"), "boot poll: the device has the whole image but has not polled since"},
	{"the device refused the image: it had every byte and went on with its old build", because("image_refused"), "the device refused the image: it received every byte but kept its old build"},
	{"was told of the image and has not fetched it: it still may", because("may_still_fetch"),
		"was notified of the image but has not fetched it; it still may"},
	{"was offered the image and did not fetch it", because("offer_not_fetched"), "was offered the image but did not fetch it"},
	{"was told to upgrade and did not fetch the image", because("not_fetched"),
		"was ordered to upgrade but did not fetch the image"},
	{"connect: polled with the new build and never connected", because("never_connected"), "connect: polled with the new build but never connected"},
	{"a health check failed", because("check_failed"), ""},
	{"the soak is over; waits for connection: the device went away during the soak", because("soaked_not_connected"), "the soak is over; waiting for the connection, because the device went offline during the soak"},
	{"the soak is over; waits for answer to the health checks", because("soaked_not_checked"), "the soak is over; waiting for the answer to the health checks"},
	{"verifying: no connection: the device went away during the soak", because("verifying_no_connection"), "verifying: no connection; the device went offline during the soak"},
	{"verifying: no answer to the health checks", because("verifying_no_answer"), ""},
	{"reconnected 4 times in the soak, at most 3 are allowed", because("reconnected_too_often", "times", 4, "most", 3), "reconnected 4 times during the soak; at most 3 are allowed"},
	{"came back with the build it had before; waits for the device to say why", because("awaiting_report"), "came back with its previous build; waiting for the device to report why"},
	{"the device says: it failed", because("device_failed"), "the device reports a failure"},
	{"the device says: no: never", because("device_reported", "detail", "no: never"), "the device reports: no: never"},
	{"the device says: the device was retired", because("device_reported", "detail", "the device was retired"), "the device reports: the device was retired"},
	{"was told to restart, so that it asks for its firmware", because("restart_ordered"),
		"was ordered to restart so that it requests its firmware"},
	{"the campaign was aborted", because("campaign_aborted"), ""},
	{"the campaign's time was up", because("campaign_time_up"), "the campaign reached its end time"},
	{"the image was revoked", because("image_revoked"), ""},
	{"busy in campaign spring: 'a' (b)", because("busy_in_campaign", "name", "spring: 'a' (b)"), ""},
	{"taken over by campaign urgent", because("taken_over", "name", "urgent"), ""},
	{"no boot poll told its chip and partitions", because("fit_unknown"),
		"no boot poll has reported its chip and partitions"},
	{"release 2.5.0 has no image for esp-box-3 with esp32s3", because("fit_release", "version", "2.5.0", "board",
		"esp-box-3", "chip", "esp32s3"), ""},
	{"the image is for esp-box-3, the device is a bread-compact", because("fit_board", "board", "esp-box-3", "other",
		"bread-compact"), "the image is for esp-box-3, but the device is a bread-compact"},
	{"the image is for esp32s3, the device has esp32c3", because("fit_chip", "chip", "esp32s3", "other", "esp32c3"), "the image is for esp32s3, but the device has esp32c3"},
	{"chip revision v0.2, the image needs v1.0", because("fit_rev_min", "revision", "v0.2", "least", "v1.0"), "the chip has revision v0.2, but the image needs v1.0 or later"},
	{"chip revision v3.1, the image takes up to v1.99", because("fit_rev_max", "revision", "v3.1", "highest", "v1.99"), "the chip has revision v3.1, but the image supports only up to v1.99"},
	{"slot of 1,536 KiB, image of 2,667 KiB", because("fit_slot", "slot_kib", 1536, "image_kib", 2667), "the slot has 1,536 KiB, the image 2,667 KiB"},
	{"its flash has no OTA slot", because("fit_no_slot"), ""},
	{"2.0 needs a partition named assets; the device has nvs, ota_0", because("fit_partition", "version", "2.0", "name",
		"assets", "labels", "nvs, ota_0"), ""},
	{"held by ada: on loan: ask", because("fit_held", "name", "ada", "detail", "on loan: ask"), ""},
	{"runs 2.6.0, newer than 2.5.0", because("fit_newer", "version", "2.6.0", "other", "2.5.0"), ""},
	{"runs another build of 2.5.0", because("fit_other_build", "version", "2.5.0"), ""},
	{"has a part in the campaign spring", because("fit_busy", "name", "spring"), "is part of the campaign spring"},
	{"offers no self.upgrade_firmware", because("fit_no_tool", "tool", "self.upgrade_firmware"), "has no tool self.upgrade_firmware"},
	{"tools that must stay are gone: a, b, 2 more", because("check_tools_lost_more", "tools", "a, b", "more", 2), "tools that must remain are gone: a, b and 2 more"},
	{"tools that must stay are gone: a, b", because("check_tools_lost", "tools", "a, b"), "tools that must remain are gone: a, b"},
	{"3 failed attempts within 24 hours", because("failed_attempts", "times", 3, "within_ms", 24*time.Hour),
		"3 failed attempts within 1 day"},
	{"5 failed attempts within 3m0s", because("failed_attempts", "times", 5, "within_ms", 3*time.Minute),
		"5 failed attempts within 3 min"},
	{"self.get_device_status: $.battery is 3, must be 5", because("legacy", "detail",
		"self.get_device_status: $.battery is 3, must be 5"), ""},
	{"the download stalled for ever; 1 of 2 KiB were sent", because("legacy", "detail",
		"the download stalled for ever; 1 of 2 KiB were sent"), ""},
	{"the device was retired\nnot", fleet.Reason{Code: "legacy", // the migration keeps text as it is
		Params: fleet.Params{"detail": "the device was retired\nnot"}}, ""},
}

// oldCampaigns lists the sentences of campaigns and their waves.
var oldCampaigns = []oldReason{
	{"2 of 12 devices in wave 1 (canary: a) ended rolled_back (16.7 %); the rule stops at 10 % of at least 5",
		because("abort_rule", "counted", 2, "of", 12, "scope", because("scope_wave_named", "wave", 1, "name", "canary: a"),
			"outcome", because("outcome_rolled_back"), "share", "16.7", "limit", because("limit_share", "share", "10"),
			"sample", 5),
		"2 of 12 devices in wave 1 (canary: a) ended rolled back (16.7%); the rule stops at 10% of at least 5"},
	{"1 of 1 devices in wave 2 ended failed (100 %); the rule stops at the first of at least 1", because("abort_rule",
		"counted", 1, "of", 1, "scope", because("scope_wave", "wave", 2), "outcome", because("outcome_failed"),
		"share", "100", "limit", because("limit_first"), "sample", 1), ""},
	{"1 of 1 devices in the campaign ended failed (100 %); the rule stops at the first of at least 1",
		because("abort_rule", "counted", 1, "of", 1, "scope", because("scope_campaign"), "outcome",
			because("outcome_failed"), "share", "100", "limit", because("limit_first"), "sample", 1), ""},
	{"1 of 1 devices in board esp-box-3 ended unhealthy (100 %); the rule stops at the first of at least 1",
		because("abort_rule", "counted", 1, "of", 1, "scope", because("scope_board", "name", "esp-box-3"), "outcome",
			because("outcome_unhealthy"), "share", "100", "limit", because("limit_first"), "sample", 1), ""},
	{"1 of 1 devices in board (not stated) ended unhealthy (100 %); the rule stops at the first of at least 1",
		because("abort_rule", "counted", 1, "of", 1, "scope", because("scope_board_unnamed"), "outcome",
			because("outcome_unhealthy"), "share", "100", "limit", because("limit_first"), "sample", 1), ""},
	{"aborted by ada", because("aborted_by", "name", "ada"), ""},
	{"no window opens within the next 400 days", because("no_window"), ""},
	{"the next window opens at 2026-08-02 02:00 UTC", because("next_window", "opens_at",
		time.Date(2026, 8, 2, 2, 0, 0, 0, time.UTC)), "the next window opens at 2 Aug 2026, 02:00:00"},
	{"the next window opens at 2026-08-02 02:00 +03", because("next_window", "opens_at",
		time.Date(2026, 8, 1, 23, 0, 0, 0, time.UTC)), "the next window opens at 1 Aug 2026, 23:00:00"},
	{"the next window opens at 2026-08-02 02:00 CST", because("legacy", "detail", // of which zone?
		"the next window opens at 2026-08-02 02:00 CST"), ""},
	{"release 2.5.0 was revoked: bricks: all", because("release_revoked", "version", "2.5.0", "detail", "bricks: all"), ""},
	{"the release is gone", because("release_gone"), ""},
	{"the image 0123456789ab was revoked: bad", because("image_was_revoked", "image", "0123456789ab", "detail", "bad"), ""},
	{"the image 0123456789ab is gone", because("image_gone", "image", "0123456789ab"), ""},
	{"wave canary was judged good: 9 of 10 devices succeeded (90 %); the next one waits for an operator",
		because("wave_passed", "name", "canary", "verdict", because("wave_rate", "succeeded", 9, "of", 10, "share", "90")), "wave canary passed: 9 of 10 devices succeeded (90%); the next wave is waiting for an operator"},
	{"wave canary failed: 8 of 10 devices succeeded (80 %), of 90 % needed; advance or abort", because("wave_failed_gate",
		"name", "canary", "verdict", because("wave_too_few", "succeeded", 8, "of", 10, "share", "80", "needed", "90")),
		"wave canary failed: 8 of 10 devices succeeded (80%); 90% is required; open the next wave, or stop the campaign"},
	{"wave 2 failed: 8 of 10 devices succeeded (80 %); 90 % cannot be reached any more", because("wave_failed", "name", "2",
		"verdict", because("wave_hopeless", "succeeded", 8, "of", 10, "share", "80", "needed", "90")), "wave 2 failed: 8 of 10 devices succeeded (80%); 90% can no longer be reached"},
	{"the wave holds no device", because("wave_empty"), "the wave contains no devices"},
	{"no device of the wave came to a verdict (4 skipped, canceled or removed): nothing speaks for the image",
		because("wave_no_verdict", "left_out", 4), "no device in the wave reached a verdict (4 skipped, canceled or removed), so there is no evidence for the image"},
	{"10 of 12 devices are not done", because("wave_under_way", "open", 10, "size", 12), ""},
	{"3 devices have to stay well for 2m0s", because("wave_soaking", "devices", 3, "soak_ms", 2*time.Minute),
		"3 devices have to stay healthy for 2 min"},
	{"4 of 5 verdicts; 6 devices cannot be reached", because("wave_unreachable", "verdicts", 4, "needed", 5, "unreachable",
		6), ""},
	{"5 of 5 devices succeeded (100 %); 5 could not be reached yet", because("wave_some_left", "succeeded", 5, "of", 5,
		"share", "100", "unreachable", 5), ""},
	{"9 of 10 devices succeeded (90 %)", because("wave_rate", "succeeded", 9, "of", 10, "share", "90"), ""},
	{"opened the next wave by hand", because("wave_opened_by_hand"), "opened the next wave manually"},
	{"lunch", because("legacy", "detail", "lunch"), ""},
}

// oldEvents lists the sentences of events by kind.
var oldEvents = []struct {
	kind, from string
	oldReason
}{
	{"planned", "skipped", oldReason{"too_large", because("skipped", "skip", "too_large"), ""}},
	{"unfit", "queued", oldReason{"held", because("skipped", "skip", "held"), ""}},
	{"canceled", "queued", oldReason{"superseded", because("skipped", "skip", "superseded"), ""}},
	{"canceled", "queued", oldReason{"the campaign was aborted", because("campaign_aborted"), ""}},
	{"wave_opened", "pending", oldReason{"canary", because("wave", "name", "canary"), ""}},
	{"connect", "sent", oldReason{"192.0.2.1", because("address", "address", "192.0.2.1"), ""}},
	{"connection_lost", "sent", oldReason{"keep alive timed out", because("connection_ended", "detail",
		"keep alive timed out"), ""}},
	{"disconnect", "sent", oldReason{"bye", because("connection_ended", "detail", "bye"), ""}},
	{"answer", "sent", oldReason{"true", because("answered", "detail", "true"), ""}},
	{"late_answer", "sent", oldReason{"the device was retired", because("answered", "detail", "the device was retired"), ""}},
	{"retry", "failed", oldReason{"the device was retired", because("retry_asked", "name", "the device was retired"), ""}},
	{"retry", "sent", oldReason{"was told to upgrade and did not fetch the image", because("not_fetched"),
		"was ordered to upgrade but did not fetch the image"}},
	{"refused", "sent", oldReason{"tool_error: busy: an upgrade: is under way", because("tool_refused", "error", "busy",
		"detail", "an upgrade: is under way"), ""}},
	{"refused", "sent", oldReason{"tool_error: Missing valid argument: url", because("tool_refused_text", "detail",
		"Missing valid argument: url"), ""}},
	{"refused", "sent", oldReason{"answered_false: the device answered false", because("call_failed", "error",
		"answered_false", "detail", "the device answered false"), ""}},
	{"not_sent", "dispatching", oldReason{"device_busy: 8 calls wait", because("call_failed", "error", "device_busy",
		"detail", "8 calls wait"), ""}},
	{"job", "sent", oldReason{"accepted", because("job_accepted"), ""}},
	{"job", "sent", oldReason{"progress 25", because("job_progress", "percent", 25), "progress 25%"}},
	{"job", "sent", oldReason{"done", because("job_done"), ""}},
	{"job", "sent", oldReason{"failed corrupt: SHA-256: wrong", because("job_failed", "error", "corrupt", "detail",
		"SHA-256: wrong"), ""}},
	{"job", "sent", oldReason{"failed : it broke", because("job_failed", "error", "", "detail", "it broke"), ""}},
	{"get", "sent", oldReason{"from byte 4096 on", because("download_resumed", "offset", 4096), "resumed at byte 4,096"}},
	{"cut", "downloading", oldReason{"the device took no more bytes", because("download_stuck"), "the device stopped accepting data"}},
	{"cut", "downloading", oldReason{"the link was revoked", because("download_revoked"), ""}},
	{"cut", "downloading", oldReason{"fleetd could not read the image", because("download_unreadable"), ""}},
	{"quarantined", "queued", oldReason{"3 failed attempts within 24 hours", because("failed_attempts", "times", 3,
		"within_ms", 24*time.Hour), "3 failed attempts within 1 day"}},
	{"unhealthy", "verifying", oldReason{"$.a is gone", because("legacy", "detail", "$.a is gone"), ""}},
	{"sent", "dispatching", oldReason{"", fleet.Reason{}, ""}},
}

var oldPresence = []struct {
	presence string
	oldReason
}{
	{"online", oldReason{"connected from 192.0.2.1", because("connected", "address", "192.0.2.1"), ""}},
	{"offline", oldReason{"disconnected", because("disconnected"), ""}},
	{"offline", oldReason{"disconnected: bye", because("disconnected_because", "detail", "bye"), ""}},
	{"offline", oldReason{"connection lost", because("connection_lost"), ""}},
	{"offline", oldReason{"connection lost: EOF", because("connection_lost_because", "detail", "EOF"), ""}},
	{"online", oldReason{"answered again", because("answered_again"), "responds again"}},
	{"offline", oldReason{"fleetd started", because("fleetd_started"),
		"fleetd was down, and the device has not connected since"}},
	{"unresponsive", oldReason{"no answer to ping", because("does_not_answer", "detail", "no answer to ping"), ""}},
	{"offline", oldReason{"something else", because("legacy", "detail", "something else"), ""}},
	{"pending", oldReason{"", fleet.Reason{}, ""}},
}

const (
	anActor = `{"kind":"operator","id":"1","name":"ada","role":"admin"}`
	aUUID   = "00000000-0000-0000-0000-%012d"
)

// Every stored sentence becomes its code, whose text is the same.
func TestReasonsBecomeCodes(t *testing.T) {
	db := upTo(t, 16)
	campaign := func(n int, state, paused, reason string) string {
		id := fmt.Sprintf(aUUID, n)
		exec(t, db, `INSERT INTO campaigns (id, name, plan, state, pause_reason, reason, created_by, created_at, edited_by,
				edited_at) VALUES ($1, 'c', '{}', $2, $3, $4, $5, now(), $5, now())`, id, state, paused, reason, anActor)
		return id
	}
	deployment := func(n int, state, skip, reason string, wave int) string {
		id := fmt.Sprintf(aUUID, 100_000+n)
		exec(t, db, `INSERT INTO deployments (id, campaign_id, wave, state, skip, device_id, created_at, updated_at,
				finished_at, reason)
			VALUES ($1, $2, $5, $3, $4, $6, now(), now(), now(), $7)`, id, fmt.Sprintf(aUUID, 1), state, skip, wave,
			fmt.Sprint("d", n), reason)
		return id
	}
	campaign(1, "draft", "", "")
	for i, o := range oldReasons {
		id := deployment(i, "skipped", "held", o.said, -1)
		exec(t, db, `INSERT INTO quarantines (device_id, reason, since, until) VALUES ($1, $2, now(), now())`, id, o.said)
	}
	revoked := deployment(1000, "skipped", "image_revoked", "the device was retired", -1)
	dropped := deployment(1001, "skipped", "image_revoked", "the device does not fit any more", 0)
	for i, o := range oldCampaigns {
		campaign(1000+i, "paused", "system", o.said)
		exec(t, db, `INSERT INTO waves (campaign_id, number, plan, size, state, verdict) VALUES ($1, $2, '{}', 1, 'running', $3)`,
			fmt.Sprintf(aUUID, 1), i, o.said)
	}
	denied, paused := campaign(2, "denied", "", "the release is gone"), campaign(3, "paused", "operator", "no_window")
	for i, o := range oldEvents {
		exec(t, db, `INSERT INTO deployment_events (deployment_id, id, at, attempt, kind, from_state, to_state, detail)
			VALUES ($1, $2, now(), 1, $3, $4, 'queued', $5)`, revoked, fmt.Sprintf(aUUID, i), o.kind, o.from, o.said)
	}
	for i, o := range oldPresence {
		exec(t, db, `INSERT INTO devices (id, presence, presence_since, presence_evidence, created_at)
			VALUES ($1, $2, now(), $3, now())`, fmt.Sprint("p", i), o.presence, o.said)
	}

	if err := migrations.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}

	check := func(o oldReason, sql string, args ...any) {
		t.Helper()
		got := reasonAt(t, db, sql, args...)
		if diff := cmp.Diff(o.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", o.said, diff)
		}
		want := o.text
		if want == "" {
			want = strings.NewReplacer("1 of 1 devices", "1 of 1 device", " %", "%").Replace(o.said)
		}
		if text := i18n.Because(i18n.English, time.UTC, "reason.", got); text != want {
			t.Errorf("%q reads %q, want %q", o.said, text, want)
		}
	}
	const reasonOf = `SELECT reason_code, reason_params FROM `
	for i, o := range oldReasons {
		id := fmt.Sprintf(aUUID, 100_000+i)
		check(o, reasonOf+`deployments WHERE id = $1`, id)
		check(o, reasonOf+`quarantines WHERE device_id = $1`, id)
	}
	check(oldReason{"the device was retired", because("fit_revoked", "detail", "the device was retired"), ""},
		reasonOf+`deployments WHERE id = $1`, revoked)
	check(oldReason{"the device does not fit any more", because("does_not_fit"), "the device no longer fits"}, reasonOf+`deployments WHERE id = $1`,
		dropped)
	for i, o := range oldCampaigns {
		check(o, reasonOf+`campaigns WHERE id = $1`, fmt.Sprintf(aUUID, 1000+i))
		check(o, `SELECT verdict_code, verdict_params FROM waves WHERE number = $1`, i)
	}
	check(oldReason{"the release is gone", because("by_operator", "detail", "the release is gone"), ""},
		reasonOf+`campaigns WHERE id = $1`, denied)
	check(oldReason{"no_window", because("by_operator", "detail", "no_window"), ""}, reasonOf+`campaigns WHERE id = $1`,
		paused)
	for i, o := range oldEvents {
		check(o.oldReason, reasonOf+`deployment_events WHERE id = $1`, fmt.Sprintf(aUUID, i))
	}
	for i, o := range oldPresence {
		check(o.oldReason, `SELECT presence_evidence_code, presence_evidence_params FROM devices WHERE id = $1`,
			fmt.Sprint("p", i))
	}
	var left int
	if err := db.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_proc WHERE proname LIKE 'fleetd\_00%') +
		(SELECT count(*) FROM pg_class WHERE relname LIKE 'fleetd\_00%')`).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d helpers of the migration are left, %v", left, err)
	}
}

func reasonAt(t *testing.T, db *pgxpool.Pool, sql string, args ...any) (r fleet.Reason) {
	t.Helper()
	var params []byte
	if err := db.QueryRow(context.WithoutCancel(t.Context()), sql, args...).Scan(&r.Code, &params); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	if params != nil {
		if err := json.Unmarshal(params, &r.Params); err != nil {
			t.Fatal(err)
		}
	}
	return r
}
