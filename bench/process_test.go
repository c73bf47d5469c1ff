package main

import (
	"os"
	"testing"
	"time"
)

func TestProcessorTimes(t *testing.T) {
	tests := []struct {
		name, stat   string
		ended        bool
		user, system float64
	}{
		{"alone", "7 (fleetd) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 30 20 20 0 9", false, 1.5e6, 0.5e6},
		{"with children that ended", "7 (postgres) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 30 20 20 0 9", true, 1.8e6, 0.7e6},
		{"a name like a field", "7 (a) S (b) R 1 7 7 0 -1 4194560 1 2 3 4 150 50 30 20 20 0 9", false, 1.5e6, 0.5e6},
		{"ended", "", false, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if user, system := processorTimes(tt.stat, tt.ended); user != tt.user || system != tt.system {
				t.Errorf("processorTimes = %v, %v µs; want %v, %v", user, system, tt.user, tt.system)
			}
		})
	}
}

// The work of this process counts as its own, and not as that of others.
func TestMeasure(t *testing.T) {
	f, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 64<<10)
	v := variant{calls: 2, processes: []process{self(ofLoad)}, do: func(int) error { _, err := f.Read(buf); return err }}
	r := v.measure(1, 300*time.Millisecond)
	for n := 0; r.Each[ofLoad].cpu()*r.Calls < 10e3 && n < 100; n++ { // on a busy machine it may get less than a tick
		r = v.measure(1, 300*time.Millisecond)
	}
	u := r.Each[ofLoad]
	if busy := u.cpu() * r.Calls; busy < 10e3 || busy > 600e3 {
		t.Errorf("300 ms of reading took %.0f µs of processor in %.0f calls", busy, r.Calls)
	}
	if u.Reads < 0.5 || u.Reads > 0.6 {
		t.Errorf("%.2f reads per call, want one for two", u.Reads)
	}
	if r.Foreign < 0 || r.Foreign > 1 {
		t.Errorf("other work had %.2f of the machine", r.Foreign)
	}
}
