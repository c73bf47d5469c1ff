package postgres_test

import (
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/campaign"
)

// Reads within a scope find its devices, including retired ones, and no others.
func TestScope(t *testing.T) {
	s := newStore(t)
	addDevices(t, s, "d1", "d2", "d3", "e1")
	check(t, s.ReplaceDevice(t.Context(), admin, "d3", "e1", now()))
	scope, err := fleet.NewScope("id:d*", "", nil)
	check(t, err)
	ctx := fleet.WithScope(t.Context(), fleet.Principal{Role: fleet.RoleViewer, Scope: scope})

	_, err = s.Device(ctx, "e1")
	wantKind(t, err, fleet.ErrNotFound)
	d, err := s.Device(ctx, "d3")
	check(t, err)
	if d.RetiredAt == nil || d.ReplacedBy != "" {
		t.Errorf("the retired device is %+v, and names the hidden one that replaced it: %q", d.RetiredAt, d.ReplacedBy)
	}
	if d, err = s.Device(t.Context(), "d3"); err != nil || d.ReplacedBy != "e1" {
		t.Errorf("without a scope it is replaced by %q (%v)", d.ReplacedBy, err)
	}
	some, err := s.DevicesByID(ctx, []fleet.DeviceID{"d1", "e1"})
	check(t, err)
	if len(some) != 1 || some[0].ID != "d1" {
		t.Errorf("of d1 and e1 there are %v", some)
	}
	n, err := s.CountDevices(ctx, fleet.Query{})
	check(t, err)
	same(t, n, 2)
	page, err := s.AuditEntries(ctx, audit.Filter{})
	check(t, err)
	if len(page.Items) != 0 {
		t.Errorf("an entry names the hidden successor: %+v", page.Items)
	}
	if page, err = s.AuditEntries(fleet.WithoutScope(ctx), audit.Filter{}); err != nil || len(page.Items) == 0 {
		t.Errorf("without a scope there are %d entries (%v)", len(page.Items), err)
	}
	facts, err := s.Facts(ctx, "e1")
	if err == nil {
		t.Errorf("the hidden device has facts: %+v", facts)
	}
}

// A campaign is visible within a scope only if each of its devices is; the same holds for a
// deployment.
func TestScopeOfCampaigns(t *testing.T) {
	r := newRig(t)
	c, _ := r.campaign("d0", "e1")
	scope, err := fleet.NewScope("id:d*", "", nil)
	check(t, err)
	narrow := fleet.WithScope(t.Context(), fleet.Principal{Role: fleet.RoleViewer, Scope: scope})
	_, err = r.Campaign(narrow, c.ID)
	wantKind(t, err, fleet.ErrNotFound)
	_, err = r.Deployment(narrow, c.ID, "d0")
	wantKind(t, err, fleet.ErrNotFound)
	_, err = r.CampaignProgress(narrow, c.ID)
	wantKind(t, err, fleet.ErrNotFound)
	if list, err := r.DeviceDeployments(narrow, "d0", 10); err != nil || len(list) != 0 {
		t.Errorf("d0 has the deployments %v (%v)", list, err)
	}
	if list, err := r.Waves(narrow, c.ID); err != nil || len(list) != 0 {
		t.Errorf("the campaign has the waves %v (%v)", list, err)
	}
	if page, err := r.Campaigns(narrow, campaign.Filter{}); err != nil || len(page.Items) != 0 {
		t.Errorf("there are the campaigns %v (%v)", page.Items, err)
	}
	if _, err = r.Campaign(t.Context(), c.ID); err != nil {
		t.Error(err)
	}
	if buckets, err := r.CallBuckets(narrow, "", now().Add(-time.Hour), time.Minute); err != nil || len(buckets) != 0 {
		t.Errorf("calls are counted: %v (%v)", buckets, err)
	}
}
