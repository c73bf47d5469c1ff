package postgres_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/postgres"
	"fleetd/fleet/telemetry"
)

func deviceJob(id string, state fleet.JobState, percent int, at time.Time) telemetry.Job {
	j := telemetry.Job{Device: unit, ID: id, Kind: "upgrade", State: state, Percent: percent, UpdatedAt: at}
	switch {
	case state.Final():
		j.FinishedAt = &at
	case state == fleet.JobAccepted:
		j.StartedAt = at
	}
	return j
}

// job stores reports one after the other and returns what is stored then.
func jobAfter(t *testing.T, s *postgres.Store, reports ...telemetry.Job) telemetry.Job {
	t.Helper()
	for _, j := range reports {
		check(t, s.SaveDeviceJobs(t.Context(), []telemetry.Job{j}))
	}
	list, err := s.DeviceJobs(t.Context(), unit, 1)
	check(t, err)
	return list[0]
}

func TestDeviceJobs(t *testing.T) {
	s := postgres.New(testDB(t), postgres.Options{})
	at := now()
	got := jobAfter(t, s, deviceJob("j", fleet.JobAccepted, 0, at), deviceJob("j", fleet.JobProgress, 40,
		at.Add(time.Second)))
	want := deviceJob("j", fleet.JobProgress, 40, at)
	want.StartedAt, want.UpdatedAt = at, at.Add(time.Second)
	same(t, got, want)
	same(t, jobAfter(t, s, deviceJob("j", fleet.JobAccepted, 0, at.Add(2*time.Second))), want) // late

	failed := deviceJob("j", fleet.JobFailed, 0, at.Add(3*time.Second))
	failed.Code, failed.Reason = "checksum", "the image is not what was announced"
	want = failed
	want.StartedAt, want.Percent = at, 40
	same(t, jobAfter(t, s, failed), want)
	same(t, jobAfter(t, s, deviceJob("j", fleet.JobDone, 100, at.Add(4*time.Second)), deviceJob("j", fleet.JobProgress, 5,
		at.Add(5*time.Second)),
		deviceJob("j", fleet.JobAccepted, 0, at)), want) // an outcome stays
	again := deviceJob("j", fleet.JobAccepted, 0, at.Add(time.Hour))
	same(t, jobAfter(t, s, again), again) // but a name may be used again
}

// An attempt of a campaign has one outcome; only the device's own deployment is noted.
func TestDeviceJobOfADeployment(t *testing.T) {
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	own, others := uuid.New(), uuid.New()
	at := now()
	// no campaign is needed here
	_, err := db.Exec(t.Context(), `ALTER TABLE deployments DROP CONSTRAINT deployments_campaign_id_fkey`)
	check(t, err)
	for id, device := range map[uuid.UUID]fleet.DeviceID{own: unit, others: "other"} {
		_, err := db.Exec(t.Context(), `INSERT INTO deployments (id, campaign_id, wave, state, skip, device_id, created_at, updated_at, finished_at)
			VALUES ('`+id.String()+`', gen_random_uuid(), -1, 'skipped', 'retired', '`+string(device)+`', now(), now(), now())`)
		check(t, err)
	}
	for _, deployment := range []uuid.UUID{own, others, uuid.New()} {
		done := deviceJob(fleet.UpgradeJobName(deployment, 1), fleet.JobDone, 100, at)
		done.Deployment = deployment
		check(t, s.SaveDeviceJobs(t.Context(), []telemetry.Job{done}))
		restarted := deviceJob(done.ID, fleet.JobAccepted, 0, at.Add(time.Hour))
		restarted.Deployment = deployment
		check(t, s.SaveDeviceJobs(t.Context(), []telemetry.Job{restarted}))
	}
	list, err := s.DeviceJobs(t.Context(), unit, 10)
	check(t, err)
	for _, j := range list {
		if j.State != fleet.JobDone {
			t.Errorf("%s is %s again", j.ID, j.State)
		}
		if (j.Deployment == own) != (j.ID == fleet.UpgradeJobName(own, 1)) || (j.Deployment != own &&
			j.Deployment != uuid.Nil) {
			t.Errorf("%s belongs to %s", j.ID, j.Deployment)
		}
	}
	if len(list) != 3 {
		t.Errorf("%d jobs", len(list))
	}
}

func TestDeviceJobsAreBounded(t *testing.T) {
	s := postgres.New(testDB(t), postgres.Options{})
	at := now()
	for round := range 3 {
		var jobs []telemetry.Job
		for i := range 40 {
			j := deviceJob(fmt.Sprintf("j%d-%02d", round, i), fleet.JobDone, 100, at.Add(time.Duration(round*100+i)*time.Second))
			other := j
			other.Device = "other"
			jobs = append(jobs, j)
			if round == 0 {
				jobs = append(jobs, other)
			}
		}
		check(t, s.SaveDeviceJobs(t.Context(), jobs))
	}
	list, err := s.DeviceJobs(t.Context(), unit, 1000)
	check(t, err)
	if len(list) != telemetry.MaxDeviceJobs || list[0].ID != "j2-39" || list[49].ID != "j1-30" {
		t.Errorf("%d jobs from %s to %s", len(list), list[0].ID, list[len(list)-1].ID)
	}
	if list, err = s.DeviceJobs(t.Context(), "other", 1000); len(list) != 40 || err != nil {
		t.Errorf("the other device has %d jobs, %v", len(list), err)
	}
}

func TestDeviceConfig(t *testing.T) {
	ctx, s := t.Context(), postgres.New(testDB(t), postgres.Options{})
	_, err := s.DeviceConfig(ctx, unit)
	wantKind(t, err, fleet.ErrNotFound)
	c := telemetry.Config{Version: 3, OnTrial: true, Reverted: 2, Values: json.RawMessage(`{"heartbeat_s":60}`), At: now()}
	check(t, s.SaveDeviceConfigs(ctx, map[fleet.DeviceID]telemetry.Config{unit: c, "other": {Values: json.RawMessage(`{}`),
		At: now()}}))
	older := c
	older.Version, older.At = 2, c.At.Add(-time.Minute)
	check(t, s.SaveDeviceConfigs(ctx, map[fleet.DeviceID]telemetry.Config{unit: older}))
	got, err := s.DeviceConfig(ctx, unit)
	check(t, err)
	same(t, got, c)
}
