package postgres_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// change applies one event to the caller's copy of a deployment, and returns the change to store.
func change(d *campaign.Deployment, kind fleet.EvidenceKind, to campaign.DeploymentState) campaign.DeploymentChange {
	at := now()
	e := campaign.DeploymentEvent{ID: uuid.Must(uuid.NewV7()), Deployment: d.ID, At: at, Attempt: d.Attempt, Kind: kind,
		From: d.State, To: to}
	d.State, d.UpdatedAt, d.FinishedAt = to, at, nil
	if to.Final() {
		d.FinishedAt = &at
	}
	c := campaign.DeploymentChange{Deployment: *d, Events: []campaign.DeploymentEvent{e}}
	d.Revision++
	return c
}

// dispatch begins an attempt.
func dispatch(d *campaign.Deployment) campaign.Dispatch {
	d.Attempt++
	if at := now(); d.DispatchedAt == nil {
		d.DispatchedAt = &at
	}
	c := change(d, fleet.EvidenceDispatched, campaign.DeploymentDispatching)
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", d.ID, d.Attempt))
	return campaign.Dispatch{DeploymentChange: c, Link: firmware.Link{TokenHash: sum[:], Deployment: d.ID,
		Campaign: d.Campaign, Device: d.Device,
		Attempt: d.Attempt, Image: d.Image, Size: d.ImageSize, ExpiresAt: now().Add(time.Hour)}}
}

func (r *rig) dispatch(want int, all ...campaign.Dispatch) []uuid.UUID {
	r.t.Helper()
	refused, err := r.DispatchDeployments(r.t.Context(), all)
	check(r.t, err)
	if len(all)-len(refused) != want {
		r.t.Errorf("%d of %d dispatched, want %d", len(all)-len(refused), len(all), want)
	}
	return refused
}

func (r *rig) save(changes ...campaign.DeploymentChange) {
	r.t.Helper()
	stale, err := r.SaveDeployments(r.t.Context(), changes)
	check(r.t, err)
	if len(stale) > 0 {
		r.t.Errorf("%d of %d changes were not stored", len(stale), len(changes))
	}
}

// Every field that can change is read back as it was stored, with foreign text cleaned.
func TestSaveDeployments(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	_, all := r.campaign("d1", "d2")
	d, at := all[0], now()
	d.Skip, d.Late, d.FromELF, d.FromVersion, d.Force, d.Attempt, d.Failures, d.Offers = firmware.SkipSuperseded, true,
		"f", "1", true, 2, 1, 3
	d.Class, d.Reason, d.NotBefore, d.Deadline = campaign.FailureBusy, text("no \x00room\xff"), &at, &at
	d.GetAt, d.DispatchedAt, d.SentAt = &at, &at, &at
	d.Percent = ptr(40)
	d.BytesSent, d.Booted, d.Reconnects, d.Away, d.Checked, d.Probed = 9, true, 4, true, true, true
	d.Baseline = campaign.Baseline{Inventory: "i", FreeHeap: 5, Slot: "ota_1",
		Answers: map[string]string{"0": `{"a":"b"}`}}
	c := change(&d, fleet.EvidenceCanceled, campaign.DeploymentCanceled)
	wantAllSet(t, d, "Wave", "Joined")
	wantAllSet(t, d.Baseline)
	c.Events[0].Reason = text("by \x00ada\xff")
	c.Events = append(c.Events, campaign.DeploymentEvent{At: at, Attempt: 2, Kind: fleet.EvidenceRevoked, From: d.State,
		To: d.State})
	r.save(c)
	d.Reason = text("no room\uFFFD")
	same(t, r.deployment(d.ID), d)
	same(t, r.history(d.ID), []string{"planned queued>queued ", "canceled queued>canceled by ada\uFFFD",
		"revoked canceled>canceled "})
	events, err := r.DeploymentEvents(ctx, d.ID)
	check(t, err)
	c.Events[0].Reason = text("by ada\uFFFD")
	same(t, events[1], c.Events[0])
	many, err := r.EventsOf(ctx, []uuid.UUID{d.ID, all[1].ID})
	check(t, err)
	same(t, many[d.ID], events)

	d.Baseline = campaign.Baseline{}
	r.save(change(&d, fleet.EvidenceCanceled, campaign.DeploymentCanceled))
	same(t, r.deployment(d.ID).Baseline, campaign.Baseline{})
	same(t, r.deployment(all[1].ID), all[1])
}

// A change to a row that changed meanwhile is left out with its events, and so are the changes
// that build on it.
func TestSaveStale(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	_, all := r.campaign("d1", "d2", "d3")
	a, b, c := all[0], all[1], all[2]
	old := change(&a, fleet.EvidenceSent, campaign.DeploymentSent)
	r.save(old)
	twice := []campaign.DeploymentChange{change(&b, fleet.EvidenceDispatched, campaign.DeploymentDispatching),
		change(&b, fleet.EvidenceSent, campaign.DeploymentSent)}
	follows := old
	follows.Deployment.Revision++ // the stored row's: it must not slip in behind the one it follows
	stale, err := r.SaveDeployments(ctx, append(twice, old, follows, change(&c, fleet.EvidenceSent,
		campaign.DeploymentSent)))
	check(t, err)
	same(t, stale, []uuid.UUID{a.ID})
	same(t, r.deployment(a.ID), a)
	same(t, r.deployment(b.ID), b)
	same(t, r.deployment(c.ID), c)
	if n := len(r.history(a.ID)); n != 2 {
		t.Errorf("%d events of the deployment that moved on", n)
	}
}

