package broker

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/internal/bounded"
)

func toolJSON(name, annotations string) string {
	return fmt.Sprintf(`{"name":%q,"description":"does %s","inputSchema":{"type":"object","properties":{}}%s}`, name, name,
		annotations)
}

const userOnly = `,"annotations":{"audience":["user"]}`

// lists answers tools/list with pages, with and without user tools.
func lists(all, public []string) func(rpc) string {
	return func(r rpc) string {
		if r.Method != "tools/list" {
			return ""
		}
		pages := public
		if strings.Contains(string(r.Params), `"withUserTools":true`) {
			pages = all
		}
		page := 0
		for i := range pages {
			if strings.Contains(string(r.Params), fmt.Sprintf(`"cursor":"page%d"`, i)) {
				page = i
			}
		}
		if pages[page] == "error" {
			return `"error":{"message":"Failed to add tool  because of payload size limit"}`
		}
		next := ""
		if page+1 < len(pages) {
			next = fmt.Sprintf(`,"nextCursor":"page%d"`, page+1)
		}
		return fmt.Sprintf(`"result":{"tools":[%s]%s}`, pages[page], next)
	}
}

func TestListing(t *testing.T) {
	volume, reboot, brightness := toolJSON("volume", ""), toolJSON("reboot", ""), toolJSON("brightness", "")
	tests := []struct {
		name        string
		all, public []string
		want        string
		partial     bool
	}{
		{"annotated, two pages", []string{volume, brightness + "," + toolJSON("reboot", userOnly)}, []string{"error"},
			"volume:model brightness:model reboot:user", false},
		{"older firmware leaves user tools out", []string{volume + "," + reboot}, []string{volume},
			"volume:model reboot:user", false},
		{"no user tools at all", []string{volume}, []string{volume}, "volume:model", false},
		{"a tool too large for a page", []string{volume + "," + toolJSON("reboot", userOnly), "error"}, []string{volume},
			"volume:model reboot:user", true},
		{"no tools", []string{""}, []string{""}, "", false},
		{"pages in a circle", []string{volume + "," + toolJSON("reboot", userOnly), brightness +
			`],"nextCursor":"page1","x":[`}, nil,
			"volume:model reboot:user brightness:model", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, dom := start(t, func(o *options) { o.Devices.(*domain).fresh = false })
			d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
			d.serve(lists(tt.all, tt.public))
			fleettest.Eventually(t, "a listing", func() bool { return len(dom.listed()) == 1 })
			l := dom.listed()[0]
			var got []string
			for _, tool := range l.Inventory.Tools {
				got = append(got, tool.Name+":"+string(tool.Audience))
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" || l.Partial != tt.partial {
				t.Errorf("partial %v, tools (-want +got):\n%s", l.Partial, diff)
			}
			if l.Device != d.id || l.ServerName != "bread-compact-wifi" || l.ServerVersion != "2.4.2" || l.At.IsZero() {
				t.Errorf("listing %+v", l)
			}
		})
	}
}

func TestListingIsSkippedWhenFresh(t *testing.T) {
	b, dom := start(t, nil)
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	asked := make(chan string, 10)
	d.serve(func(r rpc) string { asked <- r.Method; return "" })
	fleettest.Eventually(t, "onboarding", func() bool {
		return dom.count("responded") == 1 && b.Stats().Onboarding == 0
	})
	if len(asked) != 1 || <-asked != "initialize" || len(dom.listed()) != 0 {
		t.Error("a device whose tools are known was asked for more than initialize")
	}
}

func TestKnownDeviceIsLetInWithoutAWord(t *testing.T) {
	b, _ := start(t, func(o *options) { o.VisionURL = nil })
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	asked := make(chan string, 10)
	d.serve(func(r rpc) string { asked <- r.Method; return "" })
	fleettest.Eventually(t, "onboarding", func() bool {
		return b.Stats().Connections == 1 && b.Stats().Onboarding == 0
	})
	turn, err := b.Queue(d.id, fleet.KindOperator)
	if err != nil {
		t.Fatal(err)
	}
	defer turn.Done()
	if _, err := turn.Send(t.Context(), fleet.Invocation{Tool: "self.reboot"}, nil); err != nil {
		t.Error(err)
	}
	if first := <-asked; first != "tools/call" {
		t.Errorf("the device was asked for %s before its first call", first)
	}
}

// A device without a camera does not need the vision URL.
func TestKnownDeviceWithoutACameraIsNotAsked(t *testing.T) {
	b, _ := start(t, func(o *options) { o.VisionURL = func(string) (string, string) { return "", "" } })
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	asked := make(chan string, 10)
	d.serve(func(r rpc) string { asked <- r.Method; return "" })
	fleettest.Eventually(t, "onboarding", func() bool {
		return b.Stats().Connections == 1 && b.Stats().Onboarding == 0
	})
	turn, err := b.Queue(d.id, fleet.KindOperator)
	if err != nil {
		t.Fatal(err)
	}
	defer turn.Done()
	if _, err := turn.Send(t.Context(), fleet.Invocation{Tool: "self.reboot"}, nil); err != nil {
		t.Error(err)
	}
	if first := <-asked; first != "tools/call" {
		t.Errorf("the device was asked for %s before its first call", first)
	}
}

