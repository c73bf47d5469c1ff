package postgres_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

func TestFirmwareLinks(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	_, all := r.campaign("d1", "d2", "d3", "d4")
	var links []firmware.Link
	for i := range all {
		d := dispatch(&all[i])
		r.dispatch(1, d)
		links = append(links, d.Link)
	}
	found := func(i int, at time.Time) bool {
		t.Helper()
		_, err := r.FirmwareLink(ctx, links[i].TokenHash, at)
		if err != nil {
			wantKind(t, err, fleet.ErrNotFound)
		}
		return err == nil
	}
	if !found(0, now()) || found(0, now().Add(2*time.Hour)) {
		t.Error("a link is good until it expires")
	}
	at := now()
	all[3].GetAt = &at
	r.save(change(&all[3], fleet.EvidenceGet, campaign.DeploymentDownloading))
	for i, begun := range map[int]bool{2: false, 3: true} {
		if l, err := r.FirmwareLink(ctx, links[i].TokenHash, now()); err != nil || l.Begun != begun {
			t.Errorf("a link that has begun %v: %+v, %v", begun, l, err)
		}
	}
	check(t, r.FinishFirmwareLink(ctx, links[0].TokenHash, now()))
	check(t, r.RevokeLinks(ctx, []uuid.UUID{all[0].ID, all[1].ID}, now()))
	if found(0, now()) || found(1, now()) || !found(2, now()) {
		t.Error("a link ends when it is used up or revoked")
	}
	check(t, r.RevokeImages(ctx, admin, []string{r.image.SHA256}, "burns", now()))
	if found(2, now()) || found(3, now()) {
		t.Error("a link of a revoked image is good")
	}
	wantKind(t, r.FinishFirmwareLink(ctx, make([]byte, 32), now()), fleet.ErrNotFound)
	check(t, r.DeleteExpired(ctx, now().Add(3*time.Hour)))
	wantKind(t, r.FinishFirmwareLink(ctx, links[3].TokenHash, now()), fleet.ErrNotFound)
}

func TestOffersSince(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	_, all := r.campaign("d1", "d2")
	began := now()
	for i := range 2 {
		offer := dispatch(&all[0])
		offer.Deployment.State, offer.Events[0].To, offer.Events[0].Kind = campaign.DeploymentOffered,
			campaign.DeploymentOffered, fleet.EvidenceOffered
		offer.Deployment.Offers = i + 1
		r.dispatch(1, offer)
		all[0].State = campaign.DeploymentOffered
	}
	got, err := r.OffersSince(ctx, []fleet.DeviceID{"d1", "d2"}, began)
	check(t, err)
	same(t, got, map[fleet.DeviceID]int{"d1": 2})
	got, err = r.OffersSince(ctx, []fleet.DeviceID{"d1", "d2"}, now())
	check(t, err)
	same(t, got, map[fleet.DeviceID]int{})
}
