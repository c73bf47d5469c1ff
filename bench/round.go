package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// A round is one pass over everything, in the same minute, so that its ratios
// compare like with like on a noisy machine.
type round struct {
	Mosquitto, InProcess, REST map[int]reading // by calls in flight
	Commits                    reading
	Polls                      reading
	MosquittoFanOut, FanOut    float64 // seconds
	MochiStorm, Storm          deviceReport
	IdleKiB, AfterStormsKiB    float64 // per device
}

var inFlight = []int{1, 64, 512}

type suite struct {
	duration time.Duration
	devices  int // of fan-outs and storms
	dir      string
	child    *deviceProcess
}

func (s *suite) round(ctx context.Context) (round, error) {
	r := round{Mosquitto: map[int]reading{}, InProcess: map[int]reading{}, REST: map[int]reading{}}
	dir, err := os.MkdirTemp(s.dir, "round")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	steps := []func(context.Context, string, *round) error{s.mosquitto, s.fleetd, s.mochi}
	for _, step := range steps {
		if err := step(ctx, dir, &r); err != nil {
			return r, err
		}
		if err := s.child.drop(); err != nil {
			return r, err
		}
		debug.FreeOSMemory()
	}
	return r, nil
}

func (s *suite) mosquitto(_ context.Context, dir string, r *round) error {
	m, err := startMosquitto(dir)
	if err != nil {
		return err
	}
	defer m.stop()
	if _, err := s.child.connect(m.addr, 64, mosquittoDevices(s.devices)); err != nil {
		return err
	}
	c, err := newController(m.addr, 512)
	if err != nil {
		return err
	}
	defer c.close()
	for _, n := range inFlight {
		r.Mosquitto[n] = closedLoop(n, s.duration, c.call)
	}
	r.MosquittoFanOut, err = thrice(func() (time.Duration, error) { return c.fanOut(s.devices, 512) })
	return err
}

func (s *suite) fleetd(ctx context.Context, dir string, r *round) error {
	rig, err := newRig(ctx, dir)
	if err != nil {
		return err
	}
	defer rig.stop()
	devices, err := rig.enrol(s.devices)
	if err != nil {
		return err
	}
	before := rss()
	addr := rig.MQTTAddr().String()
	if _, err := s.child.connect(addr, 64, devices); err != nil {
		return err
	}
	if err := rig.listed(ctx, len(devices)); err != nil {
		return err
	}
	r.IdleKiB = (settledRSS() - before) / float64(s.devices)
	if r.Commits, err = singleRowCommits(ctx, rig.postgres.URL(), s.duration/2); err != nil {
		return err
	}
	s.calls(rig, r)
	if r.FanOut, err = thrice(func() (time.Duration, error) { return rig.fanOut(ctx, s.devices, 512) }); err != nil {
		return err
	}
	r.Polls = bootPolls(rig, 64, s.duration)
	for range 3 {
		if err := s.child.drop(); err != nil {
			return err
		}
		time.Sleep(time.Second)
		if r.Storm, err = s.child.connect(addr, 256, devices); err != nil {
			return err
		}
	}
	r.AfterStormsKiB = (settledRSS() - before) / float64(s.devices)
	return nil
}

// thrice returns the median of three runs, in seconds.
func thrice(run func() (time.Duration, error)) (float64, error) {
	var seconds []float64
	for range 3 {
		took, err := run()
		if err != nil {
			return 0, err
		}
		seconds = append(seconds, took.Seconds())
	}
	return median(seconds), nil
}

func (s *suite) calls(rig *rig, r *round) {
	transport := &http.Transport{MaxIdleConnsPerHost: 600, MaxIdleConns: 600}
	client := &http.Client{Transport: transport}
	defer transport.CloseIdleConnections()
	for _, n := range inFlight {
		r.InProcess[n] = closedLoop(n, s.duration, rig.call)
		r.REST[n] = closedLoop(n, s.duration, func(worker int) error { return rig.restCall(client, worker) })
	}
}

func (s *suite) mochi(ctx context.Context, _ string, r *round) error {
	addr, stop, err := startMochi(ctx)
	if err != nil {
		return err
	}
	defer stop()
	devices := mosquittoDevices(s.devices)
	for i := range devices {
		devices[i].Subscribe = false
	}
	for range 3 {
		if err := s.child.drop(); err != nil {
			return err
		}
		time.Sleep(time.Second)
		if r.MochiStorm, err = s.child.connect(addr, 256, devices); err != nil {
			return err
		}
	}
	return nil
}

// settledRSS is the resident memory once fleetd has settled, unaided, after a
// storm. Nothing is done to help it.
func settledRSS() float64 {
	time.Sleep(12 * time.Second)
	return rss()
}

// rss is the resident memory of this process in KiB.
func rss() float64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return n
		}
	}
	return 0
}

func (r round) String() string {
	for n, reading := range r.REST {
		if reading.Error != nil {
			return fmt.Sprintf("REST at %d: %v", n, reading.Error)
		}
	}
	return fmt.Sprintf("mosquitto %.0f/s, commits %.0f/s, in process %.0f/s, REST %.0f/s at 64; polls %.0f/s",
		r.Mosquitto[64].PerSecond, r.Commits.PerSecond, r.InProcess[64].PerSecond, r.REST[64].PerSecond, r.Polls.PerSecond)
}
