package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"
)

// A round is one pass over everything, in the same minute, so that its ratios
// compare like with like on a noisy machine.
type round struct {
	Echo, HTTP, InProcess   map[int]reading // by calls in flight
	Serve, ServeFew         map[int]reading // through REST
	Commits                 map[int]reading
	Polls                   reading
	EchoFanOut, FanOut      float64 // seconds
	MochiStorm, Storm       deviceReport
	IdleKiB, AfterStormsKiB float64 // per device
}

var inFlight = []int{1, 64, 512}

// fewDevices are connected where a large fleet is not to be measured.
const fewDevices = 64

type suite struct {
	rig      rigOptions
	duration time.Duration
	devices  int // of fan-outs and storms
	dir      string
	child    *deviceProcess
}

func (s *suite) round(ctx context.Context) (r round, err error) {
	dir, err := os.MkdirTemp(s.dir, "round")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	steps := []func(context.Context, string, *round) error{s.echo, s.bare, s.serve, s.serveFew, s.inProcess, s.mochi}
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

// flights measures a variant at each number of calls in flight.
func (s *suite) flights(processes []process, do func(worker int) error) map[int]reading {
	all := make(map[int]reading)
	for _, n := range inFlight {
		all[n] = variant{do: do, calls: 1, processes: processes}.measure(n, s.duration)
	}
	return all
}

func (s *suite) echo(_ context.Context, dir string, r *round) error {
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
	r.Echo = s.flights(m.processes(s.child), c.call)
	r.EchoFanOut, err = thrice(func() (time.Duration, error) { return c.fanOut(s.devices, 512) })
	return err
}

func (s *suite) bare(_ context.Context, _ string, r *round) error {
	v, err := startBare(512)
	if err != nil {
		return err
	}
	defer v.stop()
	r.HTTP = s.flights(v.processes, v.do)
	return nil
}

// serve measures fleetd serve with the whole fleet.
func (s *suite) serve(ctx context.Context, dir string, r *round) error {
	rig, err := serve(ctx, filepath.Join(dir, "serve"), s.rig)
	if err != nil {
		return err
	}
	defer rig.stop()
	before := rss(rig.fleetd.pid)
	devices, err := rig.populate(ctx, s.devices, s.child)
	if err != nil {
		return err
	}
	r.IdleKiB = (rss(rig.fleetd.pid) - before) / float64(s.devices)
	if r.Commits, err = singleRowCommits(ctx, rig.db.Config().ConnString(), s.duration/2); err != nil {
		return err
	}
	load := rig.rest(512)
	r.Serve = s.flights(rig.processes(s.child), load.do)
	load.close()
	if r.FanOut, err = thrice(func() (time.Duration, error) { return rig.fanOut(512) }); err != nil {
		return err
	}
	r.Polls = rig.bootPolls(64, s.duration)
	for range 3 {
		if err := s.child.drop(); err != nil {
			return err
		}
		time.Sleep(time.Second)
		if r.Storm, err = s.child.connect(rig.mqtt, 256, devices); err != nil {
			return err
		}
	}
	settle(s.devices)
	r.AfterStormsKiB = (rss(rig.fleetd.pid) - before) / float64(s.devices)
	return nil
}

// serveFew measures fleetd serve with a few devices.
func (s *suite) serveFew(ctx context.Context, dir string, r *round) error {
	rig, err := serve(ctx, filepath.Join(dir, "few"), s.rig)
	if err != nil {
		return err
	}
	defer rig.stop()
	if _, err := rig.populate(ctx, fewDevices, s.child); err != nil {
		return err
	}
	load := rig.rest(512)
	defer load.close()
	r.ServeFew = s.flights(rig.processes(s.child), load.do)
	return nil
}

func (s *suite) inProcess(ctx context.Context, dir string, r *round) error {
	rig, err := inProcess(ctx, filepath.Join(dir, "process"))
	if err != nil {
		return err
	}
	defer rig.stop()
	if _, err := rig.populate(ctx, s.devices, s.child); err != nil {
		return err
	}
	r.InProcess = s.flights(rig.processes(s.child), rig.call)
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

func (r round) String() string {
	for _, variant := range []map[int]reading{r.Serve, r.ServeFew, r.InProcess} {
		for n, reading := range variant {
			if reading.Error != nil {
				return fmt.Sprintf("at %d in flight: %v", n, reading.Error)
			}
		}
	}
	return fmt.Sprintf("at 64 in flight: Mosquitto %.0f/s, commits %.0f/s, in process %.0f/s, fleetd serve %.0f/s; polls %.0f/s",
		r.Echo[64].PerSecond, r.Commits[64].PerSecond, r.InProcess[64].PerSecond, r.Serve[64].PerSecond, r.Polls.PerSecond)
}
