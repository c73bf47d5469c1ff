package main

import (
	"context"
	"fmt"
	"os"
	"runtime/pprof"
	"time"
)

// profileCommand shows where the time of in-process calls goes.
type profileCommand struct {
	InFlight int           `help:"Calls in flight." default:"64"`
	Duration time.Duration `help:"How long." default:"10s"`
	Output   string        `help:"CPU profile for go tool pprof." default:"cpu.pprof"`
}

func (c *profileCommand) Run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "fleetd-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	child, err := startDevices()
	if err != nil {
		return err
	}
	defer child.stop()
	rig, err := newRig(ctx, dir)
	if err != nil {
		return err
	}
	defer rig.stop()
	devices, err := rig.enrol(c.InFlight)
	if err != nil {
		return err
	}
	if _, err := child.connect(rig.broker.Addr().String(), 16, devices); err != nil {
		return err
	}
	if err := rig.listed(ctx, c.InFlight); err != nil {
		return err
	}
	out, err := os.Create(c.Output)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := pprof.StartCPUProfile(out); err != nil {
		return err
	}
	r := closedLoop(c.InFlight, c.Duration, rig.call)
	pprof.StopCPUProfile()
	fmt.Printf("%.0f calls/s, p50 %.2f ms, p99 %.2f ms, %d failed\n", r.PerSecond, r.P50, r.P99, r.Failed)
	return nil
}
