package console_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
	"fleetd/web/ui"
)

// The pages of a campaign and of a fan-out say what the devices that failed have in common.
func TestComparison(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	release := c.newRelease(b)
	ids := c.upgradable(16)
	say := fleet.Tool{Name: "self.status", Audience: fleet.AudienceModel,
		InputSchema: json.RawMessage(`{"type":"object"}`)}
	for i, id := range ids {
		tag := "site/good"
		if i < 8 {
			tag = "site/bad"
		}
		c.tagged(id, tag)
		c.connect(id, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
			if i < 8 {
				return fleet.Answer{}, errors.New("no")
			}
			return fleettest.Text("yes"), nil
		})
		at := time.Now().UTC()
		if err := c.devices.Listed(t.Context(), fleet.ToolListing{Device: id, At: at, Inventory: fleet.Inventory{
			ID: strings.Repeat("cd", 32), CreatedAt: at, Tools: []fleet.Tool{say}}}); err != nil {
			t.Fatal(err)
		}
	}
	f, err := c.fanOuts.Create(t.Context(), call.FanOutRequest{Actor: anna, Devices: ids, Tool: "self.status"})
	if err != nil {
		t.Fatal(err)
	}
	c.ended(f)
	spring, err := c.campaigns.Create(t.Context(), anna, campaign.Plan{Name: "spring", Release: release.ID,
		Query: "tag:site/*"})
	if err != nil {
		t.Fatal(err)
	}
	campaignPage := ui.CampaignPath(spring.ID.String())
	if p := b.get(campaignPage).wantStatus(http.StatusOK); len(p.find("#compare")) > 0 {
		t.Error("a campaign without failures has a comparison")
	}
	c.exec(`UPDATE campaigns SET state = 'completed_with_errors', started_at = now(), finished_at = now(), revision = revision + 1
		WHERE id = $1`, spring.ID)
	c.exec(`UPDATE deployments SET finished_at = now(), state = CASE WHEN device_id < $2 THEN 'rolled_back' ELSE 'succeeded' END
		WHERE campaign_id = $1`, spring.ID, ids[8])
	time.Sleep(time.Second) // longer than the counts of the campaign are kept
	for _, path := range []string{campaignPage, ui.FanOutPath(f.ID.String())} {
		p := b.get(path).wantStatus(http.StatusOK).wantText("#compare", "site/bad").wantText("#compare", "100%").
			wantText("#compare", "8 devices")
		if strings.Contains(p.text("#compare"), "site/good") {
			t.Errorf("%s lists what went well", path)
		}
		links := p.within("compare", "a")
		if len(links) != 1 || attribute(links[0], "href") != "/places/site/bad" {
			t.Errorf("%s has %d links", path, len(links))
		}
	}
	_, err = c.operators.Create(t.Context(), fleet.Principal{Kind: fleet.KindSystem, Role: fleet.RoleAdmin},
		operator.Request{Name: "vera", Password: password,
			Access: operator.Access{Role: fleet.RoleViewer, Scope: "tag:site/bad"}})
	if err != nil {
		t.Fatal(err)
	}
	narrow := c.signIn("vera")
	for _, path := range []string{campaignPage, ui.FanOutPath(f.ID.String()), ui.CampaignPath(uuid.NewString())} {
		narrow.get(path).wantStatus(http.StatusNotFound)
	}
}
