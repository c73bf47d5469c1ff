package call_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
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
)

// away is a bench whose device may be disconnected and whose process may die.
type away struct {
	*bench
	rights *rights
	open   *fleet.OpenConversations
	life   *life // of the process that serves now

	mu   sync.Mutex
	sent []string // arguments, in the order of sending
}

// A life holds what a process loses when it dies: its connections and its database.
type life struct {
	call.Store
	fleet.Link
	mu   sync.Mutex
	dead bool
	down bool // the database, for a while
}

var errDead = errors.New("the database cannot be reached")

func (l *life) alive() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead || l.down {
		return errDead
	}
	return nil
}

func (l *life) die() { l.mu.Lock(); defer l.mu.Unlock(); l.dead = true }

func (l *life) lose(down bool) { l.mu.Lock(); defer l.mu.Unlock(); l.down = down }

func (l *life) write(c *fleet.Call, write func(context.Context, *fleet.Call) error) error {
	if err := l.alive(); err != nil {
		return err
	}
	return write(context.Background(), c)
}

func (l *life) InsertCall(_ context.Context, c *fleet.Call) error {
	return l.write(c, l.Store.InsertCall)
}

func (l *life) MarkSent(_ context.Context, c *fleet.Call) error {
	return l.write(c, l.Store.MarkSent)
}

func (l *life) SendWaiting(_ context.Context, c *fleet.Call) error {
	return l.write(c, l.Store.SendWaiting)
}

func (l *life) FinishCall(_ context.Context, c *fleet.Call) error {
	return l.write(c, l.Store.FinishCall)
}

func (l *life) WaitForDevice(_ context.Context, c *fleet.Call, w call.Wait) error {
	return l.write(c, func(ctx context.Context, c *fleet.Call) error { return l.Store.WaitForDevice(ctx, c, w) })
}

func (l *life) SettleCalls(ctx context.Context, calls []*fleet.Call) error {
	if err := l.alive(); err != nil {
		return err
	}
	return l.Store.SettleCalls(ctx, calls)
}

func (l *life) Queue(id fleet.DeviceID, by fleet.PrincipalKind) (fleet.Turn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return nil, fleet.ErrOffline
	}
	return l.Link.Queue(id, by)
}

// rights maps principals' ids to their current rights; principals without an entry keep the
// rights they had.
type rights struct {
	mu   sync.Mutex
	now  map[string]fleet.Principal
	gone map[string]bool
}

func (r *rights) set(p fleet.Principal, gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now[p.ID], r.gone[p.ID] = p, gone
}

func (r *rights) PrincipalNow(_ context.Context, p fleet.Principal) (fleet.Principal, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone[p.ID] {
		return p, fleet.ActorGone(p)
	}
	if now, known := r.now[p.ID]; known {
		return now, nil
	}
	return p, nil
}

func newAway(t *testing.T) *away {
	b := &away{bench: &bench{store: &fleettest.CallStore{}, devices: &fleettest.Devices{}, link: &fleettest.Link{},
		seen: &watch{}}, rights: &rights{now: make(map[string]fleet.Principal), gone: make(map[string]bool)}}
	b.devices.PutInventory(fleet.Inventory{ID: "inv", Tools: tools})
	b.devices.Put(fleet.Device{ID: unit, Enrolment: fleet.EnrolmentEnrolled, InventoryID: "inv"})
	b.targets = fleet.NewTargets(b.devices, b.devices)
	b.open = fleet.NewOpenConversations(fleet.OpenConversationsOptions{})
	b.link.Sending = func(inv fleet.Invocation) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.sent = append(b.sent, string(inv.Arguments))
	}
	b.start(t)
	return b
}

func (b *away) start(t *testing.T) {
	b.life = &life{Store: b.store, Link: b.link}
	b.Service = call.New(call.Options{Store: b.life, Targets: b.targets, Link: b.life, Watcher: b.seen,
		URLs: urls{}, Events: &fleet.Events{}, Authority: b.rights,
		Interruptions: &call.Interruptions{Open: b.open}})
	if err := b.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
}