func TestListingIsTriedAgain(t *testing.T) {
	t.Parallel()
	b, dom := start(t, func(o *options) {
		o.RequestTimeout = time.Second // answers must be faster than this on a busy machine
		o.onboardingDelays = []time.Duration{time.Millisecond, time.Millisecond, time.Millisecond}
		o.Devices.(*domain).fresh = false
		o.Devices.(*domain).saveErr = errors.New("database away")
	})
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	silent := 2
	list := lists([]string{toolJSON("reboot", userOnly)}, nil)
	d.serve(func(r rpc) string {
		if silent--; silent >= 0 {
			return "silence"
		}
		return list(r)
	})
	fleettest.Eventually(t, "a listing", func() bool { return len(dom.listed()) == 1 })
	if dom.count("unresponsive") != 1 || dom.count("responded") != 1 {
		t.Errorf("want one report of silence and one of its end:\n%s", dom.happened())
	}
}

func TestListingIsGivenUpAndResumed(t *testing.T) {
	b, dom := start(t, func(o *options) {
		o.RequestTimeout = 200 * time.Millisecond
		o.ProbeEvery = 50 * time.Millisecond
		o.onboardingDelays = []time.Duration{}
		o.Devices.(*domain).fresh = false
	})
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	awake := make(chan struct{})
	list := lists([]string{toolJSON("reboot", userOnly)}, nil)
	d.serve(func(r rpc) string {
		select {
		case <-awake:
			return list(r)
		default:
			return "silence"
		}
	})
	fleettest.Eventually(t, "giving up", func() bool { return b.Stats().ListingsFailed == 1 })
	close(awake)
	fleettest.Eventually(t, "a listing after the next ping", func() bool { return len(dom.listed()) == 1 })
}

// A call waits for at most one step of a listing, and the listing completes among the calls.
func TestListingSharesTheLine(t *testing.T) {
	b, dom := start(t, func(o *options) { o.Devices.(*domain).fresh = false })
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	hold := make(chan struct{})
	var order []string
	list := lists([]string{toolJSON("volume", "")}, []string{toolJSON("volume", "")})
	d.serve(func(r rpc) string {
		if order = append(order, r.Method); r.Method == "initialize" {
			<-hold
		}
		return list(r)
	})
	done := make(chan error, 3)
	for i := range 3 {
		turn, err := b.Queue(d.id, fleet.KindOperator)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer turn.Done()
			<-turn.Ready()
			_, err := turn.Send(t.Context(), fleet.Invocation{Tool: "x"}, nil)
			done <- err
		}()
		if i == 0 {
			close(hold)
		}
	}
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	fleettest.Eventually(t, "a listing", func() bool { return len(dom.listed()) == 1 })
}

func TestInventoryID(t *testing.T) {
	tool := func(name, schema string) fleet.Tool {
		return fleet.Tool{Name: name, InputSchema: []byte(schema), Audience: fleet.AudienceModel}
	}
	a := []fleet.Tool{tool("a", `{"type":"object","properties":{"n":{"type":"integer","maximum":12345678901234567890}}}`),
		tool("b", `{}`)}
	tests := []struct {
		name  string
		tools []fleet.Tool
		same  bool
	}{
		{"other order of keys", []fleet.Tool{
			tool("a", `{"properties":{"n":{"maximum":12345678901234567890,"type":"integer"}},"type":"object"}`),
			tool("b", `{}`)}, true},
		{"other order of tools", []fleet.Tool{a[1], a[0]}, false},
		{"other number beyond float64", []fleet.Tool{
			tool("a", `{"type":"object","properties":{"n":{"type":"integer","maximum":12345678901234567891}}}`),
			tool("b", `{}`)}, false},
		{"one tool less", a[:1], false},
		{"none", nil, false},
	}
	for _, tt := range tests {
		if got := fleet.InventoryID(tt.tools) == fleet.InventoryID(a); got != tt.same {
			t.Errorf("%s: same id %v, want %v", tt.name, got, tt.same)
		}
	}
	all := inventories{bounded.New[string, fleet.Inventory](maxInventories)}
	if x, y := all.of(a), all.of(tests[0].tools); &x.Tools[0] != &y.Tools[0] {
		t.Error("equal inventories are held twice")
	}
}

func TestNotification(t *testing.T) {
	b, dom := start(t, nil)
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	d.publish(`{"type":"mcp","payload":{"jsonrpc":"2.0","method":"notifications/state_changed","params":{"a":1}}}`)
	want := fmt.Sprintf(`notified %s notifications/state_changed {"a":1}`, d.id)
	fleettest.Eventually(t, want, func() bool { return dom.count(want) == 1 })
	for _, junk := range []string{"", "null", "{", `"x"`, `{"type":"mcp"}`, `{"type":7,"payload":{}}`, "\xff\xfe",
		strings.Repeat("[", 9999)} {
		d.publish(junk)
	}
	d.publish(`{"type":"mcp","payload":{"jsonrpc":"2.0","method":"notifications/end"}}`)
	fleettest.Eventually(t, "the connection survives junk",
		func() bool { return dom.count(fmt.Sprintf("notified %s notifications/end", d.id)) == 1 })
}

func TestListingBudget(t *testing.T) {
	now := time.Now()
	b := newDevice(testID(1))
	for i := range listingBurst {
		if !b.mayList(now) {
			t.Fatalf("listing %d of a burst refused", i+1)
		}
	}
	if b.mayList(now) {
		t.Error("one more than the burst")
	}
	if b.mayList(now.Add(listingEvery / 2)) {
		t.Error("again after half a minute")
	}
	if !b.mayList(now.Add(2*listingEvery + time.Second)) {
		t.Error("refused after two minutes")
	}
}
