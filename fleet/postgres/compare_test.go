package postgres_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/bench/large"
	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/compare"
	"fleetd/fleet/postgres"
	"fleetd/fleet/telemetry"
)

// compared makes 80 devices. A quarter of them fails: those have weak reception, and most are in one room and one
// network. It returns the ids of both sides.
func compared(t *testing.T, db *pgxpool.Pool, s *postgres.Store) (failed, well []fleet.DeviceID) {
	t.Helper()
	step := now().Add(-time.Hour).Truncate(telemetry.VitalsStep)
	points := map[fleet.DeviceID][]telemetry.VitalsPoint{}
	for i := range 80 {
		id := fleet.DeviceID(fmt.Sprintf("d%05d", i))
		addDevices(t, s, id)
		room, network, rssi := "site/b", "10.1.2."+strconv.Itoa(i), -60
		if i < 20 {
			failed = append(failed, id)
			rssi = -84
		} else {
			well = append(well, id)
		}
		if i < 18 {
			room, network = "site/a", "10.9.9."+strconv.Itoa(i)
		}
		if i == 3 {
			network = "not an address"
		}
		_, err := db.Exec(t.Context(), `UPDATE devices SET tags = ARRAY[$2::text], tags_key = E'\x01' || $2 || E'\x01',
			remote_addr = $3, board = 'one', version = '2.5.0' WHERE id = $1`, id, room, network)
		check(t, err)
		for _, at := range []time.Time{step, now().Truncate(telemetry.VitalsStep)} {
			points[id] = append(points[id], telemetry.VitalsPoint{At: at.Add(-telemetry.VitalsStep), Beats: 5, RSSI: &rssi,
				Uptime: time.Duration(i) * 24 * time.Hour})
		}
	}
	check(t, s.AddVitalsPoints(t.Context(), points))
	return failed, well
}

func differences(all []compare.Difference) string {
	var texts []string
	for _, d := range all {
		texts = append(texts, fmt.Sprintf("%s:%s=%d/%d,%d/%d", d.Fact, d.Value, d.Failed, d.FailedOf, d.Well, d.WellOf))
	}
	return strings.Join(texts, " ")
}

