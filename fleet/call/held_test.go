package call_test

import (
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
)

// talks is a bench whose device can be in conversation.
type talks struct {
	*bench
	open   *fleet.OpenConversations
	events *fleet.Events
}

func newTalks(t *testing.T) *talks {
	b := &talks{bench: &bench{store: &fleettest.CallStore{}, devices: &fleettest.Devices{}, link: &fleettest.Link{},
		seen: &watch{}}, events: &fleet.Events{}}
	b.devices.PutInventory(fleet.Inventory{ID: "inv", Tools: append(tools,
		fleet.Tool{Name: fleet.ToolConfigSet, Audience: fleet.AudienceModel,
			InputSchema: json.RawMessage(`{"type":"object"}`)})})
	b.devices.Put(fleet.Device{ID: unit, Enrolment: fleet.EnrolmentEnrolled, InventoryID: "inv"})
	b.targets = fleet.NewTargets(b.devices, b.devices)
	b.open = fleet.NewOpenConversations(fleet.OpenConversationsOptions{Events: b.events})
	b.Service = call.New(call.Options{Store: b.store, Targets: b.targets, Link: b.link, Watcher: b.seen,
		URLs: urls{}, Events: b.events, Interruptions: &call.Interruptions{Open: b.open}})
	t.Cleanup(b.Shutdown)
	b.link.Connect(unit, answer("true"))
	return b
}

func (b *talks) begin() fleet.Conversation {
	c := fleet.Conversation{ID: uuid.Must(uuid.NewV7()), Device: unit, Begin: time.Now().UTC()}
	b.open.Begin(c)
	return c
}

func (b *talks) get(t *testing.T, id uuid.UUID) fleet.Call {
	t.Helper()
	synctest.Wait()
	c, err := b.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Which calls wait for the end of a conversation.
func TestCallsThatWaitForAConversation(t *testing.T) {
	model := fleet.Principal{Kind: fleet.KindModel, ID: "m", Name: "m", Role: fleet.RoleOperator}
	program := fleet.Principal{Kind: fleet.KindProgram, ID: "p", Name: "p", Role: fleet.RoleOperator}
	tests := []struct {
		name    string
		tool    string
		by      fleet.Principal
		change  func(r *call.Request, talk fleet.Conversation)
		silent  bool // no conversation
		want    fleet.CallState
		talking bool // the request fails for it
	}{
		{name: "status", tool: "self.get_device_status", by: ann, want: fleet.CallSucceeded},
		{name: "volume by a model", tool: "self.audio_speaker.set_volume", by: model, want: fleet.CallSucceeded},
		{name: "restart", tool: fleet.ToolReboot, by: ann, want: fleet.CallPending},
		{name: "restart by a program", tool: fleet.ToolReboot, by: program, want: fleet.CallPending},
		{name: "leaving the network", tool: fleet.ToolReconfigureWiFi, by: ann, want: fleet.CallPending},
		{name: "configuration", tool: fleet.ToolConfigSet, by: ann, want: fleet.CallPending},
		{name: "configuration by a model", tool: fleet.ToolConfigSet, by: model, want: fleet.CallPending},
		{name: "without a conversation", tool: fleet.ToolConfigSet, by: ann, silent: true, want: fleet.CallSucceeded},
		{name: "a person does not wait", tool: fleet.ToolConfigSet, by: ann, want: fleet.CallSucceeded,
			change: func(r *call.Request, _ fleet.Conversation) { r.Interrupt = true }},
		{name: "a model cannot ask for that", tool: fleet.ToolConfigSet, by: model, want: fleet.CallPending,
			change: func(r *call.Request, _ fleet.Conversation) { r.Interrupt = true }},
		{name: "of the conversation", tool: fleet.ToolConfigSet, by: model, want: fleet.CallSucceeded,
			change: func(r *call.Request, talk fleet.Conversation) {
				r.Actor = fleet.Principal{Kind: fleet.KindVoice, ID: talk.ID.String(), Name: "lab", Role: fleet.RoleOperator}
			}},
		{name: "of another conversation", tool: fleet.ToolConfigSet, want: fleet.CallPending,
			by: fleet.Principal{Kind: fleet.KindVoice, ID: uuid.NewString(), Name: "lab", Role: fleet.RoleOperator}},
		{name: "refused", tool: fleet.ToolReboot, by: model, want: fleet.CallRefused},
		{name: "the caller waits", tool: fleet.ToolReboot, by: ann, talking: true,
			change: func(r *call.Request, _ fleet.Conversation) { r.UnlessTalking = true }},
		{name: "the caller waits for what does not interrupt", tool: "self.get_device_status", by: ann,
			want:   fleet.CallSucceeded,
			change: func(r *call.Request, _ fleet.Conversation) { r.UnlessTalking = true }},
		{name: "the caller waited", tool: fleet.ToolConfigSet, by: ann, want: fleet.CallSucceeded,
			change: func(r *call.Request, talk fleet.Conversation) { r.UnlessTalking, r.Outwaited = true, talk.ID }},
		{name: "the caller waited for another one", tool: fleet.ToolConfigSet, by: ann, talking: true,
			change: func(r *call.Request, _ fleet.Conversation) { r.UnlessTalking, r.Outwaited = true, uuid.New() }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newTalks(t)
				var talk fleet.Conversation
				if !tt.silent {
					talk = b.begin()
				}
				r := call.Request{Actor: tt.by, Device: unit, Tool: tt.tool}
				if tt.tool == "self.audio_speaker.set_volume" {
					r.Arguments = json.RawMessage(`{"volume":5}`)
				}
				if tt.change != nil {
					tt.change(&r, talk)
				}
				c, err := b.Make(t.Context(), r)
				if tt.talking {
					if !errors.Is(err, call.ErrTalking) || len(b.store.All()) != 0 {
						t.Errorf("%v, %d on record", err, len(b.store.All()))
					}
					return
				}
				if err != nil || c.State != tt.want {
					t.Fatalf("%s %v, %v; want %s", c.State, c.Error, err, tt.want)
				}
				want := fleet.Reason{}
				if c.State == fleet.CallPending {
					want = fleet.Because(call.ReasonInConversation, "since_at", talk.Begin,
						"until_at", talk.Begin.Add(call.DefaultConversationWait))
				}
				if stored := b.get(t, c.ID); !c.Waits.Equal(want) || stored.State != tt.want || !stored.Waits.Equal(want) {
					t.Errorf("waits for %v, on record %s for %v, want %v", c.Waits, stored.State, stored.Waits, want)
				}
			})
		})
	}
}

