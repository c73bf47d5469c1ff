package call_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
	"fleetd/web/i18n"
)

const unit = fleet.DeviceID("a085e3112233")

var (
	ann = fleet.Principal{Kind: fleet.KindOperator, ID: "1", Name: "ann", Role: fleet.RoleOperator}
	bob = fleet.Principal{Kind: fleet.KindOperator, ID: "2", Name: "bob", Role: fleet.RoleAdmin}
)

var tools = []fleet.Tool{
	{Name: "self.get_device_status", InputSchema: json.RawMessage(`{"type":"object","properties":{}}`),
		Audience: fleet.AudienceModel},
	{Name: "self.audio_speaker.set_volume", Audience: fleet.AudienceModel,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"volume":{"type":"integer","minimum":0,"maximum":100}},"required":["volume"]}`)},
	{Name: fleet.ToolReboot, InputSchema: json.RawMessage(`{"type":"object","properties":{}}`),
		Audience: fleet.AudienceUser},
	{Name: fleet.ToolUpgradeFirmware, InputSchema: json.RawMessage(
		`{"type":"object","properties":{"url":{"type":"string"}}}`), Audience: fleet.AudienceUser},
	{Name: fleet.ToolSnapshot, Audience: fleet.AudienceUser,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"url":{"type":"string"},"quality":{"type":"integer","minimum":1,"maximum":100,"default":80}},"required":["url"]}`)},
	{Name: fleet.ToolPreviewImage, InputSchema: json.RawMessage(
		`{"type":"object","properties":{"url":{"type":"string"}},"required":["url"]}`), Audience: fleet.AudienceUser},
	// as boards list it
	{Name: fleet.ToolReconfigureWiFi, InputSchema: json.RawMessage(`{"type":"object","properties":{}}`),
		Audience: fleet.AudienceModel},
	{Name: "self.disp.network", InputSchema: json.RawMessage(`{"type":"object","properties":{}}`),
		Audience: fleet.AudienceModel},
	{Name: "self.odd", InputSchema: json.RawMessage(`"not a schema"`), Audience: fleet.AudienceModel},
}

// bench is a call service over scripted devices.
type bench struct {
	*call.Service
	store   *fleettest.CallStore
	devices *fleettest.Devices
	targets *fleet.Targets
	link    *fleettest.Link
	seen    *watch
}

func newBench(t *testing.T) *bench {
	b := &bench{store: &fleettest.CallStore{}, devices: &fleettest.Devices{}, link: &fleettest.Link{}, seen: &watch{}}
	b.devices.PutInventory(fleet.Inventory{ID: "inv", Tools: tools})
	b.devices.Put(fleet.Device{ID: unit, Enrolment: fleet.EnrolmentEnrolled, InventoryID: "inv"})
	b.targets = fleet.NewTargets(b.devices, b.devices)
	b.Service = call.New(call.Options{Store: b.store, Targets: b.targets, Link: b.link, Watcher: b.seen,
		URLs: urls{}, Events: &fleet.Events{}})
	t.Cleanup(b.Shutdown)
	return b
}

func (b *bench) put(change func(*fleet.Device)) {
	d, _ := b.devices.Device(context.Background(), unit)
	change(&d)
	b.devices.Put(d)
	b.targets.Forget(unit)
}

