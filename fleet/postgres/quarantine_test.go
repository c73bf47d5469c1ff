package postgres_test

import (
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

func TestQuarantine(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	_, all := r.campaign("d1")
	d, began := all[0], now()
	for range 3 { // fails, to be repeated; then for good
		r.dispatch(1, dispatch(&d))
		r.save(change(&d, fleet.EvidenceNotSent, campaign.DeploymentQueued)) // no failure
		r.dispatch(1, dispatch(&d))
		r.save(change(&d, fleet.EvidenceGet, campaign.DeploymentDownloading), change(&d, fleet.EvidenceRetry,
			campaign.DeploymentQueued))
	}
	r.dispatch(1, dispatch(&d))
	r.save(change(&d, fleet.EvidenceTimer, campaign.DeploymentTimedOut), change(&d, fleet.EvidenceLateAnswer,
		campaign.DeploymentTimedOut))
	failed := func(since time.Time) int {
		t.Helper()
		n, err := r.FailedAttempts(ctx, "d1", since)
		check(t, err)
		return n
	}
	if n, later := failed(began), failed(now()); n != 4 || later != 0 {
		t.Errorf("%d failed attempts, %d of them after the last", n, later)
	}
	d.Late = true
	r.save(change(&d, fleet.EvidenceBootPoll, campaign.DeploymentBooted))
	if n := failed(began); n != 3 {
		t.Errorf("%d failed attempts after the last succeeded late", n)
	}

	q := campaign.Quarantine{Device: "d1", Reason: text("failed 4 times"), Since: now(), Until: now().Add(time.Hour)}
	wantAllSet(t, q)
	check(t, r.Quarantine(ctx, q))
	check(t, r.Quarantine(ctx, campaign.Quarantine{Device: "d2", Since: now(), Until: now().Add(time.Minute)}))
	list, err := r.Quarantines(ctx, now().Add(2*time.Minute))
	check(t, err)
	same(t, list, []campaign.Quarantine{q})
	of, err := r.QuarantinesOf(ctx, []fleet.DeviceID{"d1", "d3"}, now())
	check(t, err)
	same(t, of, map[fleet.DeviceID]campaign.Quarantine{"d1": q})
	check(t, r.ClearQuarantine(ctx, admin, "d1"))
	wantKind(t, r.ClearQuarantine(ctx, admin, "d1"), fleet.ErrNotFound)
	if one, err := r.QuarantineOf(ctx, "d1", now()); err != nil || one != nil || failed(began) != 0 {
		t.Errorf("after it was cleared: %+v, %v, %d failures", one, err, failed(began))
	}
	wantAudit(t, r.Store, "d1", "quarantine.clear")
	check(t, r.Quarantine(ctx, q))
	if one, err := r.QuarantineOf(ctx, "d1", now()); err != nil || one == nil {
		t.Errorf("again: %+v, %v", one, err)
	}
}
