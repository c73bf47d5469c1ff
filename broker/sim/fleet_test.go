package sim

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"fleetd/fleet/fleettest"
)

func TestOptionsAreChecked(t *testing.T) {
	const url = "http://h/ota/"
	tests := []struct {
		name string
		o    Options
		want string
	}{
		{"no URL", Options{}, "want http://host/path"},
		{"query", Options{OTAURL: url + "?a=b"}, "without a query"},
		{"unknown board", Options{OTAURL: url, Boards: []string{"x"}}, "known are bread-compact-wifi"},
		{"bad MAC", Options{OTAURL: url, FirstMAC: "1:2"}, "six hex bytes"},
		{"bad address", Options{OTAURL: url, LocalAddrs: []string{"::1"}}, "IPv4"},
		{"fault twice", Options{OTAURL: url, Faults: []Fault{{Kind: FaultSilent}, {Kind: FaultSilent}}}, "stands twice"},
		{"negative", Options{OTAURL: url, Devices: -1}, "-1 devices"},
	}
	for _, tt := range tests {
		if _, err := New(tt.o); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error with %q", tt.name, err, tt.want)
		}
	}
}

func TestMACsCountUp(t *testing.T) {
	f, err := New(Options{OTAURL: "http://h/ota/", Devices: 3, FirstMAC: "A2:00:00:00:00:FF"})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"a2:00:00:00:00:ff", "a2:00:00:00:01:00", "a2:00:00:00:01:01"} {
		if got := f.Device(i).ID(); got != want {
			t.Errorf("device %d is %s, want %s", i, got, want)
		}
	}
}

// TestCommand runs the command line that cmd/fleetd offers, from the given source addresses.
func TestCommand(t *testing.T) {
	b := newBackend(t)
	var c Command
	parser, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	line := "--devices 4 --ota-url " + b.http.URL +
		"/ota/ --boards xmini-c3,esp-box-3 --faults slow=1s:5% --local-addrs 127.0.0.2,127.0.0.3 --progress 0s"
	if _, err := parser.Parse(strings.Fields(line)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	from := map[string]bool{}
	go func() {
		defer cancel()
		fleettest.Eventually(t, "4 polls", func() bool { _, n := b.lastPoll(); return n == 4 })
		fleettest.Eventually(t, "4 connections", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return len(b.clients) == 4
		})
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, cl := range b.clients {
			from[strings.Split(cl.Net.Remote, ":")[0]] = true
		}
	}()
	if err := c.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if !from["127.0.0.2"] || !from["127.0.0.3"] || len(from) != 2 {
		t.Errorf("connected from %v", from)
	}
}

func TestCommandRefusesFaults(t *testing.T) {
	if err := (&Command{Faults: "x"}).Run(t.Context()); err == nil {
		t.Error("an unknown fault was taken")
	}
}

// TestHelpNamesEverything compares the help text with the catalogues that it lists.
func TestHelpNamesEverything(t *testing.T) {
	help := ""
	for field := range reflect.TypeFor[Command]().Fields() {
		help += field.Tag.Get("help")
	}
	for _, name := range append(BoardNames(), FaultNames()...) {
		if !strings.Contains(help, name) {
			t.Errorf("the help does not name %s", name)
		}
	}
}