func (b *bench) call(t *testing.T, r call.Request) fleet.Call {
	t.Helper()
	if r.Actor.Name == "" {
		r.Actor = ann
	}
	if r.Device == "" {
		r.Device = unit
	}
	c, err := b.Make(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := b.store.Call(t.Context(), c.ID)
	if err != nil || stored.State != c.State || stored.FinishedAt == nil {
		t.Errorf("stored %v %v (%v), returned %v", stored.State, stored.FinishedAt, err, c.State)
	}
	return c
}

type urls struct{}

func (urls) UploadURL(context.Context, fleet.DeviceID, uuid.UUID, time.Duration) (string, error) {
	return "http://h/u/secret", nil
}
func (urls) PreviewURL(context.Context, fleet.DeviceID, uuid.UUID, string, time.Duration) (string, error) {
	return "http://h/d/secret/preview.jpg", nil
}
func (urls) CoreDumpURL(context.Context, fleet.DeviceID, uuid.UUID, time.Duration) (string, error) {
	return "http://h/u/secret", nil
}

// watch lets a test send observations of the device.
type watch struct {
	mu   sync.Mutex
	seen chan fleet.Evidence
}

func (w *watch) Watch(fleet.DeviceID) (<-chan fleet.Evidence, func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = make(chan fleet.Evidence, 8)
	return w.seen, func() {}
}

func (w *watch) play(kinds ...fleet.EvidenceKind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range kinds {
		w.seen <- fleet.Evidence{At: time.Now(), Kind: k}
	}
}

func answer(text string) fleettest.Script {
	return func(context.Context, string, json.RawMessage) (fleet.Answer, error) { return fleettest.Text(text), nil }
}

func silent(ctx context.Context, _ string, _ json.RawMessage) (fleet.Answer, error) {
	<-ctx.Done()
	return fleet.Answer{}, ctx.Err()
}

func TestCallOutcomes(t *testing.T) {
	volume := json.RawMessage(`{"volume":50}`)
	tests := []struct {
		name   string
		script fleettest.Script
		want   fleet.CallState
		code   string
	}{
		{"answer", answer("true"), fleet.CallSucceeded, ""},
		{"stock firmware's false is a failure", answer("false"), fleet.CallToolError, "answered_false"},
		{"refused by the device", func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
			return fleet.Answer{}, &fleet.ToolError{Message: "Unknown tool: x"}
		}, fleet.CallToolError, "tool_error"},
		{"an answer too large to keep", func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
			return fleet.Answer{Omitted: &fleet.CallError{Code: fleet.CodeTooLarge}}, nil
		}, fleet.CallSucceeded, "result_too_large"},
		{"a failure too large to keep", func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
			return fleet.Answer{IsError: true, Omitted: &fleet.CallError{Code: fleet.CodeTooLarge}}, nil
		}, fleet.CallToolError, "result_too_large"},
		{"silence", silent, fleet.CallTimedOut, "no_answer"},
		{"connection lost", func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
			return fleet.Answer{}, fleet.ErrLost
		}, fleet.CallUnknown, "connection_lost"},
		{"gone before the write", func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
			return fleet.Answer{}, fleet.ErrOffline
		}, fleet.CallOffline, "device_offline"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.link.Connect(unit, tt.script)
				c := b.call(t, call.Request{Tool: "self.audio_speaker.set_volume", Arguments: volume})
				if c.State != tt.want || code(c) != tt.code {
					t.Errorf("state %s, code %q; want %s, %q", c.State, code(c), tt.want, tt.code)
				}
			})
		})
	}
}

func code(c fleet.Call) string {
	if c.Error == nil {
		return ""
	}
	return c.Error.Code
}