// kill ends the process as kill -9 does, and starts the next.
func (b *away) kill(t *testing.T) {
	b.life.die()
	go b.Shutdown() // only to end its goroutines
	for _, c := range b.store.All() {
		now := time.Now()
		switch c.State { // as RecoverCalls does
		case fleet.CallPending:
			c.State, c.FinishedAt = fleet.CallCanceled, &now
		case fleet.CallSent:
			c.State, c.FinishedAt = fleet.CallUnknown, &now
		default:
			continue
		}
		_ = b.store.FinishCall(t.Context(), &c)
	}
	b.start(t)
}

func (b *away) sends() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.sent)
}

func volume(n int) json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"volume":%d}`, n)) }

func waiting(n int) call.Request {
	return call.Request{Actor: ann, Device: unit, Tool: "self.audio_speaker.set_volume", Arguments: volume(n),
		OfflineWait: time.Hour}
}

func (b *away) make(t *testing.T, r call.Request, want fleet.CallState) fleet.Call {
	t.Helper()
	c, err := b.Make(t.Context(), r)
	if err != nil || c.State != want {
		t.Fatalf("%s %q, %v; want %s", c.State, code(c), err, want)
	}
	return c
}

func (b *away) get(t *testing.T, id uuid.UUID) fleet.Call {
	t.Helper()
	synctest.Wait()
	c, err := b.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Outcomes of a call that waits for its device.
func TestEndsOfTheWaitForADevice(t *testing.T) {
	scoped := ann
	var err error
	if scoped.Scope, err = fleet.NewScope("id:020000000001", "", nil); err != nil {
		t.Fatal(err)
	}
	viewer := ann
	viewer.Role = fleet.RoleViewer
	back := func(b *away) { time.Sleep(time.Minute); b.link.Connect(unit, answer("true")) }
	tests := []struct {
		name  string
		do    func(t *testing.T, b *away, id uuid.UUID)
		want  fleet.CallState
		code  string
		sends int
	}{
		{"the device is back", func(_ *testing.T, b *away, _ uuid.UUID) { back(b) }, fleet.CallSucceeded, "", 1},
		{"it is never back", func(*testing.T, *away, uuid.UUID) { time.Sleep(time.Hour) }, fleet.CallCanceled, "wait_expired", 0},
		{"whoever made it cancels", func(t *testing.T, b *away, id uuid.UUID) {
			if c, err := b.Cancel(t.Context(), ann, id); err != nil || c.State != fleet.CallCanceled {
				t.Error(c.State, err)
			}
			back(b)
		}, fleet.CallCanceled, "withdrawn", 0},
		{"fleetd is killed", func(t *testing.T, b *away, _ uuid.UUID) { b.kill(t); back(b) }, fleet.CallSucceeded, "", 1},
		{"fleetd restarts", func(t *testing.T, b *away, _ uuid.UUID) {
			begin := time.Now()
			b.Shutdown()
			if took := time.Since(begin); took > time.Second {
				t.Errorf("stopping waited %v", took)
			}
			b.start(t)
			back(b)
		}, fleet.CallSucceeded, "", 1},
		{"its time is over while fleetd is down", func(t *testing.T, b *away, _ uuid.UUID) {
			b.Shutdown()
			time.Sleep(2 * time.Hour)
			b.link.Connect(unit, answer("true"))
			b.start(t)
		}, fleet.CallCanceled, "wait_expired", 0},
		{"who made it is gone", func(_ *testing.T, b *away, _ uuid.UUID) { b.rights.set(ann, true); back(b) },
			fleet.CallCanceled, "actor_gone", 0},
		{"who made it is a viewer now", func(_ *testing.T, b *away, _ uuid.UUID) { b.rights.set(viewer, false); back(b) },
			fleet.CallRefused, "forbidden", 0},
		{"the device left their scope", func(_ *testing.T, b *away, _ uuid.UUID) { b.rights.set(scoped, false); back(b) },
			fleet.CallCanceled, "out_of_scope", 0},
		{"demoted, and restarted", func(t *testing.T, b *away, _ uuid.UUID) {
			b.rights.set(viewer, false)
			b.kill(t)
			back(b)
		}, fleet.CallRefused, "forbidden", 0},
		{"held meanwhile", func(_ *testing.T, b *away, _ uuid.UUID) {
			b.put(func(d *fleet.Device) { d.Hold = &fleet.Hold{Reason: "on the bench", By: bob} })
			back(b)
		}, fleet.CallRefused, "device_held", 0},
		{"its tools are others now", func(_ *testing.T, b *away, _ uuid.UUID) {
			b.devices.PutInventory(fleet.Inventory{ID: "none", Tools: tools[:1]})
			b.put(func(d *fleet.Device) { d.InventoryID = "none" })
			back(b)
		}, fleet.CallInvalid, "unknown_tool", 0},
		{"the device leaves before anything is written", func(_ *testing.T, b *away, _ uuid.UUID) {
			b.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
				return fleet.Answer{}, fleet.ErrOffline
			})
			time.Sleep(7*time.Second + 300*time.Millisecond) // between two tries: no call is in flight
			b.link.Disconnect(unit)
			b.mu.Lock()
			b.sent = nil
			b.mu.Unlock()
			back(b)
		}, fleet.CallSucceeded, "", 1},
		{"the database is away when the device is back", func(_ *testing.T, b *away, _ uuid.UUID) {
			b.life.lose(true)
			back(b)
			time.Sleep(time.Minute)
			b.life.lose(false)
			time.Sleep(time.Minute)
		}, fleet.CallSucceeded, "", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newAway(t)
				begin := time.Now().UTC()
				c := b.make(t, waiting(30), fleet.CallPendingDevice)
				want := fleet.Because(call.ReasonDeviceAway, "until_at", begin.Add(time.Hour))
				if got := b.get(t, c.ID); !got.Waits.Equal(want) || !got.WaitUntil.Equal(begin.Add(time.Hour)) {
					t.Errorf("waits for %v until %v, want %v", got.Waits, got.WaitUntil, want)
				}
				tt.do(t, b, c.ID)
				time.Sleep(10 * time.Second)
				got := b.get(t, c.ID)
				if got.State != tt.want || code(got) != tt.code || got.FinishedAt == nil || !got.Waits.Is("") {
					t.Fatalf("%s %q, waits for %v; want %s %q", got.State, code(got), got.Waits, tt.want, tt.code)
				}
				if sends := b.sends(); len(sends) != tt.sends {
					t.Errorf("sent %v, want %d", sends, tt.sends)
				}
				if tt.sends > 0 && (len(got.Evidence) != 1 || !got.Evidence[0].Reason.Is(call.ReasonDeviceBack)) {
					t.Errorf("evidence %+v", got.Evidence)
				}
				if _, err := b.Cancel(t.Context(), ann, c.ID); !errors.Is(err, fleet.ErrConflict) {
					t.Errorf("canceling a call that is over: %v", err)
				}
			})
		})
	}
}

// Which calls wait, for whom, and how many.
func TestWhichCallsWaitForADevice(t *testing.T) {
	t.Run("of one device, in order", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newAway(t)
			var want []string
			for n := range 5 {
				b.make(t, waiting(n), fleet.CallPendingDevice)
				want = append(want, string(volume(n)))
			}
			b.kill(t)
			b.link.Connect(unit, func(ctx context.Context, tool string, args json.RawMessage) (fleet.Answer, error) {
				time.Sleep(time.Second) // earlier calls still wait when the next one is made
				return answer("true")(ctx, tool, args)
			})
			b.make(t, waiting(5), fleet.CallPendingDevice) // behind the waiting calls
			time.Sleep(time.Minute)
			if got := b.sends(); !slices.Equal(got, append(want, string(volume(5)))) {
				t.Errorf("sent %v", got)
			}
		})
	})
	t.Run("not of a device that is connected", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newAway(t)
			b.link.Connect(unit, answer("true"))
			b.make(t, waiting(1), fleet.CallSucceeded)
		})
	})
	t.Run("bounded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newAway(t)
			for n := range call.MaxWaitingOfDevice {
				b.make(t, waiting(n), fleet.CallPendingDevice)
			}
			if c := b.make(t, waiting(99), fleet.CallRefused); code(c) != "too_many_calls_wait" {
				t.Error(code(c))
			}
			first := b.store.All()[0]
			if _, err := b.Cancel(t.Context(), bob, first.ID); err != nil {
				t.Error(err)
			}
			b.make(t, waiting(99), fleet.CallPendingDevice)
		})
	})
	t.Run("a one-time link is made when it is sent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newAway(t)
			r := waiting(0)
			r.Tool, r.Arguments = fleet.ToolSnapshot, json.RawMessage(`{"quality":50}`)
			c := b.make(t, r, fleet.CallPendingDevice)
			if string(c.Arguments) != `{"quality":50}` {
				t.Errorf("waits with %s", c.Arguments)
			}
			b.kill(t)
			b.link.Connect(unit, answer("true"))
			time.Sleep(10 * time.Second)
			got := b.get(t, c.ID)
			if sends := b.sends(); len(sends) != 1 || !strings.Contains(sends[0], "secret") ||
				strings.Contains(string(got.Arguments), "secret") || !strings.Contains(string(got.Arguments), "http") {
				t.Errorf("sent %v, on record %s", sends, got.Arguments)
			}
		})
	})
	t.Run("then for a conversation", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newAway(t)
			r := waiting(0)
			r.Tool, r.Arguments = fleet.ToolReconfigureWiFi, nil
			c := b.make(t, r, fleet.CallPendingDevice)
			talk := fleet.Conversation{ID: uuid.Must(uuid.NewV7()), Device: unit, Begin: time.Now().UTC()}
			b.open.Begin(talk)
			b.link.Connect(unit, answer("true"))
			time.Sleep(time.Minute)
			if got := b.get(t, c.ID); got.State != fleet.CallPendingDevice || !got.Waits.Is(call.ReasonInConversation) {
				t.Errorf("%s for %v", got.State, got.Waits)
			}
			b.open.End(unit, talk.ID)
			synctest.Wait()
			if sends := b.sends(); len(sends) != 1 {
				t.Errorf("sent %v", sends)
			}
		})
	})
	t.Run("who may ask", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newAway(t)
			r := waiting(0)
			r.Actor = fleet.Principal{Kind: fleet.KindVoice, ID: uuid.NewString(), Name: "lab", Role: fleet.RoleOperator}
			if _, err := b.Make(t.Context(), r); !errors.Is(err, fleet.ErrForbidden) || len(b.store.All()) > 0 {
				t.Error("a voice server's model:", err)
			}
			for _, wait := range []time.Duration{-1, call.MaxCallOfflineWait + 1} {
				r := waiting(0)
				r.OfflineWait = wait
				if _, err := b.Make(t.Context(), r); !errors.Is(err, fleet.ErrInvalid) {
					t.Error(wait, err)
				}
			}
		})
	})
	t.Run("who may cancel", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newAway(t)
			c := b.make(t, waiting(0), fleet.CallPendingDevice)
			who := func(kind fleet.PrincipalKind, name string, role fleet.Role, where string, rest fleet.Role,
				tools ...string) fleet.Principal {
				scope, err := fleet.NewScope(where, rest, tools)
				if err != nil {
					t.Fatal(err)
				}
				return fleet.Principal{Kind: kind, ID: name, Name: name, Role: role, Scope: scope}
			}
			const elsewhere = "id:020000000001"
			for _, tt := range []struct {
				by   fleet.Principal
				want error
			}{
				{who(fleet.KindOperator, "viewer", fleet.RoleViewer, "", ""), fleet.ErrForbidden},
				{who(fleet.KindModel, "model", fleet.RoleOperator, "", ""), fleet.ErrForbidden},
				{who(fleet.KindProgram, "out", fleet.RoleOperator, elsewhere, ""), fleet.ErrNotFound},
				{who(fleet.KindProgram, "reads here", fleet.RoleOperator, elsewhere, fleet.RoleViewer), fleet.ErrForbidden},
				{who(fleet.KindProgram, "other tools", fleet.RoleOperator, "", "", "self.get_*"), fleet.ErrForbidden},
				{bob, nil},
			} {
				if _, err := b.Cancel(t.Context(), tt.by, c.ID); !errors.Is(err, tt.want) {
					t.Errorf("%s: %v, want %v", tt.by.Name, err, tt.want)
				}
				if got := b.get(t, c.ID); tt.want != nil && got.State != fleet.CallPendingDevice {
					t.Errorf("after %s it is %s", tt.by.Name, got.State)
				}
			}
			r := waiting(1)
			r.Actor = who(fleet.KindModel, "model", fleet.RoleOperator, "", "")
			c = b.make(t, r, fleet.CallPendingDevice)
			if c, err := b.Cancel(t.Context(), r.Actor, c.ID); err != nil || c.State != fleet.CallCanceled {
				t.Errorf("a model's own call: %s, %v", c.State, err)
			}
		})
	})
}

// Whatever happens in whatever order: no call is sent twice, no call is sent after its
// cancellation, every call ends, and the calls are sent in order.
func TestWaitingCallsWhateverHappens(t *testing.T) {
	for seed := range uint64(150) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 23))
			b := newAway(t)
			var mu sync.Mutex
			canceled := make(map[uuid.UUID]bool)
			var made []fleet.Call
			var wg sync.WaitGroup
			for n := 0; len(made) < 18; {
				switch random.IntN(8) {
				case 0, 1, 2:
					r := waiting(n)
					n++
					if c, err := b.Make(t.Context(), r); err == nil {
						made = append(made, c)
					}
				case 3:
					if len(made) == 0 {
						break
					}
					id, calls := made[random.IntN(len(made))].ID, b.Service
					wg.Go(func() { // races with the following
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						defer cancel()
						if c, err := calls.Cancel(ctx, bob, id); err == nil && c.State == fleet.CallCanceled {
							mu.Lock()
							defer mu.Unlock()
							canceled[id] = true
						}
					})
				case 4, 5:
					b.link.Disconnect(unit)
					script := answer("true")
					if random.IntN(3) == 0 {
						script = silent
					}
					b.link.Connect(unit, script)
				case 6:
					b.link.Disconnect(unit)
				case 7:
					switch random.IntN(4) {
					case 0:
						b.kill(t)
					case 1:
						now := ann
						now.Role = []fleet.Role{fleet.RoleViewer, fleet.RoleOperator}[random.IntN(2)]
						b.rights.set(now, random.IntN(8) == 0)
					}
				}
				if random.IntN(3) == 0 {
					time.Sleep(time.Duration(random.IntN(10_000)) * time.Millisecond)
				} else if random.IntN(2) == 0 {
					synctest.Wait()
				}
			}
			b.rights.set(ann, false)
			b.link.Disconnect(unit)
			b.link.Connect(unit, answer("true"))
			time.Sleep(2 * time.Hour)
			wg.Wait()
			sends := b.sends()
			last := -1
			for _, arguments := range sends {
				var a struct{ Volume int }
				_ = json.Unmarshal([]byte(arguments), &a)
				if a.Volume <= last {
					t.Errorf("seed %d: sent %v: twice, or out of order", seed, sends)
				}
				last = a.Volume
			}
			for _, c := range b.store.All() {
				sent := slices.Contains(sends, string(c.Arguments))
				switch {
				case !c.State.Final():
					t.Errorf("seed %d: %s is %s", seed, c.Arguments, c.State)
				case c.State == fleet.CallSucceeded && !sent:
					t.Errorf("seed %d: %s succeeded and was not sent", seed, c.Arguments)
				case sent && (canceled[c.ID] || c.State == fleet.CallCanceled || c.State == fleet.CallRefused):
					t.Errorf("seed %d: %s was sent and is %s %s", seed, c.Arguments, c.State, code(c))
				}
			}
		})
	}
}
