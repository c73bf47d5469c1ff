package matrix

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// A campaign does not begin, and includes no further device, once its maker has lost the
// right. It never leaves its maker's scope, whatever its filter contains.
func TestCampaignsThatWait(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restart), func(t *testing.T) {
			t.Parallel()
			testCampaignsThatWait(t, restart)
		})
	}
}

func testCampaignsThatWait(t *testing.T, restart bool) {
	w := newWorld(t)
	image := w.must("POST", "/images?board="+liveBoard, w.appImage(version)).str("sha256")
	w.release = w.must("POST", "/releases", obj{"images": []string{image}}).str("id")
	scoped := w.token(&principal{kind: fleet.KindProgram, role: asOperator, scoped: true, tools: allTools})
	gone := w.token(&principal{kind: fleet.KindProgram, role: asOperator, tools: allTools})

	first, escape, late := w.fresh(liveBoard).id, w.fresh(liveBoard).id, w.fresh(liveBoard).id
	w.change(first, obj{"tags": []string{scopeTag}})
	grow := func(p *principal, name, query string) string {
		c := w.rest(p.secret, "POST", "/campaigns", obj{"name": name, "release_id": w.release, "q": query, "continuous": true,
			"max_devices": 100, "end_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339), "supersede": true})
		if c.status != 201 {
			t.Fatalf("%s: %d %s", name, c.status, c.text)
		}
		return c.str("id")
	}
	start := func(p *principal, id string) {
		if c := w.rest(p.secret, "POST", "/campaigns/"+id+"/start", nil); c.status != 200 {
			t.Fatalf("start: %d %s", c.status, c.text)
		}
	}
	// A quoted scope in the filter is part of a name.
	quoted := grow(scoped, "escape", fmt.Sprintf(`-name:"x tag:%s y"`, scopeTag))
	start(scoped, quoted)
	// This campaign begins when its maker is gone.
	scheduled := w.rest(gone.secret, "POST", "/campaigns", obj{"name": "later", "release_id": w.release,
		"devices":  []fleet.DeviceID{w.fresh(liveBoard).id},
		"start_at": time.Now().Add(10 * time.Second).UTC().Format(time.RFC3339)}).str("id")
	start(gone, scheduled)
	growing := grow(gone, "grows", "tag:grow")
	if growing == "" || scheduled == "" {
		t.Fatal("a campaign was not made")
	}
	for _, id := range []fleet.DeviceID{escape, late} {
		w.change(id, obj{"tags": []string{"grow"}})
	}
	if err := w.srv.Operators.Revoke(t.Context(), w.people[0], uuid.MustParse(gone.id)); err != nil {
		t.Fatal(err)
	}
	if restart {
		w.restart()
	}
	w.eventually("the campaign of somebody who is gone to end or pause", func() bool {
		state := w.must("GET", "/campaigns/"+scheduled, nil).str("state")
		return state != "scheduled" && state != "running"
	})
	// Each check for more devices has ended once a device that belongs to the campaign is
	// in it.
	w.dress(late, inside)
	w.eventually("the growing campaign to take in the device inside", func() bool {
		return slices.Contains(w.deployed(quoted), string(late))
	})
	for _, id := range w.deployed(quoted) {
		if id != string(first) && id != string(late) && id != string(w.live[inside]) && id != string(w.asleep[inside]) {
			t.Errorf("the campaign of a principal for tag:%s takes in %s", scopeTag, id)
		}
	}
	var moved int
	if err := w.db.QueryRow(t.Context(), `SELECT count(*) FROM deployments WHERE campaign_id = ANY ($1) AND sent_at IS NOT NULL`,
		[]string{scheduled, growing}).Scan(&moved); err != nil || moved > 0 {
		t.Errorf("%d devices were sent firmware for somebody who is gone: %v", moved, err)
	}
}

// deployed returns the devices that a campaign includes.
func (w *world) deployed(campaign string) (ids []string) {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), `SELECT device_id FROM deployments WHERE campaign_id = $1 AND state <> 'skipped'`,
		campaign)
	if err != nil {
		w.t.Fatal(err)
	}
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			w.t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}