func TestGate(t *testing.T) {
	viewer := fleet.Principal{Kind: fleet.KindProgram, Name: "v", Role: fleet.RoleViewer}
	model := fleet.Principal{Kind: fleet.KindModel, Name: "m", Role: fleet.RoleOperator}
	held := func(d *fleet.Device) { d.Hold = &fleet.Hold{Reason: "bench", By: ann} }
	at := time.Now()
	tests := []struct {
		name   string
		device func(*fleet.Device)
		r      call.Request
		want   fleet.CallState
		code   string
	}{
		{"viewer", nil, call.Request{Actor: viewer, Tool: "self.get_device_status"}, fleet.CallRefused, "forbidden"},
		{"model calls a user-only tool", nil, call.Request{Actor: model, Tool: fleet.ToolReboot}, fleet.CallRefused,
			"user_only"},
		{"model takes the device off the network", nil, call.Request{Actor: model, Tool: fleet.ToolReconfigureWiFi},
			fleet.CallRefused, "user_only"},
		{"the same by another name", nil, call.Request{Actor: model, Tool: "self.disp.network"}, fleet.CallRefused,
			"user_only"},
		{"model calls its own", nil, call.Request{Actor: model, Tool: "self.get_device_status"}, fleet.CallSucceeded,
			""},
		{"held by another", held, call.Request{Actor: bob, Tool: "self.get_device_status"}, fleet.CallRefused,
			"device_held"},
		{"held by oneself", held, call.Request{Actor: ann, Tool: "self.get_device_status"}, fleet.CallSucceeded, ""},
		{"held by oneself, in a fan-out", held, call.Request{Actor: ann, Tool: "self.get_device_status",
			FanOut: uuid.Max}, fleet.CallRefused, "device_held"},
		{"hold over", func(d *fleet.Device) { d.Hold = &fleet.Hold{By: ann, Until: &at} },
			call.Request{Actor: bob, Tool: "self.get_device_status"}, fleet.CallSucceeded, ""},
		{"retired", func(d *fleet.Device) { d.RetiredAt = &at }, call.Request{Tool: "self.get_device_status"},
			fleet.CallRefused, "device_retired"},
		{"waiting", func(d *fleet.Device) { d.Enrolment = fleet.EnrolmentWaiting },
			call.Request{Tool: "self.get_device_status"}, fleet.CallRefused, "device_not_enrolled"},
		{"never listed", func(d *fleet.Device) { d.InventoryID = "" }, call.Request{Tool: "self.get_device_status"},
			fleet.CallInvalid, "no_inventory"},
		{"unknown tool", nil, call.Request{Tool: "self.nope"}, fleet.CallInvalid, "unknown_tool"},
		{"above the maximum", nil, volumeCall(`{"volume":101}`), fleet.CallInvalid, "invalid_arguments"},
		{"wrong type", nil, volumeCall(`{"volume":"50"}`), fleet.CallInvalid, "invalid_arguments"},
		{"fraction", nil, volumeCall(`{"volume":50.9}`), fleet.CallInvalid, "invalid_arguments"},
		{"missing", nil, volumeCall(`{}`), fleet.CallInvalid, "invalid_arguments"},
		{"misspelt", nil, volumeCall(`{"volume":5,"volum":6}`), fleet.CallInvalid, "invalid_arguments"},
		{"null", nil, volumeCall(`null`), fleet.CallInvalid, "invalid_arguments"},
		{"array", nil, volumeCall(`[1]`), fleet.CallInvalid, "invalid_arguments"},
		{"the device's schema is none", nil, call.Request{Tool: "self.odd", Arguments: json.RawMessage(`{"x":1}`)},
			fleet.CallSucceeded, ""},
		{"firmware goes by campaign", nil, call.Request{Tool: fleet.ToolUpgradeFirmware}, fleet.CallRefused,
			"use_campaign"},
		{"url is ours", nil, call.Request{Tool: fleet.ToolSnapshot, Arguments: json.RawMessage(
			`{"url":"http://evil/"}`)}, fleet.CallInvalid, "url_is_ours"},
		{"snapshot quality", nil, call.Request{Tool: fleet.ToolSnapshot, Arguments: json.RawMessage(`{"quality":0}`)},
			fleet.CallInvalid, "invalid_arguments"},
		{"preview without a picture", nil, call.Request{Tool: fleet.ToolPreviewImage}, fleet.CallInvalid,
			"picture_missing"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			sent := 0
			b.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
				sent++
				return fleettest.Text("true"), nil
			})
			if tt.device != nil {
				b.put(tt.device)
			}
			c := b.call(t, tt.r)
			if c.State != tt.want || code(c) != tt.code {
				t.Errorf("state %s, error %+v; want %s, %q", c.State, c.Error, tt.want, tt.code)
			}
			if wantSent := tt.want == fleet.CallSucceeded; (sent == 1) != wantSent {
				t.Errorf("sent %d times", sent)
			}
		})
	}
}

