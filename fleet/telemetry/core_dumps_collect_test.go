package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/picture"
	"fleetd/fleet/telemetry"
)

// crashStore stores core dumps, links and bytes in memory.
type crashStore struct {
	telemetry.CoreDumpStore
	picture.URLLinkStore
	mu    sync.Mutex
	dumps []telemetry.CoreDump
	links map[string]picture.URLLink
}

func (s *crashStore) CreateCoreDump(_ context.Context, c telemetry.CoreDump) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dumps = append([]telemetry.CoreDump{c}, s.dumps...)
	return nil
}

func (s *crashStore) CoreDumps(_ context.Context, id fleet.DeviceID, _ int) (found []telemetry.CoreDump, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.dumps {
		if c.Device == id {
			found = append(found, c)
		}
	}
	return found, nil
}

func (s *crashStore) CreateURLLink(_ context.Context, l picture.URLLink) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links[string(l.TokenHash)] = l
	return nil
}

func (s *crashStore) UseURLLink(_ context.Context, hash []byte, purpose fleet.LinkPurpose, now time.Time) (
	picture.URLLink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.links[string(hash)]
	if !ok || l.Purpose != purpose || !now.Before(l.ExpiresAt) {
		return l, fleet.ErrNotFound
	}
	delete(s.links, string(hash))
	return l, nil
}

func (s *crashStore) Put(context.Context, []byte) (string, error) {
	return strings.Repeat("ab", 32), nil
}
func (s *crashStore) Get(context.Context, string) ([]byte, error) { return nil, fleet.ErrNotFound }
func (s *crashStore) DeleteFile(context.Context, string) error    { return nil }

// callList is the store of calls with the list in which the summary of a core dump is searched.
type callList struct{ *fleettest.CallStore }

func (s callList) Calls(_ context.Context, f call.Filter) (page fleet.Page[fleet.Call], err error) {
	for _, c := range s.All() {
		if c.Tool == f.Tool && c.State == fleet.CallSucceeded && !c.CreatedAt.Before(f.Since) {
			page.Items = []fleet.Call{c} // the newest stays
		}
	}
	return page, nil
}

// vitalsOf returns the vitals that the device reports.
type vitalsOf struct {
	mu sync.Mutex
	v  telemetry.Vitals
}

func (v *vitalsOf) Vitals(context.Context, fleet.DeviceID) (telemetry.Vitals, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.v, nil
}

func (v *vitalsOf) set(change func(*telemetry.Vitals)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change(&v.v)
}

// crashBench is a crashed device, and fleetd.
type crashBench struct {
	*bench
	dumps   *telemetry.CoreDumps
	kept    *crashStore
	vitals  *vitalsOf
	uploads atomic.Int64
	broken  atomic.Int64 // uploads that fail
}

func newCrashBench(t *testing.T) *crashBench {
	b := &crashBench{bench: newBench(t), kept: &crashStore{links: map[string]picture.URLLink{}},
		vitals: &vitalsOf{v: telemetry.Vitals{Boots: 3, CoreDump: true, ResetReason: "panic"}}}
	b.devices.PutInventory(fleet.Inventory{ID: "dumps", Tools: []fleet.Tool{
		{Name: fleet.ToolCoreDumpInfo, Audience: fleet.AudienceUser, InputSchema: json.RawMessage(
			`{"type":"object","properties":{}}`)},
		{Name: fleet.ToolCoreDumpUpload, Audience: fleet.AudienceUser,
			InputSchema: json.RawMessage(`{"type":"object","properties":{"url":{"type":"string"},"erase":{"type":"boolean"}},"required":["url"]}`)}}})
	b.put(func(d *fleet.Device) { d.InventoryID, d.ELFSHA256, d.Version = "dumps", "9f2c", "1.2.0" })
	store := callList{b.store}
	b.Service = call.New(call.Options{Store: store, Targets: b.targets, Link: b.link, Watcher: unseen{},
		URLs: picture.NewURLLinks(b.kept, "http://h", time.Now), Events: &fleet.Events{}})
	b.dumps = telemetry.NewCoreDumps(telemetry.CoreDumpsOptions{Links: b.kept, Store: b.kept, Blobs: b.kept,
		Calls: b.Service, Devices: b.devices,
		Inventories: b.devices, Vitals: b.vitals, Collect: true})
	b.link.Connect(unit, b.device)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = b.dumps.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done; b.Shutdown() })
	return b
}

// beat sends a heartbeat.
func (b *crashBench) beat() {
	v, _ := b.vitals.Vitals(context.Background(), unit)
	b.dumps.Observe(map[fleet.DeviceID]telemetry.Vitals{unit: v})
}

func (b *crashBench) stored() []telemetry.CoreDump {
	all, _ := b.kept.CoreDumps(context.Background(), unit, 0)
	return all
}

