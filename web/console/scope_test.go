package console_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
	"fleetd/fleet/schedule"
	"fleetd/web/access"
	"fleetd/web/console"
)

const (
	inside  = fleet.DeviceID("a085e3112233") // tag:in
	outside = fleet.DeviceID("a085e3112244")

	marker = "zqxmarker" // in everything that belongs to the device outside
)

// A side is a device with its records.
type side struct {
	device                                                                   fleet.DeviceID
	call, snapshot, dump, campaign, fanOut, schedule, approval, conversation uuid.UUID
	name, tag, hold, line                                                    string
}

// scopeBench is a console with two devices, one on each side of the scope tag:in.
type scopeBench struct {
	*site
	o     console.Options
	sides map[fleet.DeviceID]*side
	both  campaign.Campaign // over both devices
	image string
	rel   firmware.Release
}

func newScopeBench(t *testing.T) *scopeBench {
	b := &scopeBench{sides: map[fleet.DeviceID]*side{
		inside:  {device: inside, name: "plain", tag: "in", hold: "plain", line: "plain"},
		outside: {device: outside, name: "name-" + marker, tag: marker, hold: "hold-" + marker, line: "line-" + marker},
	}}
	b.site = newConsole(t, func(o *console.Options) { b.o = *o })
	b.operator("root", fleet.RoleAdmin)
	root := b.signIn("root")
	b.rel = b.newRelease(root)
	b.image = b.rel.Images[0].SHA256
	ctx := t.Context()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	say := fleet.Tool{Name: "self.say", Audience: fleet.AudienceModel,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}}}`)}
	tail := fleet.Tool{Name: fleet.ToolLogsTail, Audience: fleet.AudienceUser, InputSchema: json.RawMessage(
		`{"type":"object","properties":{"from":{"type":"integer"},"lines":{"type":"integer"}}}`)}
	for _, id := range []fleet.DeviceID{inside, outside} {
		s := b.sides[id]
		b.bootPoll(id, "9f2c")
		b.connect(id, func(_ context.Context, tool string, _ json.RawMessage) (fleet.Answer, error) {
			if tool == fleet.ToolLogsTail {
				return fleettest.Text(`{"first":1,"lines":[{"n":1,"t":1,"level":"info","tag":"t","text":"` + s.line +
					`"}],"next":2}`), nil
			}
			return fleettest.Text("answer " + s.name), nil
		})
		check(b.devices.Listed(ctx, fleet.ToolListing{Device: id, Inventory: fleet.Inventory{
			ID: strings.Repeat("ab", 31) + string(id[10:]), Tools: append(slices.Clone(tools), say, tail), CreatedAt: time.Now()},
			Version: "2.4.0", At: time.Now()}))
		tags := []string{s.tag}
		_, err := b.devices.Update(ctx, anna, id, fleet.DevicePatch{Name: &s.name, Notes: &s.name, Tags: &tags})
		check(err)
		_, err = b.devices.Hold(ctx, anna, id, s.hold, nil)
		check(err)
		_, err = b.devices.Release(ctx, anna, id)
		check(err)
		made, err := b.o.Calls.Make(ctx, call.Request{Actor: anna, Device: id, Tool: "self.say",
			Arguments: json.RawMessage(`{"text":"` + s.name + `"}`)})
		check(err)
		s.call = made.ID
		if _, err := b.o.Logs.Fetch(ctx, anna, id); err != nil || len(b.o.Logs.View(id, 0).Lines) != 1 {
			t.Fatalf("the log of %s: %v %v", id, b.o.Logs.View(id, 0), err)
		}
		link, err := b.snapshots.UploadURL(ctx, id, made.ID, time.Hour)
		check(err)
		shot, err := b.snapshots.Receive(ctx, path.Base(link), func() (io.Reader, error) {
			return bytes.NewReader(testPNG(t)), nil
		})
		check(err)
		s.snapshot = shot.ID
		link, err = b.snapshots.CoreDumpURL(ctx, id, made.ID, time.Hour)
		check(err)
		dump, err := b.coreDumps.Receive(ctx, path.Base(link), func() (io.Reader, error) {
			return strings.NewReader("dump of " + s.name), nil
		})
		check(err)
		s.dump = dump.ID
		c, err := b.campaigns.Create(ctx, anna, campaign.Plan{Name: "camp " + s.name, Release: b.rel.ID,
			Query: "id:" + string(id)})
		check(err)
		s.campaign = c.ID
		f, err := b.o.FanOuts.Create(ctx, call.FanOutRequest{Actor: anna, Query: "id:" + string(id), Tool: "self.say",
			Arguments: json.RawMessage(`{"text":"` + s.name + `"}`)})
		check(err)
		b.ended(f) // no test reads its calls
		s.fanOut = f.ID
		name, query := "plan "+s.name, "tag:"+s.tag
		cron, zone, tool := "0 3 * * *", "UTC", "self.say"
		planned, err := b.schedules.Create(ctx, anna, schedule.Request{Name: &name, Cron: &cron, TimeZone: &zone,
			Query: &query, Tool: &tool, Arguments: json.RawMessage(`{"text":"` + s.name + `"}`)})
		check(err)
		s.schedule = planned.ID
		remove := b.askFirst("self.say")
		asked, err := b.o.Calls.Make(ctx, call.Request{Actor: anna, Device: id, Tool: "self.say",
			Arguments: json.RawMessage(`{"text":"` + s.name + `"}`), Purpose: s.name})
		check(err)
		s.approval = asked.Approval
		s.conversation = uuid.Must(uuid.NewV7())
		check(b.store.SaveConversations(ctx, []fleet.Conversation{{ID: s.conversation, Device: id, Upstream: s.name,
			Begin: time.Now()}}))
		remove()
	}
	c, err := b.campaigns.Create(ctx, anna, campaign.Plan{Name: "both " + marker, Release: b.rel.ID,
		Query: "id:a085e31122*"})
	check(err)
	b.both = c
	return b
}