// The store finds a call's partition by the time in its id, and refuses an id whose time is far
// from the time of creation.
func TestCallIDsFollowAClockThatIsSetBack(t *testing.T) {
	b := newBench(t)
	var clock time.Time
	calls := call.New(call.Options{Store: b.store, Targets: b.targets, Link: b.link, Watcher: b.seen,
		URLs: urls{}, Events: &fleet.Events{}, Now: func() time.Time { return clock }})
	t.Cleanup(calls.Shutdown)
	var last uuid.UUID
	for _, off := range []time.Duration{0, 3 * time.Hour, 0, -3 * time.Hour} {
		clock = time.Now().UTC().Add(off)
		for range 3 {
			c, err := calls.Make(t.Context(), call.Request{Actor: ann, Device: unit, Tool: "self.get_device_status"})
			if err != nil {
				t.Fatal(err)
			}
			seconds, nanoseconds := c.ID.Time().UnixTime()
			if apart := c.CreatedAt.Sub(time.Unix(seconds, nanoseconds)).Abs(); apart > time.Minute || c.ID.Version() != 7 {
				t.Errorf("with the clock off by %v: the call's id %s is %v from its creation", off, c.ID, apart)
			}
			if c.ID == last {
				t.Errorf("two calls have the id %s", last)
			}
			last = c.ID
		}
	}
}

func TestArgumentErrorsAreForPeople(t *testing.T) {
	b := newBench(t)
	for arguments, want := range map[string]string{
		`{"volume":140}`:  "volume must be an integer from 0 to 100, not 140",
		`{"volume":"50"}`: `volume must be an integer from 0 to 100, not "50"`,
		`{}`:              "volume is missing: it must be an integer from 0 to 100",
		`{"vol":1}`:       `self.audio_speaker.set_volume has no argument "vol"`,
	} {
		if c := b.call(t, volumeCall(arguments)); i18n.CallErrorDetail(c.Error) != want {
			t.Errorf("%s: %+v, want %q", arguments, c.Error, want)
		}
	}
}

func volumeCall(arguments string) call.Request {
	return call.Request{Tool: "self.audio_speaker.set_volume", Arguments: json.RawMessage(arguments)}
}

func TestCallIsOnRecordBeforeItIsSent(t *testing.T) {
	b := newBench(t)
	b.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
		if all := b.store.All(); len(all) != 1 || all[0].State != fleet.CallSent {
			t.Errorf("while the device runs the call, the record says %+v", all)
		}
		return fleettest.Text("true"), nil
	})
	b.call(t, volumeCall(`{"volume":1}`))
}

func TestCallIsNotSentWithoutRecord(t *testing.T) {
	b := newBench(t)
	b.store.Fail = func(op string) error {
		if op == "insert" {
			return fleet.ErrUnavailable
		}
		return nil
	}
	b.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
		t.Error("sent without a record")
		return fleettest.Text("true"), nil
	})
	r := volumeCall(`{"volume":1}`)
	r.Actor, r.Device = ann, unit
	if _, err := b.Make(t.Context(), r); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("err = %v", err)
	}
	if _, err := b.link.Queue(unit, fleet.KindOperator); err != nil {
		t.Errorf("the device's turn was not given back: %v", err)
	}
}

// While the database is away, the caller of a call that was made, and the one whose call waits behind it,
// get an answer soon. The outcome is stored when the database is back.
func TestOutcomeThatIsNotStoredDelaysNoCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		back := time.Now().Add(time.Minute)
		b.store.Fail = func(op string) error {
			if op != "insert" && time.Now().Before(back) && len(b.store.All()) == 2 {
				return fleet.ErrUnavailable
			}
			return nil
		}
		b.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
			time.Sleep(time.Second)
			return fleettest.Text("true"), nil
		})
		r := volumeCall(`{"volume":1}`)
		r.Actor, r.Device = ann, unit
		var both sync.WaitGroup
		refusals := make([]string, 2)
		for i := range refusals {
			both.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				asked := time.Now()
				_, err := b.Make(t.Context(), r)
				var refusal *fleet.Error
				if errors.As(err, &refusal) {
					refusals[i] = refusal.Code
				}
				if took := time.Since(asked); took > 10*time.Second {
					t.Errorf("caller %d was answered after %v: %v", i, took, err)
				}
			})
		}
		both.Wait()
		if want := []string{"outcome_not_recorded", "not_recorded"}; !slices.Equal(refusals, want) {
			t.Errorf("the callers were told %q, want %q", refusals, want)
		}
		time.Sleep(time.Until(back) + 10*time.Second)
		states := map[fleet.CallState]int{}
		for _, c := range b.store.All() {
			states[c.State]++
		}
		if states[fleet.CallSucceeded] != 1 || states[fleet.CallCanceled] != 1 {
			t.Errorf("on record when the database is back: %v", states)
		}
	})
}