func (b *crashBench) device(ctx context.Context, tool string, arguments json.RawMessage) (fleet.Answer, error) {
	if tool == fleet.ToolCoreDumpInfo {
		return fleettest.Text(`{"present":true,"size":4,"summary":"task main\u0000, pc 0x40"}`), nil
	}
	if b.uploads.Add(1) <= b.broken.Load() {
		return fleet.Answer{}, &fleet.ToolError{Message: "connection refused"}
	}
	var args struct {
		URL   string
		Erase bool
	}
	if err := json.Unmarshal(arguments, &args); err != nil || !args.Erase {
		return fleet.Answer{}, errors.Join(err, errors.New("not to be erased"))
	}
	_, err := b.dumps.Receive(ctx, args.URL[strings.LastIndex(args.URL, "/")+1:],
		func() (io.Reader, error) { return bytes.NewReader([]byte("dump")), nil })
	return fleettest.Text("true"), err
}

func TestCoreDumpIsCollectedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newCrashBench(t)
		for range 30 { // heartbeats
			b.beat()
			time.Sleep(time.Minute)
		}
		if kept := b.stored(); b.uploads.Load() != 1 || len(kept) != 1 {
			t.Fatalf("%d uploads, %d core dumps", b.uploads.Load(), len(kept))
		}
		c := b.stored()[0]
		want := telemetry.CoreDump{ID: c.ID, Device: unit, Call: c.Call, Blob: c.Blob, Size: 4, Summary: "task main, pc 0x40",
			ELFSHA256: "9f2c", Version: "1.2.0",
			BuildFrom: telemetry.BuildFromDevice, ResetReason: "panic", Boots: 3, CreatedAt: c.CreatedAt}
		if c != want || c.Call == uuid.Nil {
			t.Errorf("%+v\nwant %+v", c, want)
		}
		for _, call := range b.store.All() {
			if call.Actor.Kind != fleet.KindSystem || call.State != fleet.CallSucceeded {
				t.Errorf("%s by %+v: %s", call.Tool, call.Actor, call.State)
			}
		}
		b.vitals.set(func(v *telemetry.Vitals) { v.Boots = 4 }) // the next crash
		b.beat()
		time.Sleep(time.Minute)
		if len(b.stored()) != 2 {
			t.Errorf("%d core dumps after the second crash", len(b.stored()))
		}
	})
}

func TestCollectingBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newCrashBench(t)
		b.broken.Store(1000)
		for range 24 * 60 {
			b.beat()
			time.Sleep(time.Minute)
		}
		if b.uploads.Load() != 8 {
			t.Errorf("%d tries in a day, want 8", b.uploads.Load())
		}
		b.vitals.set(func(v *telemetry.Vitals) { v.Boots = 4 })
		b.broken.Store(2)
		b.uploads.Store(0)
		for range 10 {
			b.beat()
			time.Sleep(time.Minute)
		}
		if b.uploads.Load() != 3 || len(b.stored()) != 1 {
			t.Errorf("%d tries and %d core dumps after a restart", b.uploads.Load(), len(b.stored()))
		}
	})
}

func TestWhatIsNotCollected(t *testing.T) {
	until := func(d time.Duration) *time.Time { return new(time.Now().Add(d)) }
	tests := []struct {
		name   string
		change func(b *crashBench)
		want   int64
	}{
		{"a crash", func(*crashBench) {}, 1},
		{"no core dump", func(b *crashBench) { b.vitals.set(func(v *telemetry.Vitals) { v.CoreDump = false }) }, 0},
		{"a hold", func(b *crashBench) {
			b.put(func(d *fleet.Device) { d.Hold = &fleet.Hold{By: bob, Reason: "bench"} })
		}, 0},
		{"a hold that ends", func(b *crashBench) {
			b.put(func(d *fleet.Device) { d.Hold = &fleet.Hold{By: bob, Reason: "bench", Until: until(3 * time.Minute)} })
		}, 1},
		{"a device that waits", func(b *crashBench) { b.put(func(d *fleet.Device) { d.Enrolment = fleet.EnrolmentWaiting }) },
			0},
		{"a retired device", func(b *crashBench) { b.put(func(d *fleet.Device) { d.RetiredAt = until(-time.Hour) }) }, 0},
		{"a device without the tool", func(b *crashBench) { b.put(func(d *fleet.Device) { d.InventoryID = "inv" }) }, 0},
		{"fetched before, in this start", func(b *crashBench) {
			b.kept.dumps = []telemetry.CoreDump{{Device: unit, Boots: 3}}
		}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newCrashBench(t)
				tt.change(b)
				b.beat()
				time.Sleep(10 * time.Minute)
				if b.uploads.Load() != tt.want {
					t.Errorf("%d uploads, want %d", b.uploads.Load(), tt.want)
				}
				if calls := b.store.All(); tt.want == 0 && len(calls) > 0 {
					t.Errorf("calls on record: %+v", calls)
				}
			})
		})
	}
}
