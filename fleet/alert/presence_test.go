package alert_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/alert"
)

// live is a world in which the test sets the broker's count and the loop checks conditions
// each second, like [alert.Service.Run].
type live struct {
	*world
	away   bool // the database is unavailable
	counts int  // how often the fleet was counted
	total  int
	last   time.Time // time of the latest one-minute sample
}

func newLive(t *testing.T, total, online int, change ...func(*alert.Options)) *live {
	l := &live{total: total}
	l.world = newWorld(t, append(change, func(o *alert.Options) {
		o.Every = 0
		o.Connected = func() (int, int) { return l.fleet.Online, l.fleet.Unresponsive }
		o.Presence = func(context.Context) (fleet.PresenceSample, error) {
			if l.counts++; l.away {
				return fleet.PresenceSample{}, errors.New("connection refused")
			}
			return l.fleet, nil
		}
	})...)
	l.online(online)
	return l
}

func (l *live) online(n int) { l.fleet.Online, l.fleet.Offline = n, l.total-n }

// run lets time pass; each is called before the check of every second.
func (l *live) run(d time.Duration, each func(second int)) {
	l.Helper()
	for i := range int(d / time.Second) {
		l.mu.Lock()
		l.now = l.now.Add(time.Second)
		l.mu.Unlock()
		if each != nil {
			each(i)
		}
		if l.now.Sub(l.last) >= time.Minute && !l.away {
			l.last = l.now
			l.samples(1, l.fleet.Online, l.fleet.Offline)
		}
		l.Look(l.Context())
	}
}

// settled runs until presence counts.
func (l *live) settled() *live {
	l.Helper()
	l.run(40*time.Second, nil)
	if l.Settling() {
		l.Fatal("presence does not count yet, though every device is back")
	}
	return l
}

func (l *live) params() string {
	l.Helper()
	p := l.Current(viewer)[0].Params
	return fmt.Sprint(p.Case(), " n=", p["n"], " silent=", p["silent"], " all=", p["all"], " now=", p["now"], " missing=", p["missing"],
		" back=", p["back"])
}

// The whole fleet disconnects within two seconds, reconnects in parts and is then complete
// again. The alert opens within 20 seconds, is listed first, is dated to the fall, and has
// the right parameters at each moment.
func TestTheFleetLeavesAndComesBack(t *testing.T) {
	disk := alert.Disk{Name: "./data", Free: 1, Total: 100}
	l := newLive(t, 5028, 5028, func(o *alert.Options) {
		o.Disks = func() []alert.Disk { return []alert.Disk{disk} }
	}).settled()
	l.run(3*time.Minute, nil)
	l.is("disk_low open bad 0")
	counts := l.counts
	l.run(5*time.Minute, nil)
	if n := l.counts - counts; n > 11 {
		t.Errorf("the fleet was counted %d times within 5 minutes in which nothing moved", n)
	}

	fell := l.now.Add(time.Second)
	opened := time.Duration(0)
	l.run(20*time.Second, func(i int) {
		l.online([]int{2500, 28}[min(i, 1)])
		if opened == 0 && len(l.Current(viewer)) == 2 {
			opened = l.now.Sub(fell)
		}
	})
	l.is("online_dropped open bad 5000", "disk_low open bad 0")
	if opened < 15*time.Second || opened > 20*time.Second {
		t.Errorf("opened %s after the fall", opened)
	}
	if a := l.Current(viewer)[0]; !a.Began.Equal(fell) {
		t.Errorf("dated %s, the fleet fell %s", a.Began, fell)
	}
	for _, step := range []struct {
		online int
		want   string
	}{
		{28, "now n=5000 silent=0 all=5028 now=1 missing=5000 back=<nil>"},
		{1500, "now n=3528 silent=0 all=5028 now=30 missing=3528 back=<nil>"},
		{4900, "part n=5000 silent=<nil> all=<nil> now=<nil> missing=128 back=4872"},
		{2000, "now n=3028 silent=0 all=5028 now=40 missing=3028 back=<nil>"}, // the fall is not over after all
		{5028, "over n=5000 silent=<nil> all=<nil> now=<nil> missing=0 back=5000"},
	} {
		l.online(step.online)
		l.run(2*time.Second, nil)
		if got := l.params(); got != step.want {
			t.Errorf("with %d online the alert says %q, want %q", step.online, got, step.want)
		}
	}
	back := l.now.Add(-time.Second)
	l.run(6*time.Minute, nil)
	l.is("disk_low open bad 0")
	page, err := l.List(t.Context(), viewer, alert.Filter{States: []alert.Status{alert.Ended}})
	if err != nil || len(page.Items) != 1 {
		t.Fatalf("ended: %+v, %v", page, err)
	}
	p := page.Items[0].Params
	if p.Case() != "over" || p["from_time"] != fell.Format(time.RFC3339) || p["to_time"] != back.Format(time.RFC3339) {
		t.Errorf("it ended with %v, want it to last from %s to %s", p, fell, back)
	}
}

// A fifth of the fleet must be away for a minute, half of it for 15 seconds. An unresponsive
// device counts as away.
func TestAFallHasToHold(t *testing.T) {
	tests := []struct {
		name       string
		left       int // devices
		silent     bool
		lasts      time.Duration
		want, says string
	}{
		{"half, too short", 60, false, 12 * time.Second, "", ""},
		{"half", 60, false, 18 * time.Second, "online_dropped open bad 60", "now"},
		{"a fifth, as long", 25, false, 18 * time.Second, "", ""},
		{"a fifth", 25, false, 63 * time.Second, "online_dropped open warning 25", "now"},
		{"too few", 15, false, 90 * time.Second, "", ""},
		{"half does not answer", 60, true, 18 * time.Second, "online_dropped open bad 60", "silent"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLive(t, 100, 100).settled()
			l.run(tt.lasts, func(int) {
				l.online(100 - tt.left)
				if tt.silent {
					l.fleet.Unresponsive, l.fleet.Offline = tt.left, 0
				}
			})
			if tt.want == "" {
				l.is()
				return
			}
			l.is(tt.want)
			if got := l.only().Params.Case(); got != tt.says {
				t.Errorf("it says %q, want %q", got, tt.says)
			}
		})
	}
}