// person adds an operator with a scope and signs them in.
func (b *scopeBench) person(name string, a operator.Access) *browser {
	b.t.Helper()
	_, err := b.operators.Create(b.t.Context(), fleet.Principal{Kind: fleet.KindSystem, Role: fleet.RoleAdmin},
		operator.Request{Name: name, Password: password, Access: a})
	if err != nil {
		b.t.Fatal(err)
	}
	return b.signIn(name)
}

// address fills in the pattern of a route with a device or its records.
func (b *scopeBench) address(pattern string, of fleet.DeviceID) string {
	s := b.sides[of]
	return strings.NewReplacer("{device}", string(of), "{tool}", "self.say", "{call}", s.call.String(), "{n}", "0",
		"{snapshot}", s.snapshot.String(), "{fanout}", s.fanOut.String(), "{schedule}", s.schedule.String(), "{operator}", uuid.NewString(),
		"{token}", uuid.NewString(), "{image}", b.image, "{release}", b.rel.ID.String(), "{campaign}", s.campaign.String(),
		"{dump}", s.dump.String(), "{rule}", uuid.NewString(), "{serial}", "SN-1", "{filter}", uuid.NewString(),
		"{approval}", s.approval.String(), "{conversation}", s.conversation.String(), "{policy}", uuid.NewString()).Replace(pattern)
}