// A database that hangs delays the record and the call. When it returns, the caller has gone.
func TestCallIsNotSentLongAfterItWasMade(t *testing.T) {
	for _, busy := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			hang := "insert"
			if busy {
				hang = "sent" // a call that waited for its turn is recorded twice
			}
			b.store.Fail = func(op string) error {
				if op == hang {
					time.Sleep(20 * time.Second)
				}
				return nil
			}
			b.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
				t.Error("sent")
				return fleettest.Text("true"), nil
			})
			if busy {
				turn, err := b.link.Queue(unit, fleet.KindOperator)
				if err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(time.Second, turn.Done)
			}
			c := b.call(t, volumeCall(`{"volume":1}`))
			if c.State != fleet.CallCanceled || c.SentAt != nil || code(c) != fleet.CodeRecordLate {
				t.Errorf("busy %v: the call ended %s %s, sent %v", busy, c.State, code(c), c.SentAt)
			}
		})
	}
}

func TestCallsOfADeviceTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		running := 0
		b.link.Connect(unit, func(ctx context.Context, _ string, _ json.RawMessage) (fleet.Answer, error) {
			if running++; running > 1 {
				t.Error("two calls at once")
			}
			time.Sleep(time.Second)
			running--
			return fleettest.Text("true"), nil
		})
		r := volumeCall(`{"volume":1}`)
		r.Actor, r.Device = ann, unit
		var states []fleet.CallState
		for range 5 {
			c, err := b.Start(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			states = append(states, c.State)
		}
		if states[0] != fleet.CallSent || states[3] != fleet.CallPending || states[4] != fleet.CallRefused {
			t.Errorf("states at once: %v; want the first sent, the others waiting, the one too many refused", states)
		}
		time.Sleep(10 * time.Second)
		for i, c := range b.store.All()[:4] {
			if c.State != fleet.CallSucceeded || c.Duration() != time.Second {
				t.Errorf("call %d: %s after %v", i, c.State, c.Duration())
			}
		}
	})
}

func TestWaitingCallsAreCanceledWhenTheDeviceGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.link.Connect(unit, silent)
		r := volumeCall(`{"volume":1}`)
		r.Actor, r.Device = ann, unit
		for range 2 {
			if _, err := b.Start(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		b.link.Disconnect(unit)
		synctest.Wait()
		all := b.store.All()
		if all[0].State != fleet.CallUnknown || all[1].State != fleet.CallCanceled {
			t.Errorf("states %s, %s; want the sent one unknown, the waiting one canceled", all[0].State, all[1].State)
		}
	})
}

func TestLateAnswerIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
			time.Sleep(15 * time.Second)
			return fleettest.Text("true"), nil
		})
		c := b.call(t, volumeCall(`{"volume":1}`))
		time.Sleep(10 * time.Second)
		stored, _ := b.store.Call(t.Context(), c.ID)
		if stored.State != fleet.CallTimedOut || stored.Late == nil || !strings.Contains(string(stored.Late.Result), "true") {
			t.Errorf("state %s, late %+v; want timed_out with the answer that came later", stored.State, stored.Late)
		}
	})
}

func TestShutdownLeavesNoCallOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.link.Connect(unit, silent)
		r := volumeCall(`{"volume":1}`)
		r.Actor, r.Device = ann, unit
		for range 2 {
			if _, err := b.Start(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		b.Shutdown()
		all := b.store.All()
		if all[0].State != fleet.CallUnknown || all[1].State != fleet.CallCanceled || code(all[0]) != fleet.CodeStopped {
			t.Errorf("after shutdown: %s (%s), %s", all[0].State, code(all[0]), all[1].State)
		}
		if _, err := b.Make(t.Context(), r); !errors.Is(err, fleet.ErrUnavailable) {
			t.Errorf("a call after shutdown: %v", err)
		}
	})
}

