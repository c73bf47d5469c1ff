package sim

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet/fleettest"
)

func TestParseFaults(t *testing.T) {
	tests := []struct {
		in   string
		want []Fault
		err  string
	}{
		{"", nil, ""},
		{"silent:2%, drop:0.01", []Fault{{Kind: FaultSilent, Rate: 0.02}, {Kind: FaultDrop, Rate: 0.01}}, ""},
		{"slow=500ms:5%,flap", []Fault{{Kind: FaultSlow, Rate: 0.05, Delay: 500 * time.Millisecond},
			{Kind: FaultFlap, Rate: 1, Delay: 30 * time.Second}}, ""},
		{"cut=30%:1%", []Fault{{Kind: FaultCut, Rate: 0.01, Percent: 30}}, ""},
		{"quiet", nil, "unknown name; known are silent"},
		{"silent=1", nil, "takes no value"},
		{"slow=fast", nil, "want a time"},
		{"cut=100", nil, "below 100"},
		{"silent:200%", nil, "want 0% to 100%"},
		{"silent:NaN", nil, "want 0% to 100%"},
		{"silent,silent:1%", nil, "stands twice"},
	}
	for _, tt := range tests {
		got, err := ParseFaults(tt.in)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("ParseFaults(%q): %v, want an error with %q", tt.in, err, tt.err)
			}
			continue
		}
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("ParseFaults(%q): %v\n%s", tt.in, err, diff)
		}
	}
}

func TestFaultRate(t *testing.T) {
	faults, _ := ParseFaults("silent:10%,drop:50%")
	f, err := New(Options{OTAURL: "http://h/ota/", Devices: 5000, Seed: 3, Faults: faults})
	if err != nil {
		t.Fatal(err)
	}
	count := map[FaultKind]float64{}
	for i := range f.Len() {
		for _, kind := range []FaultKind{FaultSilent, FaultDrop} {
			if f.Device(i).faults.has(kind) {
				count[kind]++
			}
		}
	}
	if math.Abs(count[FaultSilent]/5000-0.1) > 0.02 || math.Abs(count[FaultDrop]/5000-0.5) > 0.03 {
		t.Errorf("of 5000 devices: %v", count)
	}
}

// faulty returns a device of the vectors with one fault.
func faulty(t *testing.T, list string) *Device {
	t.Helper()
	faults, err := ParseFaults(list)
	if err != nil {
		t.Fatal(err)
	}
	return oneDevice(t, Options{Boards: []string{"esp-box-3"}, Faults: faults, RecordCalls: 5})
}

func TestFaultsOfCalls(t *testing.T) {
	call := toolCall(4, "self.audio_speaker.set_volume", `{"volume":5}`)
	tests := []struct {
		fault     string
		after     time.Duration
		reply     string
		executed  int
		connected bool
	}{
		{"", 0, "true", 1, true},
		{"silent", time.Minute, "", 1, true},
		{"slow=2s", time.Second, "", 0, true},
		{"slow=2s", 2 * time.Second, "true", 1, true},
		{"error", 0, "error: Simulated failure of self.audio_speaker.set_volume", 0, true},
		{"drop", 0, "", 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.fault, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := faulty(t, tt.fault)
				s := attach(t, d)
				s.send(call)
				time.Sleep(tt.after)
				reply := s.reply()
				if reply != "" {
					reply = text0(reply)
				}
				_, err := s.d.conn.(*mqttConn).Write([]byte{pktPingreq << 4, 0})
				if reply != tt.reply || len(d.Calls()) != tt.executed || (err == nil) != tt.connected {
					t.Errorf("reply %q, %d executed, connection: %v", reply, len(d.Calls()), err)
				}
			})
		})
	}
}

func TestFaultsOfTheNetwork(t *testing.T) {
	if d := faulty(t, "badjson"); json.Valid([]byte(d.systemInfo())) {
		t.Error("badjson: the boot poll is valid JSON")
	} else if !json.Valid([]byte(d.statusJSON())) {
		t.Error("badjson: the status, which cJSON prints, is not valid JSON")
	}
	b := newBackend(t)
	faults, _ := ParseFaults("flap=5s")
	f := b.start(Options{Faults: faults, TimeScale: 0.01})
	fleettest.Eventually(t, "flapping", func() bool { return f.Stats().Connects >= 3 })

	faults, _ = ParseFaults("noconnect")
	f = b.start(Options{Faults: faults, TimeScale: 0.01, Seed: 1})
	fleettest.Eventually(t, "a boot", func() bool { return f.Stats().Booted == 1 })
	time.Sleep(50 * time.Millisecond)
	if s := f.Stats(); s.Connects+s.ConnectFailures != 0 {
		t.Errorf("noconnect: %+v", s)
	}
}
