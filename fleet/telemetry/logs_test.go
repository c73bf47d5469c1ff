package telemetry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/telemetry"
)

var logTools = []fleet.Tool{
	{Name: fleet.ToolLogsTail, Audience: fleet.AudienceUser, InputSchema: json.RawMessage(
		`{"type":"object","properties":{"from":{"type":"integer"},"lines":{"type":"integer"}}}`)},
	{Name: fleet.ToolLogsStream, Audience: fleet.AudienceUser, InputSchema: json.RawMessage(
		`{"type":"object","properties":{"seconds":{"type":"integer"},"level":{"type":"string"}}}`)},
}

// logBench is a device whose log is followed.
type logBench struct {
	*bench
	logs  *telemetry.Logs
	fails bool

	mu    sync.Mutex
	asked []string // seconds of each requested stream
}

func newLogBench(t *testing.T) *logBench {
	b := &logBench{bench: newBench(t)}
	b.devices.PutInventory(fleet.Inventory{ID: "logs", Tools: logTools})
	b.put(func(d *fleet.Device) { d.InventoryID = "logs" })
	b.link.Connect(unit, func(_ context.Context, tool string, arguments json.RawMessage) (fleet.Answer, error) {
		var args struct{ Seconds int }
		if err := json.Unmarshal(arguments, &args); err != nil {
			return fleet.Answer{}, err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.asked = append(b.asked, fmt.Sprint(args.Seconds))
		return fleettest.Text(fmt.Sprint(!b.fails)), nil
	})
	b.logs = telemetry.NewLogs(telemetry.LogsOptions{Calls: b.Service})
	return b
}

// run runs the service until the test's bubble ends.
func (b *logBench) run(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = b.logs.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
}

func (b *logBench) says(n int) {
	b.logs.OnLog(unit, json.RawMessage(
		fmt.Sprintf(`{"lines":[{"n":%d,"t":1,"level":"info","tag":"t","text":"x"}],"next":%d,"dropped":0}`, n, n+1)))
}

func (b *logBench) lines() int { return len(b.logs.View(unit, 0).Lines) }

func TestFollowingIsRenewedWhileWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLogBench(t)
		b.run(t)
		ctx, leave := context.WithCancel(t.Context())
		b.logs.Watch(ctx, unit)
		if c, err := b.logs.Follow(t.Context(), ann, unit, "info"); err != nil || c.State != fleet.CallSucceeded {
			t.Fatal(c.State, err)
		}
		began := time.Now()
		for n := 0; b.logs.View(unit, 0).Following.Active(time.Now()); n++ {
			b.says(n)
			if n < 50 && b.lines() != n+1 {
				t.Fatalf("%d lines after %v, want %d", b.lines(), time.Since(began), n+1)
			}
			time.Sleep(time.Second)
		}
		if took := time.Since(began).Round(10 * time.Second); took != telemetry.FollowLimit {
			t.Errorf("it was followed for %v, want %v", took, telemetry.FollowLimit)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if n := len(b.asked); n < 10 || n > 14 {
			t.Errorf("the device was asked %d times: %v", n, b.asked)
		}
		for _, c := range b.store.All() {
			if !c.Actor.Same(ann) || c.Tool != fleet.ToolLogsStream {
				t.Errorf("a call of %s by %s", c.Tool, c.Actor.Name)
			}
		}
		leave()
	})
}

func TestFollowingEndsWithoutWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLogBench(t)
		b.run(t)
		ctx, leave := context.WithCancel(t.Context())
		b.logs.Watch(ctx, unit)
		if _, err := b.logs.Follow(t.Context(), ann, unit, "info"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		leave()
		time.Sleep(2 * time.Minute)
		before := b.lines()
		b.says(1000)
		if v := b.logs.View(unit, 0); v.Following.Active(time.Now()) || len(v.Lines) != before {
			t.Errorf("two minutes after the page closed: %+v, %d lines", v.Following, len(v.Lines))
		}
	})
}

func TestFollowingEndsWithADeviceThatRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLogBench(t)
		b.fails = true
		c, err := b.logs.Follow(t.Context(), ann, unit, "info")
		if err != nil || c.State != fleet.CallToolError || b.logs.View(unit, 0).Following.Active(time.Now()) {
			t.Errorf("%s, %v: %+v", c.State, err, b.logs.View(unit, 0).Following)
		}
		b.says(1)
		if b.lines() != 0 {
			t.Error("lines were taken that nobody asked for")
		}
	})
}

// Memory is bounded. Of the devices that are not followed, the one not looked at for the
// longest time is discarded; if all are followed, no further one can be.
func TestLogsOfManyDevices(t *testing.T) {
	b := newLogBench(t)
	id := func(n int) fleet.DeviceID { return fleet.DeviceID(fmt.Sprintf("d%03d", n)) }
	for n := range 64 {
		b.devices.Put(fleet.Device{ID: id(n), Enrolment: fleet.EnrolmentEnrolled, InventoryID: "logs"})
		b.link.Connect(id(n), answer("true"))
		if _, err := b.logs.Follow(t.Context(), ann, id(n), "info"); err != nil {
			t.Fatal(err)
		}
	}
	_, err := b.logs.Follow(t.Context(), ann, unit, "info")
	var no *fleet.Error
	if !errors.As(err, &no) || no.Code != "too_many_logs" || !errors.Is(err, fleet.ErrTooMany) {
		t.Errorf("the 65th: %v", err)
	}
	if _, err := b.logs.Stop(t.Context(), ann, id(3)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.logs.Follow(t.Context(), ann, unit, "info"); err != nil {
		t.Errorf("after one was stopped: %v", err)
	}
}

func TestFetchGoesOnWhereAnAnswerEnds(t *testing.T) {
	b := newLogBench(t)
	var asked []int
	b.link.Connect(unit, func(_ context.Context, _ string, arguments json.RawMessage) (fleet.Answer, error) {
		var args struct{ From, Lines int }
		if err := json.Unmarshal(arguments, &args); err != nil {
			return fleet.Answer{}, err
		}
		asked = append(asked, args.From)
		from := max(args.From, 200) // the lines that the device still has
		var lines []map[string]any
		for n := from; n < min(from+30, 275); n++ { // 30 lines fit an answer
			lines = append(lines, map[string]any{"n": n, "t": n, "level": "info", "tag": "t", "text": "x"})
		}
		text, err := json.Marshal(map[string]any{"first": 200, "lines": lines, "next": from + len(lines)})
		return fleettest.Text(string(text)), err
	})
	c, err := b.logs.Fetch(t.Context(), ann, unit)
	if err != nil || c.State != fleet.CallSucceeded || b.lines() != 75 || len(asked) != 4 {
		t.Errorf("%d lines, asked from %v: %s %v", b.lines(), asked, c.State, err)
	}
	b.link.Connect(unit, answer(`{"lines":"none"}`))
	if c, err := b.logs.Fetch(t.Context(), ann, unit); err != nil || c.State != fleet.CallSucceeded || b.lines() != 75 {
		t.Errorf("an answer that is none: %d lines, %s %v", b.lines(), c.State, err)
	}
}
