package console_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
	"fleetd/web/ui"
)

// Every group of results can be opened and grouped by a field; a second fan-out calls the failed
// devices again and links to the first.
func TestFanOutAnswers(t *testing.T) {
	c := newConsole(t)
	say := fleet.Tool{Name: "self.status", Audience: fleet.AudienceModel,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}}}`)}
	var ids []fleet.DeviceID
	broken := true
	for i := range 25 {
		id := fleet.DeviceID(fmt.Sprintf("a085e31122%02x", i))
		ids = append(ids, id)
		c.enrol(id)
		c.connect(id, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
			if i == 24 && broken {
				return fleet.Answer{}, errors.New("=no")
			}
			return fleettest.Text(fmt.Sprintf(`{"speaker":{"volume":%d},"id":%d}`, i%2*50, i)), nil
		})
		now := time.Now().UTC()
		if err := c.devices.Listed(t.Context(), fleet.ToolListing{Device: id, At: now, Inventory: fleet.Inventory{
			ID: strings.Repeat("cd", 32), CreatedAt: now, Tools: []fleet.Tool{say}}}); err != nil {
			t.Fatal(err)
		}
	}
	b := c.as(fleet.RoleOperator)
	actor := fleet.Principal{Kind: fleet.KindOperator, ID: "1", Name: "x", Role: fleet.RoleOperator}
	f, err := c.fanOuts.Create(t.Context(), call.FanOutRequest{Actor: actor, Devices: ids, Tool: "self.status",
		Arguments: json.RawMessage(`{"n":3}`)})
	if err != nil {
		t.Fatal(err)
	}
	c.ended(f)
	at := ui.FanOutPath(f.ID.String())
	b.get(at).wantStatus(200).wantText("main", "1 to 20 of 25 groups").wantText("main", "speaker.volume")
	b.get(at+"?from=20").wantText("main", "21 to 25 of 25 groups")
	p := b.get(at + "?by=speaker.volume").wantStatus(200)
	if n := len(p.find("span[class=num answers-n]")); n != 3 {
		t.Errorf("grouped by the volume there are %d groups, want 0, 50 and the failure", n)
	}
	if got := p.text("ul[class=answers]"); strings.Contains(got, "connection_lost") || !strings.Contains(got, "=no") {
		t.Errorf("grouped by a field, what failed reads %q", got)
	}
	b.get(at+"?by=no.such").wantText("main", "without this field")
	b.get(at + "?by=" + strings.Repeat("x", 5000)).wantStatus(200)
	file := b.get(at + "/answers.csv").wantStatus(200)
	if got := file.header.Get("Content-Disposition"); !strings.Contains(got, "answers-") {
		t.Errorf("the file is sent as %q", got)
	}
	broken = false
	b.get(at).wantText("main", "Retry 1 failed")
	plan := b.get(ui.PathFanOutNew+"?step=preview&tool=self.status&retry="+f.ID.String()).wantStatus(200).
		wantText("main", "will be called on 1 device").wantText("main", `"n": 3`)
	form := map[string][]string{}
	for _, n := range plan.find("input[type=hidden]") {
		form[attribute(n, "name")] = []string{attribute(n, "value")}
	}
	to := b.post(ui.PathFanOuts, form).wantStatus(http.StatusSeeOther).header.Get("Location")
	b.get(to).wantText("main", "Retry of").wantText("main", "1 device that failed")
	again, err := c.fanOuts.List(t.Context(), 1, "")
	if err != nil || again.Items[0].RetryOf != f.ID || again.Items[0].Targets != 1 {
		t.Fatalf("the second fan-out is %+v (%v)", again.Items, err)
	}
	c.ended(again.Items[0])
}

// ended waits until a fan-out has called all devices.
func (c *site) ended(f call.FanOut) {
	c.t.Helper()
	sub := c.events.Subscribe(1024, nil, fleet.EventFanOut)
	defer sub.Close()
	for {
		now, err := c.fanOuts.Get(c.t.Context(), f.ID)
		if err != nil {
			c.t.Fatal(err)
		}
		if !now.Open() {
			return
		}
		select {
		case <-sub.C:
		case <-c.t.Context().Done():
			c.t.Fatal("the fan-out does not end")
		}
	}
}

// If a filter matches no device, the page does not blame the devices' tools.
func TestFanOutForNoDevice(t *testing.T) {
	c := newConsole(t)
	c.enrol(unit)
	c.as(fleet.RoleOperator).get("/fanouts/new?q=a+or+b").wantText("main", "0 devices").wantText("main", "No devices match.")
}
