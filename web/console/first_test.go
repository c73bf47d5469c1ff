package console_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/console"
)

// Until a board has joined, the pages of the fleet lead to the first one: its address, whether it
// asked, its code, its name and place.
func TestFirstBoard(t *testing.T) {
	c := newConsole(t)
	b, viewer := c.as(fleet.RoleOperator), c.as(fleet.RoleViewer)
	pages := []string{"/", "/devices"}
	for _, at := range pages {
		b.get(at).wantStatus(200).wantText("#first-board", "http://fleet.test/xiaozhi/ota/").
			wantText("#first-board", "No board has asked")
	}
	a, err := c.enrolments.Poll(enrolment.BootPoll{Device: "a085e3112233", ClientID: uuid.NewString(), Board: "esp-box-3",
		At: time.Now().UTC()})
	if err != nil || a.Activation == nil {
		t.Fatalf("poll: %+v, %v", a, err)
	}
	for _, at := range pages {
		p := b.get(at).wantStatus(200).wantText("#first-board", "esp-box-3")
		if strings.Contains(p.text("#first-board"), a.Activation.Code) {
			t.Error("the page shows the code, which proves that somebody reads the board")
		}
		if p := viewer.get(at).wantStatus(200); len(p.find("input[name=code]")) > 0 {
			t.Error("a viewer gets the form for the code")
		}
	}
	to := b.post("/claim", url.Values{"code": {a.Activation.Code}}).wantRedirect(dev + "/name")
	b.get(to).wantStatus(200).wantText("main", "a0:85:e3:11:22:33")
	viewer.get(to).wantStatus(403)
	b.get("/devices/a085e3999999/name").wantStatus(404)
	b.post(dev+"/edit", url.Values{"name": {"kitchen"}, "tags": {"home/ground"}}).wantRedirect(dev)
	b.get(dev).wantText("h1", "kitchen")
	for _, at := range pages {
		if p := b.get(at).wantStatus(200); len(p.find("#first-board")) > 0 {
			t.Errorf("%s still leads to the first board", at)
		}
	}
}

// A server that only its own machine reaches says so, with the address that it could have.
func TestFirstBoardNeedsTheNetwork(t *testing.T) {
	c := newConsole(t, func(o *console.Options) {
		o.PublicURL, o.NetworkURL = "http://127.0.0.1:8080", "http://192.168.1.5:8080"
	})
	c.as(fleet.RoleOperator).get("/devices").wantStatus(200).wantText("#first-board", "No board can reach this address").
		wantText("#first-board", "http://192.168.1.5:8080/xiaozhi/ota/")
}
