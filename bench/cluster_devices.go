package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"fleetd/broker/sim"
)

const clusterBoard = "bread-compact-wifi"

// clusterOrder is what a process of simulated devices reads first.
type clusterOrder struct {
	OTAURL    string
	Endpoints []string
	FirstMAC  string
	Devices   int
	Rate      float64 // devices switched on in a second
	Booting   int     // of them at once
	Keepalive time.Duration
	From      string // source address: the kernel looks long for a free port of one that all share
}

// clusterReport is its answer to each line that follows.
type clusterReport struct {
	sim.Stats
	IDs      []string // of all devices, in the order of the next
	Executed []int    // calls of the tool of the load that each device executed, up to 8
	Versions []string // of its firmware
}

// clusterDevicesCommand plays stock boards of one process until stdin ends, and answers each number
// on a line with a report: 0 without devices, 1 with them.
type clusterDevicesCommand struct{}

func (clusterDevicesCommand) Run(ctx context.Context) error {
	orders := json.NewDecoder(os.Stdin)
	var o clusterOrder
	if err := orders.Decode(&o); err != nil {
		return err
	}
	f, err := sim.New(sim.Options{OTAURL: o.OTAURL, Endpoints: o.Endpoints, FirstMAC: o.FirstMAC, Devices: o.Devices,
		ConnectRate: o.Rate, Booting: o.Booting, RecordCalls: 8, Keepalive: o.Keepalive, LocalAddrs: []string{o.From},
		Boards: []string{clusterBoard}})
	if err != nil {
		return err
	}
	go func() { _ = f.Run(ctx) }()
	for answers := json.NewEncoder(os.Stdout); ; {
		var full int
		if err := orders.Decode(&full); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		r := clusterReport{Stats: f.Stats()}
		for i := range f.Len() * full {
			d := f.Device(i)
			calls := slices.DeleteFunc(d.Calls(), func(c sim.Call) bool { return c.Tool != clusterTool })
			r.IDs, r.Versions = append(r.IDs, d.ID()), append(r.Versions, d.Firmware().Version)
			r.Executed = append(r.Executed, len(calls))
		}
		if err := answers.Encode(r); err != nil {
			return err
		}
	}
}

// A clusterFleet is the processes of all devices.
type clusterFleet struct {
	parts []*clusterPart
}

type clusterPart struct {
	*child
	orders  *json.Encoder
	answers *json.Decoder
}

// startClusterFleet starts the devices of the command, in several processes. They are switched on at
// the rate in all, and at most so many boot at once. Each polls at one of the edges.
func startClusterFleet(r *clusterRig, o *clusterCommand) (*clusterFleet, error) {
	f := &clusterFleet{}
	n := o.Devices
	var endpoints []string
	for _, e := range r.edges {
		endpoints = append(endpoints, e.mqtt)
	}
	processes := (n + o.PerProcess - 1) / o.PerProcess
	for i, first := 0, 0; first < n; i++ {
		c, err := startChild("cluster-devices", r.niced(10)...)
		if err != nil {
			return f, err
		}
		p := &clusterPart{c, json.NewEncoder(c.stdin), json.NewDecoder(c.stdout)}
		f.parts = append(f.parts, p)
		share := (n - first) / (processes - i)
		if err := p.orders.Encode(clusterOrder{OTAURL: "http://" + r.edges[i%len(r.edges)].http + "/xiaozhi/ota/",
			Endpoints: endpoints, FirstMAC: fmt.Sprintf("02:be:ef:%02x:%02x:%02x", first>>16, first>>8&255, first&255),
			Devices: share, Rate: o.ConnectRate / float64(processes), Booting: max(1, o.Booting/processes),
			Keepalive: o.Keepalive, From: fmt.Sprintf("127.2.0.%d", i+1)}); err != nil {
			return f, err
		}
		first += share
	}
	return f, nil
}

// ask returns the sum of the reports. full includes each device.
func (f *clusterFleet) ask(full bool) (sum clusterReport, err error) {
	order := 0
	if full {
		order = 1
	}
	for _, p := range f.parts {
		if err := p.orders.Encode(order); err != nil {
			return sum, err
		}
	}
	for _, p := range f.parts {
		var r clusterReport
		if err := p.answers.Decode(&r); err != nil {
			return sum, fmt.Errorf("a process of devices ended: %w", err)
		}
		sum.Connected += r.Connected
		sum.Connects += r.Connects
		sum.ConnectFailures += r.ConnectFailures
		sum.PollFailures += r.PollFailures
		sum.Calls += r.Calls
		sum.Reboots += r.Reboots
		sum.Upgrades += r.Upgrades
		sum.Versions = append(sum.Versions, r.Versions...)
		sum.IDs = append(sum.IDs, r.IDs...)
		sum.Executed = append(sum.Executed, r.Executed...)
	}
	return sum, nil
}

func (f *clusterFleet) pids() (pids []int) {
	for _, p := range f.parts {
		pids = append(pids, p.cmd.Process.Pid)
	}
	return pids
}

func (f *clusterFleet) stop() {
	for _, p := range f.parts {
		p.stop()
	}
}