// How the wait ends.
func TestEndsOfTheWaitForAConversation(t *testing.T) {
	const bound = call.DefaultConversationWait
	tests := []struct {
		name   string
		do     func(t *testing.T, b *talks, id uuid.UUID, talk fleet.Conversation)
		after  time.Duration
		want   fleet.CallState
		code   string
		waited string // code of the evidence
	}{
		{"the conversation ends", func(_ *testing.T, b *talks, _ uuid.UUID, talk fleet.Conversation) {
			time.Sleep(time.Minute)
			b.open.End(unit, talk.ID)
		}, time.Minute, fleet.CallSucceeded, "", call.ReasonConversationEnded},
		{"the bound passes", func(*testing.T, *talks, uuid.UUID, fleet.Conversation) { time.Sleep(bound) }, bound,
			fleet.CallSucceeded, "", call.ReasonConversationLong},
		{"another conversation follows", func(_ *testing.T, b *talks, _ uuid.UUID, talk fleet.Conversation) {
			time.Sleep(6 * time.Minute)
			b.begin()
			time.Sleep(4 * time.Minute)
		}, bound, fleet.CallSucceeded, "", call.ReasonConversationLong},
		{"another one follows and ends", func(_ *testing.T, b *talks, _ uuid.UUID, talk fleet.Conversation) {
			time.Sleep(6 * time.Minute)
			next := b.begin()
			time.Sleep(time.Minute)
			b.open.End(unit, talk.ID) // late: the conversation is over
			time.Sleep(time.Minute)
			b.open.End(unit, next.ID)
		}, 8 * time.Minute, fleet.CallSucceeded, "", call.ReasonConversationEnded},
		{"a person interrupts", func(t *testing.T, b *talks, id uuid.UUID, _ fleet.Conversation) {
			time.Sleep(time.Minute)
			if _, err := b.Interrupt(t.Context(), bob, id); err != nil {
				t.Error(err)
			}
			// Pressed twice: the call waits no longer, or has ended already.
			if _, err := b.Interrupt(t.Context(), bob, id); err != nil && !errors.Is(err, fleet.ErrConflict) {
				t.Error(err)
			}
		}, time.Minute, fleet.CallSucceeded, "", call.ReasonInterruptedBy},
		{"the device is lost with the conversation", func(_ *testing.T, b *talks, _ uuid.UUID, talk fleet.Conversation) {
			time.Sleep(time.Minute)
			b.link.Disconnect(unit)
			b.open.End(unit, talk.ID)
		}, time.Minute, fleet.CallOffline, "device_offline", call.ReasonConversationEnded},
		{"a hold meanwhile", func(_ *testing.T, b *talks, _ uuid.UUID, talk fleet.Conversation) {
			time.Sleep(time.Minute)
			b.put(func(d *fleet.Device) { d.Hold = &fleet.Hold{Reason: "on the bench", By: bob} })
			b.open.End(unit, talk.ID)
		}, time.Minute, fleet.CallRefused, "device_held", call.ReasonConversationEnded},
		{"retired meanwhile", func(_ *testing.T, b *talks, _ uuid.UUID, talk fleet.Conversation) {
			time.Sleep(time.Minute)
			now := time.Now()
			b.put(func(d *fleet.Device) { d.RetiredAt = &now })
			b.open.End(unit, talk.ID)
		}, time.Minute, fleet.CallRefused, "device_retired", call.ReasonConversationEnded},
		{"fleetd stops", func(_ *testing.T, b *talks, _ uuid.UUID, _ fleet.Conversation) { b.Shutdown() }, 2 * time.Second,
			fleet.CallCanceled, "fleetd_stopped", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newTalks(t)
				talk := b.begin()
				begin := time.Now()
				c, err := b.Make(t.Context(), call.Request{Actor: ann, Device: unit, Tool: fleet.ToolConfigSet})
				if err != nil || c.State != fleet.CallPending {
					t.Fatalf("%s, %v", c.State, err)
				}
				// The line is free for other calls.
				if other := b.call(t, call.Request{Tool: "self.get_device_status"}); other.State != fleet.CallSucceeded {
					t.Errorf("another call: %s", other.State)
				}
				tt.do(t, b, c.ID, talk)
				got := b.get(t, c.ID)
				if got.State != tt.want || code(got) != tt.code || got.FinishedAt == nil {
					t.Fatalf("%s %q, want %s %q", got.State, code(got), tt.want, tt.code)
				}
				if took := got.FinishedAt.Sub(begin); took < tt.after || took > tt.after+time.Second {
					t.Errorf("ended after %v, want %v", took, tt.after)
				}
				switch {
				case tt.waited == "" && len(got.Evidence) == 0:
				case len(got.Evidence) != 1 || got.Evidence[0].Kind != fleet.EvidenceWaited ||
					!got.Evidence[0].Reason.Is(tt.waited):
					t.Errorf("evidence %+v, want %s", got.Evidence, tt.waited)
				}
				if tt.waited == call.ReasonInterruptedBy && got.Evidence[0].Reason.Params["name"] != "bob" {
					t.Errorf("interrupted by %v", got.Evidence[0].Reason)
				}
				if _, err := b.Interrupt(t.Context(), bob, c.ID); !errors.Is(err, fleet.ErrConflict) {
					t.Errorf("interrupting a call that does not wait: %v", err)
				}
			})
		})
	}
}