// Every role requests every route, about a device on each side: with access to all devices, to some
// with the rest hidden, and to some as a viewer of the rest.
func TestScopeMatrix(t *testing.T) {
	b := newScopeBench(t)
	type viewer struct {
		access operator.Access
		b      *browser
	}
	var viewers []viewer
	for _, role := range []fleet.Role{fleet.RoleViewer, fleet.RoleOperator, fleet.RoleAdmin} {
		for _, a := range []operator.Access{{Role: role, Scope: "tag:in", Rest: fleet.RoleViewer},
			{Role: role, Scope: "tag:in"}, {Role: role}} {
			name := strings.Join([]string{"v", string(role), strings.TrimPrefix(a.Scope, "tag:"), string(a.Rest)}, "-")
			viewers = append(viewers, viewer{a, b.person(strings.TrimRight(name, "-"), a)})
		}
	}
	slices.SortStableFunc(viewers, func(x, y viewer) int { // refused viewers come before those who delete something
		return strings.Compare(y.access.Scope, x.access.Scope)
	})
	root := b.signIn("root")
	routes := console.Routes()
	slices.SortStableFunc(routes, func(x, y console.Route) int { return harm(x) - harm(y) })
	tried := map[access.Reach]int{}
	for _, route := range routes {
		if route.Pattern == "/sign-out" || route.Pattern == "/events" || route.Role == "" {
			continue // ends the session, never ends, or is open to all: has its own test
		}
		if strings.HasSuffix(route.Pattern, "/withdraw") {
			continue // for the requester alone, whatever the role: tested with the approvals
		}
		named := route.Reach == access.Device || (route.Reach == access.Record || route.Reach == access.Audience) &&
			strings.Contains(route.Pattern, "{")
		for _, of := range []fleet.DeviceID{inside, outside} {
			at := b.address(route.Pattern, of)
			if of == outside && !strings.Contains(route.Pattern, "{") {
				continue // the same address
			}
			empty := route.Method == http.MethodGet && root.get(at).status == http.StatusNotFound
			for _, v := range viewers {
				want := wantAccess(route, v.access, named && of == outside)
				p := v.b.do(route.Method, at, "application/x-www-form-urlencoded", strings.NewReader("days=x"))
				got := p.status
				refused := got == 401 || got == 403 || got >= 500 || strings.HasPrefix(p.header.Get("Location"), "/sign-in") ||
					got == 404 && route.Method == http.MethodGet && !empty
				if want != 0 && got != want || want == 0 && refused {
					t.Errorf("%s (%s) by %+v: %d to %q, want %d", p.what, route.Reach, v.access, got, p.header.Get("Location"),
						want)
				}
				tried[route.Reach]++
			}
		}
	}
	for _, reach := range []access.Reach{access.Device, access.Record, access.Audience, access.List, access.Shared,
		access.Fleet, access.Part, access.Own} {
		if tried[reach] == 0 {
			t.Errorf("no route reaches %s", reach)
		}
	}
}

// wantAccess returns the status of a refusal, or 0.
func wantAccess(route console.Route, a operator.Access, hidden bool) int {
	role := a.Role
	switch {
	case !role.Allows(route.Role):
		return http.StatusForbidden
	case a.Scope == "":
		return 0
	case route.Reach == access.Fleet, route.Reach == access.Part && a.Rest == "", hidden:
		if role = a.Rest; role == "" && hidden {
			return http.StatusNotFound
		}
	}
	if !role.Allows(route.Role) {
		return http.StatusForbidden
	}
	return 0
}

// harm orders routes: those that delete something come last.
func harm(r console.Route) int {
	switch {
	case strings.HasSuffix(r.Pattern, "/retire"), strings.HasSuffix(r.Pattern, "/delete"):
		return 2
	case r.Method != http.MethodGet:
		return 1
	}
	return 0
}

