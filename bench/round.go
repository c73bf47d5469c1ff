package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"
)

// A round is one measurement of everything within the same minute, so its
// ratios compare like with like on a noisy machine.
type round struct {
	Flights                 map[string]map[int]reading // by variant, and calls in flight
	Polls                   reading
	EchoFanOut, FanOut      float64 // seconds
	MochiStorm, Storm       deviceReport
	IdleKiB, AfterStormsKiB float64 // per device
	Voice                   voiceReading
}

// Names of the variants. If a name has no number, the whole fleet is connected.
const (
	echo        = "Mosquitto echo"
	bare        = "bare net/http"
	commits     = "single-row commit"
	processed   = "in process"
	served      = "fleetd serve"
	servedFew   = "fleetd serve, 64 devices"
	servedMCP   = "fleetd serve, 64 devices, through MCP"
	servedSDK   = "fleetd serve, 64 devices, through MCP with a session"
	servedSmall = "fleetd serve, 64 devices, GOMAXPROCS=1"
	servedTCP   = "fleetd serve, 64 devices, PostgreSQL over TCP"
)

// flightNames are in the order of the tables.
var flightNames = []string{echo, bare, commits, processed, served, servedFew, servedMCP, servedSDK,
	servedSmall, servedTCP}

var inFlight = []int{1, 64, 512}

// fewDevices is the number of connected devices if a large fleet is not
// measured.
const fewDevices = 64

type suite struct {
	serving  serveOptions
	duration time.Duration
	devices  int // of fan-outs and storms
	dir      string
	child    *deviceProcess
}

func (s *suite) round(ctx context.Context) (r round, err error) {
	r.Flights = make(map[string]map[int]reading)
	dir, err := os.MkdirTemp(s.dir, "round")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	steps := []func(context.Context, string, *round) error{s.echo, s.bare, s.serve, s.serveFew, s.inProcess, s.mochi,
		s.voice}
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
func (s *suite) flights(v variant) map[int]reading {
	all := make(map[int]reading)
	for _, n := range inFlight {
		all[n] = v.measure(n, s.duration)
	}
	return all
}

func (s *suite) echo(_ context.Context, dir string, r *round) error {
	v, c, err := startEcho(dir, s.devices, 512, s.child)
	if err != nil {
		return err
	}
	defer v.stop()
	r.Flights[echo] = s.flights(v)
	r.EchoFanOut, err = thrice(func() (time.Duration, error) { return c.fanOut(s.devices, 512) })
	return err
}

func (s *suite) bare(_ context.Context, _ string, r *round) error {
	v, err := startBare(512)
	if err != nil {
		return err
	}
	defer v.stop()
	r.Flights[bare] = s.flights(v)
	return nil
}

// serve measures fleetd serve with the whole fleet.
func (s *suite) serve(ctx context.Context, dir string, r *round) error {
	rig, err := startServe(ctx, filepath.Join(dir, "serve"), s.serving)
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
	if r.Flights[commits], err = singleRowCommits(ctx, rig, s.duration/2); err != nil {
		return err
	}
	load := rig.rest(512)
	r.Flights[served] = s.flights(rig.variant(load.do, s.child))
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

// serveFew measures fleetd serve with a few devices, on this machine and
// limited as on a small one.
func (s *suite) serveFew(ctx context.Context, dir string, r *round) error {
	small, tcp := s.serving, s.serving
	small.Procs, tcp.TCP = 1, true
	for i, o := range []serveOptions{s.serving, small, tcp} {
		name := []string{servedFew, servedSmall, servedTCP}[i]
		rig, err := startServe(ctx, filepath.Join(dir, fmt.Sprint("few", i)), o)
		if err != nil {
			return err
		}
		if _, err = rig.populate(ctx, fewDevices, s.child); err == nil {
			load := rig.rest(512)
			r.Flights[name] = s.flights(rig.variant(load.do, s.child))
			load.close()
			if i == 0 {
				load = rig.mcp(512)
				r.Flights[servedMCP] = s.flights(rig.variant(load.do, s.child))
				load.close()
				if load, err = rig.mcpSession(512); err == nil {
					r.Flights[servedSDK] = s.flights(rig.variant(load.do, s.child))
					load.close()
				}
			}
		}
		rig.stop()
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *suite) inProcess(ctx context.Context, dir string, r *round) error {
	rig, err := startServer(ctx, filepath.Join(dir, "process"))
	if err != nil {
		return err
	}
	defer rig.stop()
	if _, err := rig.populate(ctx, s.devices, s.child); err != nil {
		return err
	}
	r.Flights[processed] = s.flights(rig.variant(rig.call, s.child))
	return nil
}

// voice measures conversations.
func (s *suite) voice(ctx context.Context, dir string, r *round) (err error) {
	r.Voice, _, err = measureVoice(ctx, dir, s.serving, voiceLoad{500, 2000, s.duration}, "")
	return err
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

func (r round) at(name string, n int) reading { return r.Flights[name][n] }

// bestCommits is the best rate of single-row commits.
func (r round) bestCommits() (best float64) {
	for _, c := range r.Flights[commits] {
		best = max(best, c.PerSecond)
	}
	return best
}

func (r round) String() string {
	for name, flights := range r.Flights {
		for n, reading := range flights {
			if reading.Error != nil {
				return fmt.Sprintf("%s, %d in flight: %v", name, n, reading.Error)
			}
		}
	}
	rate := func(name string) float64 { return r.at(name, 64).PerSecond }
	return fmt.Sprintf("at 64 in flight: Mosquitto %.0f/s, commits %.0f/s, in process %.0f/s, fleetd serve %.0f/s; polls %.0f/s",
		rate(echo), rate(commits), rate(processed), rate(served), r.Polls.PerSecond)
}