// Which principals may make a call go on.
func TestWhoMayInterrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTalks(t)
		b.begin()
		c, err := b.Make(t.Context(), call.Request{Actor: ann, Device: unit, Tool: fleet.ToolConfigSet})
		if err != nil {
			t.Fatal(err)
		}
		elsewhere, err := fleet.NewScope("id:020000000001", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		reads, err := fleet.NewScope("", "", []string{"self.get_*"})
		if err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			by   fleet.Principal
			want error
		}{
			{fleet.Principal{Kind: fleet.KindProgram, Name: "reads", Role: fleet.RoleOperator, Scope: reads}, fleet.ErrForbidden},
			{fleet.Principal{Kind: fleet.KindOperator, Name: "viewer", Role: fleet.RoleViewer}, fleet.ErrForbidden},
			{fleet.Principal{Kind: fleet.KindModel, Name: "model", Role: fleet.RoleOperator}, fleet.ErrForbidden},
			{fleet.Principal{Kind: fleet.KindProgram, Name: "out", Role: fleet.RoleOperator, Scope: elsewhere}, fleet.ErrNotFound},
		} {
			if _, err := b.Interrupt(t.Context(), tt.by, c.ID); !errors.Is(err, tt.want) {
				t.Errorf("%s: %v, want %v", tt.by.Name, err, tt.want)
			}
		}
		if got := b.get(t, c.ID); got.State != fleet.CallPending {
			t.Errorf("the call is %s", got.State)
		}
		if _, err := b.Interrupt(t.Context(), ann, uuid.New()); !errors.Is(err, fleet.ErrNotFound) {
			t.Error(err)
		}
	})
}