// Nothing that belongs to a device outside of the scope is on a page or in a stream.
func TestScopeLeaksNothing(t *testing.T) {
	b := newScopeBench(t)
	b.person("walker", operator.Access{Role: fleet.RoleAdmin, Scope: "tag:in"})
	v := b.signIn("walker")
	check := func(p *page, foreign ...string) {
		t.Helper()
		for _, text := range append(foreign, marker) {
			if strings.Contains(p.body, text) {
				i := strings.Index(p.body, text)
				t.Errorf("%s (%d) discloses %s: …%s…", p.what, p.status, text, p.body[max(0, i-200):min(len(p.body), i+100)])
			}
		}
	}
	read := 0
	for _, route := range console.Routes() {
		if route.Method != http.MethodGet || route.Pattern == "/events" {
			continue
		}
		p := v.get(b.address(route.Pattern, inside))
		check(p, string(outside), outside.MAC())
		if p.status == 200 {
			read++
		}
		check(v.get(b.address(route.Pattern, outside)))
	}
	if read < 25 {
		t.Errorf("only %d pages could be read", read)
	}
	for _, at := range []string{"/devices?sort=created", "/calls?device=" + string(inside), "/fanouts/new?tool=self.say",
		"/campaigns/new?release=" + b.rel.ID.String() + "&q=chip%3Aesp32s3", "/campaigns/" + b.both.ID.String(),
		"/fanouts/new?q=&tool=self.say", "/find?q=a085", "/find?q=" + b.both.ID.String()} {
		check(v.get(at), string(outside))
	}
	if p := v.get("/campaigns/" + b.both.ID.String()); p.status != http.StatusNotFound {
		t.Errorf("a campaign over a hidden device answers %d", p.status)
	}

	var streams []*stream
	for _, view := range []string{"overview", "devices", "calls", "device&id=" + string(inside), "campaigns"} {
		streams = append(streams, v.stream("/events?view="+view))
	}
	hidden := b.signIn("walker").get("/events?view=device&id=" + string(outside)) // v has its five streams
	check(hidden.wantStatus(http.StatusNotFound))
	ctx := t.Context()
	for _, id := range []fleet.DeviceID{outside, inside} {
		s := b.sides[id]
		for range 2 {
			if _, err := b.o.Calls.Make(ctx, call.Request{Actor: anna, Device: id, Tool: "self.say",
				Arguments: json.RawMessage(`{"text":"` + s.name + `"}`)}); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = b.devices.Hold(ctx, anna, id, s.hold, nil)
		if _, err := b.o.FanOuts.Create(ctx, call.FanOutRequest{Actor: anna, Query: "id:" + string(id), Tool: "self.say",
			Arguments: json.RawMessage(`{"text":"` + s.name + `"}`)}); err == nil {
			t.Error("a held device was called by a fan-out")
		}
		_, _ = b.devices.Release(ctx, anna, id)
	}
	if _, err := b.campaigns.Discard(ctx, anna, b.both.ID); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // longer than the interval of every view
	for i, s := range streams {
		for len(s.events) > 0 {
			e := <-s.events
			for _, text := range []string{marker, string(outside), outside.MAC(), b.both.ID.String()} {
				if strings.Contains(e.data, text) {
					t.Errorf("stream %d discloses %s: %.300s", i, text, e.data)
				}
			}
		}
	}
}

// A live page ends when its reader's access changes, and the next request applies the new access.
func TestAccessChangesAtOnce(t *testing.T) {
	b := newScopeBench(t)
	b.person("vera", operator.Access{Role: fleet.RoleOperator})
	v := b.signIn("vera")
	v.get("/devices/" + string(outside)).wantStatus(200)
	live := v.stream("/events?view=overview")
	o, err := b.operators.ByName(t.Context(), "vera")
	if err != nil {
		t.Fatal(err)
	}
	root := b.signIn("root")
	at := "/settings/operators/" + o.ID.String() + "/access"
	root.post(at, url.Values{"role": {"operator"}, "scope": {"tag:in"}, "rest": {""}}).wantRedirect("/settings/operators/" + o.ID.String())
	v.get("/devices/" + string(outside)).wantStatus(404)
	v.get("/devices/" + string(inside)).wantStatus(200)
	v.get("/settings").wantStatus(200).wantText("#main", "Password and sessions")
	v.get("/settings/account").wantStatus(200).wantText("#main", "Change my password")
	for end := time.After(time.Minute); ; {
		select {
		case _, open := <-live.events:
			if open {
				continue
			}
		case <-end:
			t.Fatal("the live page of before goes on")
		}
		break
	}
	root.get("/settings").wantText("#main", "Only on tag:in")
	root.post(at, url.Values{"role": {"operator"}, "scope": {"version<2"}}).wantStatus(422)
	root.post("/settings/tokens", url.Values{"name": {"claude"}, "role": {"operator"}, "kind": {"model"}, "scope": {"tag:in"},
		"tools": {"self.get_*, self.say"}, "per_minute": {"60"}, "days": {"30"}}).wantStatus(200).
		wantText("#main", "a language model").wantText("#main", "self.get_*, self.say").wantText("#main", "60 requests a minute")
	root.post("/settings/tokens", url.Values{"name": {"x"}, "role": {"viewer"}, "per_minute": {"many"}, "days": {"30"}}).
		wantStatus(422)
}

// A viewer of the rest sees it, but cannot change it.
func TestScopeOfActs(t *testing.T) {
	b := newScopeBench(t)
	ctx := t.Context()
	scope := func(rest fleet.Role) fleet.Principal {
		s, err := fleet.NewScope("tag:in", rest, nil)
		if err != nil {
			t.Fatal(err)
		}
		return fleet.Principal{Kind: fleet.KindOperator, ID: uuid.NewString(), Name: "ann", Role: fleet.RoleAdmin, Scope: s}
	}
	hidden, viewer := scope(""), scope(fleet.RoleViewer)
	wantCode := func(what string, err error, kind error, code string) {
		t.Helper()
		var e *fleet.Error
		if !errors.Is(err, kind) || code != "" && (!errors.As(err, &e) || e.Code != code) {
			t.Errorf("%s: %v, want %v %s", what, err, kind, code)
		}
	}
	for by, kind := range map[string]error{"hidden": fleet.ErrNotFound, "viewer": fleet.ErrForbidden} {
		p := map[string]fleet.Principal{"hidden": hidden, "viewer": viewer}[by]
		_, err := b.devices.Hold(ctx, p, outside, "no", nil)
		wantCode(by+" holds", err, kind, "")
		wantCode(by+" retires", b.devices.Retire(ctx, p, outside), kind, "")
		wantCode(by+" approves", b.enrolments.Approve(ctx, p, outside, ""), kind, "")
		wantCode(by+" deletes a core dump", b.coreDumps.Delete(ctx, p, b.sides[outside].dump), kind, "")
		wantCode(by+" ends a quarantine", b.campaigns.ClearQuarantine(ctx, p, outside), kind, "")
		wantCode(by+" cancels a fan-out", b.o.FanOuts.Cancel(ctx, p, b.sides[outside].fanOut), kind, "")
		_, err = b.campaigns.Start(ctx, p, b.both.ID)
		wantCode(by+" starts a campaign over both", err, kind, "")
		_, err = b.campaigns.Edit(ctx, p, b.both.ID, campaign.Plan{Name: "x", Release: b.rel.ID, Query: "tag:in"})
		wantCode(by+" edits a campaign over both", err, kind, "")
		_, err = b.devices.Hold(ctx, p, inside, "yes", nil)
		if err == nil {
			_, err = b.devices.Release(ctx, p, inside)
		}
		if err != nil {
			t.Errorf("%s, on its own device: %v", by, err)
		}
	}
	all := call.FanOutRequest{Actor: viewer, Tool: "self.say", Query: "id:a085e31122*"}
	p, err := b.o.FanOuts.Preview(ctx, all)
	if err != nil || p.Matched != 2 || p.Targets != 1 || len(p.Skipped) != 1 || p.Skipped[0].Reason != "forbidden" {
		t.Errorf("a fan-out of a viewer of the rest would do %+v %v", p, err)
	}
	all.Actor = hidden
	if p, err = b.o.FanOuts.Preview(ctx, all); err != nil || p.Matched != 1 || p.Targets != 1 {
		t.Errorf("a fan-out of who sees one device would do %+v %v", p, err)
	}
	plan := campaign.Plan{Name: "mine", Release: b.rel.ID, Query: "id:a085e31122*"}
	_, err = b.campaigns.Create(ctx, viewer, plan)
	wantCode("a campaign over a device that may only be viewed", err, fleet.ErrForbidden, "audience_not_yours")
	if c, err := b.campaigns.Create(ctx, hidden, plan); err != nil || c.Targets+c.Skipped != 1 {
		t.Errorf("a campaign of who sees one device: %+v %v", c, err)
	}
	b.asks("a085e3112255", "some-board")
	if n := len(b.enrolments.Waiting()); n != 1 {
		t.Fatalf("%d devices wait", n)
	}
	if seen, err := b.enrolments.WaitingInScope(fleet.WithScope(ctx, hidden)); err != nil || len(seen) != 0 {
		t.Errorf("who sees one device sees %+v wait (%v)", seen, err)
	}
	wantCode("approving a hidden device that waits", b.enrolments.Approve(ctx, hidden, "a085e3112255", ""),
		fleet.ErrNotFound, "")
}