// What the devices of a campaign that failed have in common, and the same of a fan-out.
func TestCompare(t *testing.T) {
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	failed, well := compared(t, db, s)
	img := addImage(t, s, "target")
	r := &rig{Store: s, t: t, image: img, release: addRelease(t, s, img)}
	at := now().Add(-time.Hour).Truncate(telemetry.VitalsStep).Add(time.Minute)
	c, _ := r.campaignOf(campaign.DeploymentSucceeded, append(well, failed...)...)
	_, err := db.Exec(t.Context(), `UPDATE deployments SET sent_at = $1,
			state = CASE WHEN device_id = 'd00000' THEN 'sent' WHEN device_id = ANY ($2) THEN 'rolled_back' ELSE state END,
			finished_at = CASE WHEN device_id = 'd00000' THEN NULL ELSE finished_at END,
			updated_at = CASE WHEN device_id = 'd00000' THEN now() - interval '2 hours' ELSE updated_at END,
			from_version = CASE WHEN device_id = ANY ($2) THEN '2.3.0' ELSE '2.4.0' END WHERE campaign_id = $3`, at,
		failed, c.ID)
	check(t, err)
	service := compare.New(s)
	got, err := service.Campaign(t.Context(), c.ID)
	check(t, err)
	const shared = "place:site/a=18/20,0/60 network:10.9.9.0/24=17/19,0/60 uptime:604800=7/20,0/60"
	want := "version:2.3.0=20/20,0/60 signal:-80=20/20,0/60 " + shared
	if got.Failed != 20 || got.Well != 60 || differences(got.Differences) != want {
		t.Errorf("%d failed, %d well: %s", got.Failed, got.Well, differences(got.Differences))
	}

	f := call.FanOut{ID: uuid.Must(uuid.NewV7()), Actor: admin, Tool: "t", Arguments: []byte(`{}`), MaxInFlight: 2,
		State: call.FanOutCompleted, Targets: 80, CreatedAt: now(), FinishedAt: ptr(now())}
	var targets []call.FanOutTarget
	for _, id := range append(failed, well...) {
		targets = append(targets, call.FanOutTarget{Device: id})
	}
	check(t, s.CreateFanOut(t.Context(), &f, targets))
	for i, id := range append(failed, well...) {
		one := newCall(id, fleet.CallSent)
		one.FanOut = f.ID
		state := fleet.CallSucceeded
		if i < len(failed) {
			state = fleet.CallTimedOut
		}
		check(t, s.InsertCall(t.Context(), finish(one, state, `{"content":[]}`)))
	}
	got, err = service.FanOut(t.Context(), f.ID)
	check(t, err)
	want = "signal:-80=20/20,0/60 " + shared
	if got.Failed != 20 || got.Well != 60 || differences(got.Differences) != want {
		t.Errorf("fan-out: %d failed, %d well: %s", got.Failed, got.Well, differences(got.Differences))
	}

	scope, err := fleet.NewScope("tag:site/a", "", nil)
	check(t, err)
	narrow := fleet.WithScope(t.Context(), fleet.Principal{Role: fleet.RoleViewer, Scope: scope})
	_, err = service.Campaign(narrow, c.ID)
	wantKind(t, err, fleet.ErrNotFound)
	_, err = service.FanOut(narrow, f.ID)
	wantKind(t, err, fleet.ErrNotFound)
	_, err = service.Campaign(t.Context(), uuid.New())
	wantKind(t, err, fleet.ErrNotFound)
	_, err = service.FanOut(t.Context(), uuid.New())
	wantKind(t, err, fleet.ErrNotFound)
	c, _ = r.campaignOf(campaign.DeploymentSucceeded)
	if got, err := service.Campaign(t.Context(), c.ID); err != nil || got.Failed+got.Well+len(got.Differences) != 0 {
		t.Errorf("of a campaign without devices: %+v (%v)", got, err)
	}
}

// TestCompareScale times the comparison of a campaign over all devices.
func TestCompareScale(t *testing.T) {
	devices, _ := strconv.Atoi(os.Getenv(scalePlaces))
	if devices < 1 {
		t.Skipf("set %s=5000 to time the comparison of so many devices", scalePlaces)
	}
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	check(t, large.Fleet{Devices: devices}.Write(t.Context(), db))
	img := addImage(t, s, "target")
	r := &rig{Store: s, t: t, image: img, release: addRelease(t, s, img)}
	ids, err := s.DeviceIDs(t.Context(), fleet.Query{})
	check(t, err)
	c, _ := r.campaignOf(campaign.DeploymentSucceeded, ids...)
	for _, sql := range []string{
		`UPDATE deployments SET state = 'failed' WHERE hashtext(device_id) % 10 = 0`,
		`UPDATE devices SET remote_addr = '10.0.' || (hashtext(id) & 7) || '.9'`,
		`INSERT INTO vitals_points (at, beats, heap_free, heap_min, heap_largest, uptime, reconnects, boots, rssi, restarted, device_id)
			SELECT date_bin('5 min', now(), 'epoch') - interval '5 min' * n, 5, 1, 1, 1, 9999, 1, 1, -60 - (hashtext(id) & 31),
				false, id
			FROM devices, generate_series(1, 12) n`,
		`VACUUM ANALYZE deployments, devices, vitals_points`,
	} {
		_, err := db.Exec(t.Context(), sql)
		check(t, err)
	}
	atMost(t, 500*time.Millisecond, fmt.Sprintf("the comparison of %d devices", devices), func() error {
		_, err := s.CampaignFacts(t.Context(), c.ID)
		return err
	})
}