// The broker dates the fall of the fleet even if the database was unavailable then.
func TestAFallIsDatedWithoutTheDatabase(t *testing.T) {
	l := newLive(t, 1000, 1000).settled()
	l.away = true
	fell := l.now.Add(11 * time.Second)
	l.run(15*time.Minute, func(i int) {
		if i >= 10 {
			l.online(0)
		}
	})
	l.is()
	l.away = false
	l.run(time.Second, nil)
	l.is("online_dropped open bad 1000")
	if a := l.only(); !a.Began.Equal(fell) {
		t.Errorf("dated %s, the fleet fell %s", a.Began, fell)
	}
}

// After a start, presence counts once most devices have reconnected, and at the latest when
// the settling time is over.
func TestPresenceSettlesWhenDevicesAreBack(t *testing.T) {
	tests := []struct {
		name    string
		back    func(second int) int // of 1,000
		percent int
		settles time.Duration
		want    string
	}{
		{"all, after 9 s", func(i int) int { return min(1000, 1000*i/9) }, 20, 30 * time.Second, ""},
		{"most, after 60 s", func(i int) int { return min(950, 15*i) }, 20, 61 * time.Second, ""},
		{"too few for so low a threshold", func(i int) int { return min(950, 15*i) }, 5, 5 * time.Minute,
			"online_dropped open warning 50"},
		{"half", func(i int) int { return min(500, 50*i) }, 20, 5 * time.Minute, "online_dropped open bad 500"},
		{"none", func(int) int { return 0 }, 20, 5 * time.Minute, "online_dropped open bad 1000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLive(t, 1000, 1000)
			l.samples(20, 1000, 0)
			l.set(alert.OnlineDropped, func(th *alert.Threshold) { th.Percent = tt.percent })
			l.now = l.now.Add(time.Minute) // fleetd was away
			l.Service = alert.New(l.o)
			var settled time.Duration
			started := l.now
			l.run(7*time.Minute, func(i int) {
				l.online(tt.back(i))
				if settled == 0 && !l.Settling() {
					settled = l.now.Sub(started)
				}
			})
			if settled < tt.settles || settled > tt.settles+6*time.Second {
				t.Errorf("presence counted after %s, want %s", settled, tt.settles)
			}
			if tt.want == "" {
				l.is()
			} else {
				l.is(tt.want)
			}
		})
	}
}

// A restart while the fleet is away neither ends the alert nor opens another, and a restart
// after it does not lengthen it.
func TestAlertOutlivesARestart(t *testing.T) {
	l := newLive(t, 1000, 1000).settled()
	l.run(30*time.Second, func(int) { l.online(10) })
	l.is("online_dropped open bad 990")
	began := l.only().Began
	l.Service = alert.New(l.o)
	l.run(10*time.Second, func(int) { l.online(0) })
	l.is("online_dropped open bad 1000") // as the tiles show it
	l.run(10*time.Second, func(int) { l.online(1000) })
	if a := l.only(); a.Params.Case() != "over" || !a.Began.Equal(began) || a.Params["n"] != int64(990) {
		t.Errorf("the fleet is back, and the alert says %v", a.Params)
	}
	l.Service = alert.New(l.o)
	l.run(10*time.Second, func(int) { l.online(0) })
	if a := l.only(); a.Params.Case() != "over" {
		t.Errorf("devices have time to reconnect, and the alert says %v", a.Params)
	}
	l.run(330*time.Second, func(int) { l.online(1000) })
	l.is()
}

// Devices that keep reconnecting are found, one device as well as the whole fleet.
func TestFlapping(t *testing.T) {
	tests := []struct {
		name    string
		devices int
		every   int // seconds between connections
		within  time.Duration
		want    string
	}{
		{"650 every 13 s", 650, 13, 62 * time.Second, "flapping open bad 650"},
		{"one every 30 s", 1, 30, 130 * time.Second, "flapping open warning 1"},
		{"one every 90 s", 1, 90, 10 * time.Minute, ""},
		{"each once, as after a restart", 5328, 100_000, 10 * time.Minute, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var seen alert.Reconnects
			l := newLive(t, 5328, 5328, func(o *alert.Options) { o.Reconnects = &seen }).settled()
			from := l.now.Add(time.Second)
			connect := func(i int) {
				if i%tt.every == 0 {
					for d := range tt.devices {
						seen.Connected(fleet.DeviceID(fmt.Sprintf("%012x", d)), l.now)
					}
				}
			}
			l.run(tt.within, connect)
			if tt.want == "" {
				l.is()
				return
			}
			l.is(tt.want)
			if q := l.only().Query; len(q) > 1000 || q[:15] != "id:000000000000" {
				t.Errorf("its link finds %q", q)
			}
			l.run(6*time.Minute, nil) // no more reconnects
			if p := l.only().Params; p.Case() != "over" || p["n"] != int64(tt.devices) {
				t.Errorf("it is over, and the alert says %v; it began %s", p, from)
			}
			l.run(6*time.Minute, nil)
			l.is()
		})
	}
}