func TestReconfigureWiFiIsJudgedByEvidence(t *testing.T) {
	const (
		disconnect = fleet.EvidenceDisconnect
		lost       = fleet.EvidenceConnectionLost
		connect    = fleet.EvidenceConnect
	)
	tests := []struct {
		name   string
		script fleettest.Script
		seen   []fleet.EvidenceKind
		want   fleet.CallState
		code   string
		took   time.Duration // from the call to its outcome
	}{
		{"goodbye", silent, []fleet.EvidenceKind{disconnect}, fleet.CallSucceeded, "", 2 * time.Second},
		{"an answer, then goodbye", answer("true"), []fleet.EvidenceKind{disconnect}, fleet.CallSucceeded, "",
			2 * time.Second},
		{"the socket breaks for good", silent, []fleet.EvidenceKind{lost}, fleet.CallSucceeded, "", 17 * time.Second},
		{"the socket breaks and comes back", silent, []fleet.EvidenceKind{lost, connect}, fleet.CallTimedOut,
			"stayed_connected", 2 * time.Minute},
		{"stays", silent, nil, fleet.CallTimedOut, "stayed_connected", 2 * time.Minute},
		{"an answer alone proves nothing", answer("true"), nil, fleet.CallTimedOut, "stayed_connected", 2 * time.Minute},
		{"answers false", answer("false"), nil, fleet.CallToolError, "answered_false", 0},
		{"refused", func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
			return fleet.Answer{}, &fleet.ToolError{Message: "Unknown tool: self.system.reconfigure_wifi"}
		}, nil, fleet.CallToolError, "tool_error", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.link.Connect(unit, tt.script)
				go func() {
					time.Sleep(2 * time.Second)
					b.seen.play(tt.seen...)
				}()
				begin := time.Now()
				c := b.call(t, call.Request{Tool: fleet.ToolReconfigureWiFi})
				if took := time.Since(begin); c.State != tt.want || code(c) != tt.code || took != tt.took {
					t.Errorf("state %s, code %q after %v; want %s, %q, %v; evidence %v", c.State, code(c), took, tt.want, tt.code,
						tt.took, c.Evidence)
				}
				if tt.code == "stayed_connected" && c.Error.Params["timeout_ms"] != int64(120_000) {
					t.Errorf("params %v", c.Error.Params)
				}
				time.Sleep(3 * time.Second)
			})
		})
	}
}

func TestURLArgumentIsOursAndItsTokenStaysSecret(t *testing.T) {
	b := newBench(t)
	var wire string
	b.link.Connect(unit, func(_ context.Context, _ string, args json.RawMessage) (fleet.Answer, error) {
		wire = string(args)
		return fleettest.Text("true"), nil
	})
	c := b.call(t, call.Request{Tool: fleet.ToolSnapshot, Arguments: json.RawMessage(`{"quality":60}`)})
	if c.State != fleet.CallSucceeded || wire != `{"quality":60,"url":"http://h/u/secret"}` {
		t.Errorf("%s, sent %s", c.State, wire)
	}
	if strings.Contains(string(c.Arguments), "secret") || !strings.Contains(string(c.Arguments), "http://h/u/…") {
		t.Errorf("the record says %s", c.Arguments)
	}
	c = b.call(t, call.Request{Tool: fleet.ToolPreviewImage, Picture: "key"})
	if wire != `{"url":"http://h/d/secret/preview.jpg"}` || !strings.Contains(string(c.Arguments),
		"http://h/d/…/preview.jpg") {
		t.Errorf("sent %s, recorded %s", wire, c.Arguments)
	}
}

