package call_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
)

var campaignActor = fleet.Principal{Kind: fleet.KindCampaign, ID: "c1", Name: "2.5 for the lab", Role: fleet.RoleOperator}

const (
	newBuild = "aa11"
	oldBuild = "bb22"
	fwURL    = "http://h/d/secret/firmware.bin"
)

// notified records the notifications of an order, without times.
type notified struct {
	mu  sync.Mutex
	all []string
}

func (t *notified) add(e fleet.Evidence) {
	t.mu.Lock()
	defer t.mu.Unlock()
	what := e.Code
	if what == "" {
		what, _, _ = strings.Cut(e.Detail, ":")
	}
	t.all = append(t.all, strings.TrimSpace(string(e.Kind)+" "+what))
}

func (t *notified) list() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all
}

func upgradeRequest(heard *notified) call.Request {
	return call.Request{Actor: campaignActor, Tool: fleet.ToolUpgradeFirmware,
		Firmware: &call.FirmwareOrder{URL: fwURL, ELFSHA256: newBuild, Notify: heard.add, Timeout: 20 * time.Minute}}
}

// after delays a script, as a slow device does.
func after(d time.Duration, s fleettest.Script) fleettest.Script {
	return func(ctx context.Context, tool string, arguments json.RawMessage) (fleet.Answer, error) {
		time.Sleep(d)
		return s(ctx, tool, arguments)
	}
}

func TestUpgradeIsJudgedByEvidence(t *testing.T) {
	end := fleet.Evidence{Kind: fleet.EvidenceDisconnect}
	lost := fleet.Evidence{Kind: fleet.EvidenceConnectionLost}
	back := fleet.Evidence{Kind: fleet.EvidenceConnect}
	poll := func(elf string) fleet.Evidence { return fleet.Evidence{Kind: fleet.EvidenceBootPoll, ELF: elf} }
	tests := []struct {
		name     string
		script   fleettest.Script
		seen     []fleet.Evidence
		want     fleet.CallState
		code     string
		notified []string
	}{
		{"goodbye and the new build", silent, []fleet.Evidence{end, poll(newBuild), back}, fleet.CallSucceeded, "",
			[]string{"sent"}},
		{"the new build, goodbye not seen", silent, []fleet.Evidence{poll(newBuild)}, fleet.CallSucceeded, "",
			[]string{"sent"}},
		{"an early true means nothing", answer("true"), []fleet.Evidence{end, poll(newBuild)}, fleet.CallSucceeded, "",
			[]string{"sent", "answer true"}},
		{"an early true alone", answer("true"), nil, fleet.CallTimedOut, "no_answer", []string{"sent", "answer true"}},
		{"a late true", after(10*time.Minute, answer("true")), nil, fleet.CallTimedOut, "no_answer",
			[]string{"sent", "answer true"}},
		{"rolled back", silent, []fleet.Evidence{end, poll(oldBuild)}, fleet.CallToolError, "not_installed",
			[]string{"sent"}},
		{"the poll before the end of the socket", silent, []fleet.Evidence{poll(oldBuild), lost, back}, fleet.CallToolError,
			"not_installed", []string{"sent"}},
		{"polls of another build can be forged", silent, []fleet.Evidence{poll(oldBuild), poll(newBuild)},
			fleet.CallSucceeded, "", []string{"sent"}},
		{"a poll that names no build", silent, []fleet.Evidence{end, poll(""), back}, fleet.CallTimedOut, "no_answer",
			[]string{"sent"}},
		{"gone", silent, []fleet.Evidence{lost}, fleet.CallTimedOut, "no_answer", []string{"sent"}},
		{"refused", func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
			return fleet.Answer{}, &fleet.ToolError{Message: "Invalid arguments"}
		}, nil, fleet.CallToolError, "tool_error", []string{"sent", "refused tool_error"}},
		{"answered false", answer("false"), nil, fleet.CallToolError, "answered_false",
			[]string{"sent", "refused answered_false"}},
		{"connection gone before the call", after(time.Second, func(context.Context, string, json.RawMessage) (fleet.Answer,
			error) {
			return fleet.Answer{}, fleet.ErrOffline
		}), nil, fleet.CallOffline, "device_offline", []string{"sent", "not_sent device_offline"}}, // this link cannot know
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.link.Connect(unit, tt.script)
				go func() {
					time.Sleep(2 * time.Minute)
					b.seen.mu.Lock()
					defer b.seen.mu.Unlock()
					for _, e := range tt.seen {
						b.seen.seen <- e
					}
				}()
				var heard notified
				c := b.call(t, upgradeRequest(&heard))
				if c.State != tt.want || code(c) != tt.code {
					t.Errorf("state %s, code %q; want %s, %q; evidence %v", c.State, code(c), tt.want, tt.code, c.Evidence)
				}
				if d := cmp.Diff(tt.notified, heard.list()); d != "" {
					t.Errorf("the order heard (-want +got)\n%s", d)
				}
				time.Sleep(30 * time.Minute)
			})
		})
	}
}

