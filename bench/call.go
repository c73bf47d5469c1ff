package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// callCommand measures one way to make calls for a few seconds, for use while
// tuning.
type callCommand struct {
	serveOptions
	Variant  string  `help:"What to measure: rest (fleetd serve), mcp (the same through its MCP server), mcp-session (through it as clients with an SDK do), in-process, fan-out, echo (Mosquitto), http (a bare net/http) or commit." enum:"rest,mcp,mcp-session,in-process,fan-out,echo,http,commit" default:"rest"`
	InFlight int     `help:"Calls in flight." default:"64"`
	Devices  int     `help:"Devices connected; 0 is 64, and 10,000 for fan-out."`
	Seconds  float64 `help:"Length of one measurement." default:"5"`
	Repeat   int     `help:"Measurements, one after the other with the same fleetd." default:"1"`
	Against  string  `help:"Another build of fleetd, measured in turns; prints what --fleetd changes." placeholder:"FLEETD"`
	Pairs    int     `help:"With --against: how often both are started anew, in alternating order. A pair of processes differs by up to 8 % for as long as it runs." default:"1"`

	Detail     bool   `help:"Also count allocations, context switches, system calls, WAL and index entries; takes half a minute more."`
	CPUProfile string `name:"cpu-profile" help:"Also write fleetd's CPU profile for go tool pprof, and print the functions that use most." placeholder:"FILE"`
}

// Run measures one build, or two in turns, and prints the result.
func (c *callCommand) Run(ctx context.Context) error {
	if c.Devices == 0 {
		c.Devices = 64
		if c.Variant == "fan-out" {
			c.Devices = 10_000
		}
	}
	if c.Against == "" {
		_, err := c.measure(ctx, []string{c.Fleetd})
		return err
	}
	if c.Variant != "rest" && c.Variant != "mcp" && c.Variant != "mcp-session" && c.Variant != "fan-out" {
		return fmt.Errorf("--against compares builds of fleetd serve, which has no part in %s", c.Variant)
	}
	changes := make([][]float64, len(flightColumns))
	for pair := range c.Pairs {
		builds := []string{c.Fleetd, c.Against}
		if pair%2 == 1 {
			slices.Reverse(builds)
		}
		rounds, err := c.measure(ctx, builds)
		if err != nil {
			return err
		}
		for _, round := range rounds {
			if pair%2 == 1 {
				slices.Reverse(round)
			}
			for i, column := range flightColumns {
				ours, other := column.value(round[0]), column.value(round[1])
				changes[i] = append(changes[i], 100*(ours-other)/other)
			}
		}
	}
	fmt.Printf("%s against %s, median of %d:", c.Fleetd, c.Against, len(changes[0]))
	for i, column := range flightColumns[:5] {
		fmt.Printf("  %s %+.1f %%", column.name, median(changes[i]))
	}
	fmt.Println()
	return nil
}

// measure starts the variant with each build, lets them warm up for a second, and measures
// them. The builds take turns, so other work on the machine affects both. Each round has a
// reading per build.
func (c *callCommand) measure(ctx context.Context, builds []string) (rounds [][]reading, err error) {
	var variants []variant
	for _, build := range builds {
		dir, err := os.MkdirTemp("", "fleetd-bench")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		devices, err := startDevices()
		if err != nil {
			return nil, err
		}
		defer devices.stop()
		one := *c
		one.Fleetd = build
		v, err := one.start(ctx, dir, devices)
		if err != nil {
			return nil, err
		}
		defer v.stop()
		variants = append(variants, v)
	}
	v := variants[0]
	if v.rig == nil && (c.Detail || c.CPUProfile != "") {
		return nil, fmt.Errorf("--detail and --cpu-profile are about fleetd, which has no part in %s", c.Variant)
	}
	workers, d := c.InFlight, time.Duration(c.Seconds*float64(time.Second))
	if c.Variant == "fan-out" {
		workers = 1
	}
	for _, v := range variants {
		closedLoop(workers, time.Second, v.do)
	}
	fmt.Printf("%s: %d in flight, %d devices, %v; processor: µs a call (user + system)\n", c.Variant, c.InFlight,
		c.Devices, d)
	for range c.Repeat {
		round := make([]reading, len(variants))
		for i, v := range variants {
			r := v.measure(workers, d)
			if len(variants) > 1 {
				fmt.Print(builds[i] + ": ")
			}
			fmt.Printf("%.0f/s  p50 %.2f ms  p99 %.2f ms ", r.PerSecond, r.P50, r.P99)
			for _, p := range v.processes {
				u := r.Each[p.name]
				fmt.Printf("  %s %.0f (%.0f + %.0f)", p.name, u.cpu(), u.User, u.System)
			}
			fmt.Printf("  others %.0f %% of the machine\n", 100*r.Foreign)
			if r.Error != nil {
				return nil, fmt.Errorf("%d calls failed, one with %w", r.Failed, r.Error)
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			round[i] = r
		}
		rounds = append(rounds, round)
	}
	if c.Detail {
		cost, err := v.rig.cost(ctx, v, workers, d)
		if err != nil {
			return nil, err
		}
		writeCosts(os.Stdout, []namedCost{{fmt.Sprintf("%s, %d in flight", c.Variant, c.InFlight), cost}})
	}
	if c.CPUProfile != "" {
		top, err := v.rig.cpuProfile(v, workers, d, c.CPUProfile)
		if err != nil {
			return nil, err
		}
		fmt.Print(top)
	}
	return rounds, nil
}

// start starts a variant.
func (c *callCommand) start(ctx context.Context, dir string, devices *deviceProcess) (v variant, err error) {
	switch c.Variant {
	case "echo":
		v, _, err = startEcho(dir, c.Devices, c.InFlight, devices)
		return v, err
	case "http":
		return startBare(c.InFlight)
	case "commit":
		return startCommits(ctx, dir, c.InFlight)
	}
	dir = filepath.Join(dir, "fleetd")
	var r *rig
	if c.Variant == "in-process" {
		r, err = startServer(ctx, dir)
	} else {
		r, err = startServe(ctx, dir, c.serveOptions)
	}
	if err != nil {
		return v, err
	}
	if _, err := r.populate(ctx, c.Devices, devices); err != nil {
		r.stop()
		return v, err
	}
	switch c.Variant {
	case "rest":
		load := r.rest(c.InFlight)
		v = r.variant(load.do, devices)
		v.stop = func() { load.close(); r.stop() }
	case "mcp":
		load := r.mcp(c.InFlight)
		v = r.variant(load.do, devices)
		v.stop = func() { load.close(); r.stop() }
	case "mcp-session":
		load, err := r.mcpSession(c.InFlight)
		if err != nil {
			r.stop()
			return v, err
		}
		v = r.variant(load.do, devices)
		v.stop = func() { load.close(); r.stop() }
	case "fan-out":
		v = r.variant(func(int) error { _, err := r.fanOut(c.InFlight); return err }, devices)
		v.calls = c.Devices
	default:
		v = r.variant(r.call, devices)
	}
	return v, nil
}