func TestRebootIsJudgedByEvidence(t *testing.T) {
	const (
		disconnect = fleet.EvidenceDisconnect
		lost       = fleet.EvidenceConnectionLost
		poll       = fleet.EvidenceBootPoll
		connect    = fleet.EvidenceConnect
	)
	tests := []struct {
		name   string
		script fleettest.Script
		seen   []fleet.EvidenceKind
		want   fleet.CallState
		code   string
	}{
		{"goodbye, poll, connect", silent, []fleet.EvidenceKind{disconnect, poll, connect}, fleet.CallSucceeded, ""},
		{"goodbye and back, poll not seen", silent, []fleet.EvidenceKind{disconnect, connect}, fleet.CallSucceeded, ""},
		{"socket broke, then a boot poll", silent, []fleet.EvidenceKind{lost, poll}, fleet.CallSucceeded, ""},
		{"socket broke and came back", silent, []fleet.EvidenceKind{lost, connect}, fleet.CallUnknown, "not_back"},
		{"gone for good", silent, []fleet.EvidenceKind{disconnect}, fleet.CallUnknown, "not_back"},
		{"stays", silent, nil, fleet.CallTimedOut, "no_answer"},
		{"old firmware answers first", answer("true"), []fleet.EvidenceKind{disconnect, poll}, fleet.CallSucceeded, ""},
		{"an answer alone proves nothing", answer("true"), nil, fleet.CallTimedOut, "no_answer"},
		{"refused", func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
			return fleet.Answer{}, &fleet.ToolError{Message: "Unknown tool: self.reboot"}
		}, nil, fleet.CallToolError, "tool_error"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.link.Connect(unit, tt.script)
				go func() {
					time.Sleep(2 * time.Second)
					b.seen.play(tt.seen...)
				}()
				c := b.call(t, call.Request{Tool: fleet.ToolReboot})
				if c.State != tt.want || code(c) != tt.code {
					t.Errorf("state %s, code %q; want %s, %q; evidence %v", c.State, code(c), tt.want, tt.code, c.Evidence)
				}
				time.Sleep(3 * time.Second)
			})
		})
	}
}

// The scope makes devices allow user-only tools, so a model's call must never carry it.
func TestOnlyAModelsCallGoesWithoutScope(t *testing.T) {
	b := newBench(t)
	b.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
		return fleettest.Text("true"), nil
	})
	var sent []bool
	b.link.Sending = func(inv fleet.Invocation) { sent = append(sent, inv.ForOperator) }
	kinds := []fleet.PrincipalKind{fleet.KindOperator, fleet.KindProgram, fleet.KindCampaign, fleet.KindSystem,
		fleet.KindModel}
	for _, kind := range kinds {
		by := fleet.Principal{Kind: kind, Name: "a", Role: fleet.RoleOperator}
		if c := b.call(t, call.Request{Actor: by, Tool: "self.get_device_status"}); c.State != fleet.CallSucceeded {
			t.Fatalf("%s: %s %v", kind, c.State, c.Error)
		}
	}
	if want := []bool{true, true, true, true, false}; !slices.Equal(sent, want) {
		t.Errorf("sent for %v with operator scope: %v, want %v", kinds, sent, want)
	}
}

// A picture may arrive when its call is over and another call runs.
func TestRunningCall(t *testing.T) {
	b := newBench(t)
	var running fleet.RunningCall
	var found, asked, other bool
	b.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
		running, found = b.Running(unit)
		asked, other = running.Asks("What is this?"), running.Asks("Who is that?")
		return fleettest.Text("true"), nil
	})
	c := b.call(t, call.Request{Tool: "self.odd", Arguments: json.RawMessage(`{"question":"What is this?"}`)})
	if !found || running.ID != c.ID || running.Tool != "self.odd" || !asked || other {
		t.Errorf("while call %s ran: %+v %v; its question %v, another %v", c.ID, running, found, asked, other)
	}
	c = b.call(t, call.Request{Tool: "self.get_device_status"})
	if running.ID != c.ID || !asked || !other {
		t.Errorf("while a call without a question ran: %+v; %v, %v", running, asked, other)
	}
	if got, ok := b.Running(unit); ok {
		t.Errorf("when all are over: %+v", got)
	}
}