// TestUpgradeArguments: a device gets only what its tool offers. Stock firmware gets exactly
// the link, byte for byte.
func TestUpgradeArguments(t *testing.T) {
	const (
		stock    = `{"type":"object","properties":{"url":{"type":"string","default":"The URL of the firmware"}}}`
		included = `{"type":"object","properties":{"url":{"type":"string"},"sha256":{"type":"string","default":""},"size":{"type":"integer","default":0,"minimum":0,"maximum":16777216},` +
			`"manifest":{"type":"string","default":""},"signature":{"type":"string","default":""},"job":{"type":"string","default":""}},"required":["url"]}`
		others = `{"type":"object","properties":{"url":{"type":"string"},"sha256":{"type":"string"},"size":{"type":"string"},"job":{"type":["string","null"]},"manifest":true}}`
		link   = `"url":"` + fwURL + `"`
	)
	signed := func(o *call.FirmwareOrder) {
		o.SHA256, o.Size, o.Job, o.Manifest, o.Signature = "5e", 4096, "job.1", `{"chip":9}`, "c2ln"
	}
	tests := []struct {
		name, schema string
		order        func(*call.FirmwareOrder)
		want         string
	}{
		{"stock", stock, signed, `{` + link + `}`},
		{"no schema", ``, signed, `{` + link + `}`},
		{"included", included, signed,
			`{"job":"job.1","manifest":"{\"chip\":9}","sha256":"5e","signature":"c2ln","size":4096,` + link + `}`},
		{"unsigned image", included, func(o *call.FirmwareOrder) { o.SHA256, o.Size, o.Job = "5e", 4096, "job.1" },
			`{"job":"job.1","sha256":"5e","size":4096,` + link + `}`},
		{"of another type, or unreadable", others, signed, `{"sha256":"5e",` + link + `}`},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			b.devices.PutInventory(fleet.Inventory{ID: "inv2", Tools: []fleet.Tool{{Name: fleet.ToolUpgradeFirmware,
				InputSchema: json.RawMessage(tt.schema)}}})
			b.put(func(d *fleet.Device) { d.InventoryID = "inv2" })
			var wire string
			b.link.Connect(unit, func(_ context.Context, _ string, arguments json.RawMessage) (fleet.Answer, error) {
				wire = string(arguments)
				return fleet.Answer{}, &fleet.ToolError{Message: "enough"}
			})
			r := upgradeRequest(&notified{})
			r.Arguments = json.RawMessage(`{"url":"http://evil/"}`)
			tt.order(r.Firmware)
			c := b.call(t, r)
			recorded := strings.Replace(tt.want, "secret", "…", 1)
			if wire != tt.want || string(c.Arguments) != recorded {
				t.Errorf("%s: sent %s, recorded %s, want %s; %+v", tt.name, wire, c.Arguments, tt.want, c.Error)
			}
		})
	}
}

// TestUpgradeAccepted: an answer that announces that the job continues does not answer the
// upgrade, whenever it comes.
func TestUpgradeAccepted(t *testing.T) {
	for text, want := range map[string]string{
		`{"job":"job.1","state":"accepted"}`: "job accepted",
		`{"job":"job.2","state":"accepted"}`: `answer {"job"`,
		`{"job":"job.1","state":"done"}`:     `answer {"job"`,
		`true`:                               "answer true",
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			b.link.Connect(unit, answer(text))
			var heard notified
			r := upgradeRequest(&heard)
			r.Firmware.Job = "job.1"
			b.call(t, r)
			if d := cmp.Diff([]string{"sent", want}, heard.list()); d != "" {
				t.Errorf("%s: the order heard (-want +got)\n%s", text, d)
			}
			time.Sleep(30 * time.Minute)
		})
	}
}