// A row that the database refuses does not affect the others.
func TestSaveBadRow(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	_, all := r.campaign("d1", "d2", "d3")
	bad := change(&all[1], fleet.EvidenceTimer, campaign.DeploymentTimedOut)
	bad.Deployment.FinishedAt = nil
	_, err := r.SaveDeployments(ctx, []campaign.DeploymentChange{change(&all[0], fleet.EvidenceSent,
		campaign.DeploymentSent), bad,
		change(&all[2], fleet.EvidenceSent, campaign.DeploymentSent)})
	wantKind(t, err, fleet.ErrInvalid)
	for i, want := range []campaign.DeploymentState{campaign.DeploymentSent, campaign.DeploymentQueued,
		campaign.DeploymentSent} {
		if got := r.deployment(all[i].ID).State; got != want {
			t.Errorf("deployment %d is %s, want %s", i, got, want)
		}
	}
}

// The index holds exactly the states that the rules call active.
func TestOneActive(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	for i, state := range campaign.DeploymentStates {
		device := fleet.DeviceID(fmt.Sprintf("d%d", i))
		_, first := r.campaign(device)
		_, second := r.campaign(device)
		set := func(d *campaign.Deployment, to campaign.DeploymentState) error {
			if d.Skip = firmware.SkipNone; to == campaign.DeploymentSkipped {
				d.Skip = firmware.SkipHeld
			}
			_, err := r.SaveDeployments(ctx, []campaign.DeploymentChange{change(d, fleet.EvidenceTimer, to)})
			return err
		}
		check(t, set(&first[0], state))
		err := set(&second[0], campaign.DeploymentBooted)
		if state.Active() {
			wantCode(t, err, "device_active")
		} else if err != nil {
			t.Errorf("with one %s, another cannot be active: %v", state, err)
		}
	}
}

func TestDispatch(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	_, first := r.campaign(devices(5)...)
	_, second := r.campaign(devices(5)...)
	a := dispatch(&first[0])
	r.dispatch(1, a)
	same(t, r.deployment(first[0].ID), first[0])
	link, err := r.FirmwareLink(ctx, a.Link.TokenHash, now())
	check(t, err)
	same(t, link, a.Link)
	wantAllSet(t, link, "Board", "Foreign", "Begun")

	var batch []campaign.Dispatch
	for i := range second {
		batch = append(batch, dispatch(&second[i]))
	}
	batch[4].Deployment.Revision-- // moved on
	refused := r.dispatch(3, batch...)
	slices.SortFunc(refused, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	same(t, refused, []uuid.UUID{second[0].ID, second[4].ID})
	_, err = r.FirmwareLink(ctx, batch[0].Link.TokenHash, now())
	wantKind(t, err, fleet.ErrNotFound)
	same(t, r.history(second[0].ID), []string{"planned queued>queued "})

	// Two rows of one device in one batch collide at the index.
	_, third := r.campaign("x1", "x2")
	_, fourth := r.campaign("x1", "x3")
	r.dispatch(3, dispatch(&third[0]), dispatch(&fourth[0]), dispatch(&third[1]), dispatch(&fourth[1]))

	paused, waiting := r.campaign("y1")
	paused.State = campaign.Paused
	check(t, r.ChangeCampaign(ctx, admin, "campaign.pause", paused))
	r.dispatch(0, dispatch(&waiting[0]))
}

// If two campaigns dispatch the same devices at the same moment, each device goes to one of them.
func TestDispatchTogether(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	ids := devices(200)
	var sent [2]int
	var wg sync.WaitGroup
	for n := range sent {
		_, all := r.campaign(ids...)
		wg.Go(func() {
			for chunk := range slices.Chunk(all, 20) {
				var batch []campaign.Dispatch
				for i := range chunk {
					batch = append(batch, dispatch(&chunk[i]))
				}
				refused, err := r.DispatchDeployments(ctx, batch)
				if err != nil {
					t.Error(err)
				}
				sent[n] += len(batch) - len(refused)
			}
		})
	}
	wg.Wait()
	if sent[0]+sent[1] != len(ids) {
		t.Errorf("%d and %d dispatched to %d devices", sent[0], sent[1], len(ids))
	}
	live, err := r.LiveDeployments(ctx)
	check(t, err)
	active := map[fleet.DeviceID]int{}
	for _, d := range live {
		if d.State.Active() {
			active[d.Device]++
		}
	}
	for _, id := range ids {
		if active[id] != 1 {
			t.Errorf("device %s has %d active deployments", id, active[id])
		}
	}
}

// A batch that ends in the middle stores nothing of the current statement.
func TestSaveCanceled(t *testing.T) {
	r := newRig(t)
	_, all := r.campaign("d1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.SaveDeployments(ctx, []campaign.DeploymentChange{change(&all[0], fleet.EvidenceSent,
		campaign.DeploymentSent)})
	wantKind(t, err, context.Canceled)
	if got := r.deployment(all[0].ID); got.State != campaign.DeploymentQueued || len(r.history(got.ID)) != 1 {
		t.Errorf("stored %+v", got)
	}
}
