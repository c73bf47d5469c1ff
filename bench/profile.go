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
	FanOut   int           `help:"Profile fan-outs to so many devices instead."`
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
	fleetSize := max(c.InFlight, c.FanOut)
	devices, err := rig.enrol(fleetSize)
	if err != nil {
		return err
	}
	if _, err := child.connect(rig.MQTTAddr().String(), 64, devices); err != nil {
		return err
	}
	if err := rig.listed(ctx, fleetSize); err != nil {
		return err
	}
	time.Sleep(5 * time.Second) // until the fleet has settled
	out, err := os.Create(c.Output)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := pprof.StartCPUProfile(out); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	if c.FanOut > 0 {
		for range 5 {
			took, err := rig.fanOut(ctx, c.FanOut, 512)
			if err != nil {
				return err
			}
			fmt.Printf("fan-out to %d: %.2f s\n", c.FanOut, took.Seconds())
		}
		return nil
	}
	r := closedLoop(c.InFlight, c.Duration, rig.call)
	fmt.Printf("%.0f calls/s, p50 %.2f ms, p99 %.2f ms, %d failed\n", r.PerSecond, r.P50, r.P99, r.Failed)
	return nil
}