// TestUpgradeIsForCampaignsAlone tries every other way to call the tool.
func TestUpgradeIsForCampaignsAlone(t *testing.T) {
	llm := fleet.Principal{Kind: fleet.KindModel, ID: "m", Name: "model", Role: fleet.RoleOperator}
	order := func(heard *notified) *call.FirmwareOrder { return upgradeRequest(heard).Firmware }
	tests := []struct {
		name   string
		change func(*call.Request, *bench)
		state  fleet.CallState
		code   string
	}{
		{"an operator", func(r *call.Request, _ *bench) { r.Actor = ann }, fleet.CallRefused, "use_campaign"},
		{"an admin without an order", func(r *call.Request, _ *bench) { r.Actor, r.Firmware = bob, nil },
			fleet.CallRefused, "use_campaign"},
		{"a campaign without an order", func(r *call.Request, _ *bench) { r.Firmware = nil }, fleet.CallRefused,
			"use_campaign"},
		{"a model with an order", func(r *call.Request, _ *bench) { r.Actor = llm }, fleet.CallRefused, "user_only"},
		{"a viewer's campaign", func(r *call.Request, _ *bench) { r.Actor.Role = fleet.RoleViewer }, fleet.CallRefused,
			"forbidden"},
		{"a held device", func(_ *call.Request, b *bench) {
			b.put(func(d *fleet.Device) { d.Hold = &fleet.Hold{Reason: "desk", By: bob} })
		}, fleet.CallRefused, "device_held"},
		{"no inventory", func(_ *call.Request, b *bench) { b.put(func(d *fleet.Device) { d.InventoryID = "" }) },
			fleet.CallInvalid, "no_inventory"},
		{"offline", func(_ *call.Request, b *bench) { b.link.Disconnect(unit) }, fleet.CallOffline, "device_offline"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.link.Connect(unit, answer("must not be asked"))
			var heard notified
			r := upgradeRequest(&heard)
			r.Firmware = order(&heard)
			tt.change(&r, b)
			c := b.call(t, r)
			if c.State != tt.state || code(c) != tt.code {
				t.Errorf("state %s, %+v; want %s, %s", c.State, c.Error, tt.state, tt.code)
			}
			want := []string{"not_sent " + tt.code}
			if r.Firmware == nil {
				want = nil
			}
			if d := cmp.Diff(want, heard.list()); d != "" {
				t.Errorf("the order heard (-want +got)\n%s", d)
			}
		})
	}
}

func TestUpgradeThatGetsNoRecordWasNotSent(t *testing.T) {
	b := newBench(t)
	b.Shutdown()
	var heard notified
	r := upgradeRequest(&heard)
	r.Device = unit
	if _, err := b.Make(t.Context(), r); err == nil {
		t.Error("a stopped service took a call")
	}
	if d := cmp.Diff([]string{"not_sent not_recorded"}, heard.list()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	r.Tool = fleet.ToolReboot
	if _, err := b.Make(t.Context(), r); err == nil {
		t.Error("a firmware order was taken for another tool")
	}
}

// TestUpgradeEndsWithItsAttempt closes Done while the call waits for its turn, and while it
// waits for evidence; the order still gets the late answer.
func TestUpgradeEndsWithItsAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.link.Connect(unit, after(10*time.Minute, answer("true")))
		var first, second notified
		start := func(heard *notified) (chan struct{}, fleet.Call) {
			done := make(chan struct{})
			r := upgradeRequest(heard)
			r.Device, r.Firmware.Done = unit, done
			c, err := b.Start(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			return done, c
		}
		state := func(c fleet.Call) string {
			got, err := b.store.Call(t.Context(), c.ID)
			if err != nil {
				t.Fatal(err)
			}
			return string(got.State) + " " + code(got)
		}
		doneFirst, c1 := start(&first)
		time.Sleep(time.Second)
		doneSecond, c2 := start(&second)
		close(doneSecond)
		synctest.Wait()
		if got := state(c2); got != "canceled attempt_over" {
			t.Errorf("the call in line: %s", got)
		}
		close(doneFirst)
		synctest.Wait()
		if got := state(c1); got != "unknown attempt_over" {
			t.Errorf("the call that was sent: %s", got)
		}
		time.Sleep(11 * time.Minute)
		if d := cmp.Diff([]string{"sent", "late_answer true"}, first.list()); d != "" {
			t.Errorf("the first order heard (-want +got)\n%s", d)
		}
		if d := cmp.Diff([]string{"not_sent attempt_over"}, second.list()); d != "" {
			t.Errorf("the second order heard (-want +got)\n%s", d)
		}
	})
}
