package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"fleetd/broker/sim/mqtt5"
)

// mqtt5Command measures the memory of fleetd serve per connected device, of devices of MCP over
// MQTT 5 and of xiaozhi ones in turn. Each kind gets a new fleetd with a new database.
type mqtt5Command struct {
	serveOptions
	Rounds   int    `help:"How many rounds; a figure is their median." default:"3"`
	Devices  int    `help:"How many devices are connected." default:"10000"`
	SDK      int    `name:"sdk" help:"How many of the MQTT 5 ones behave like the ESP-IDF SDK 0.0.1." default:"0"`
	Profiles string `help:"Also write heap profiles into this directory." placeholder:"DIR"`
}

// A footprint is the memory of fleetd per device, in KiB.
type footprint struct {
	Idle, AfterStorms float64 // resident
	Heap, Stacks      float64 // of Go, after a collection, after the storms
}

const (
	kindXiaozhi = "xiaozhi"
	kindMQTT5   = "MCP over MQTT 5"
)

// Run measures and prints a table.
func (c *mqtt5Command) Run(ctx context.Context) error {
	all := make(map[string][]footprint)
	for round := range c.Rounds {
		for _, kind := range []string{kindXiaozhi, kindMQTT5} {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			f, err := c.measure(ctx, kind)
			if err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
			fmt.Fprintf(os.Stderr, "round %d of %d, %s: %.2f\n", round+1, c.Rounds, kind, f)
			all[kind] = append(all[kind], f)
		}
	}
	fmt.Printf("KiB per device, of %d, medians of %d\n", c.Devices, c.Rounds)
	fmt.Printf("%-28s %16s %16s %8s\n", "", kindXiaozhi, kindMQTT5, "ratio")
	for _, row := range []struct {
		name string
		of   func(footprint) float64
	}{
		{"resident, idle", func(f footprint) float64 { return f.Idle }},
		{"resident, after three storms", func(f footprint) float64 { return f.AfterStorms }},
		{"Go heap after a collection", func(f footprint) float64 { return f.Heap }},
		{"stacks", func(f footprint) float64 { return f.Stacks }},
	} {
		var figures [2]float64
		for i, kind := range []string{kindXiaozhi, kindMQTT5} {
			var values []float64
			for _, f := range all[kind] {
				values = append(values, row.of(f))
			}
			figures[i] = median(values)
		}
		fmt.Printf("%-28s %16.2f %16.2f %8.2f\n", row.name, figures[0], figures[1], figures[1]/figures[0])
	}
	return nil
}

// A connected fleet of one kind. connect replaces the connections of all devices.
type benchFleet interface {
	connect(broker string) error
	stop()
}

func (c *mqtt5Command) measure(ctx context.Context, kind string) (f footprint, err error) {
	dir, err := os.MkdirTemp("", "fleetd-bench")
	if err != nil {
		return f, err
	}
	defer os.RemoveAll(dir)
	r, err := startServe(ctx, filepath.Join(dir, "serve"), c.serveOptions)
	if err != nil {
		return f, err
	}
	defer r.stop()
	before, heap, stacks, err := r.memory("")
	if err != nil {
		return f, err
	}
	var devices benchFleet
	if kind == kindMQTT5 {
		devices, err = c.createMQTT5(r)
	} else {
		devices, err = c.createXiaozhi(r)
	}
	if err != nil {
		return f, err
	}
	defer devices.stop()
	if err = devices.connect(r.mqtt); err == nil {
		err = r.listed(ctx, c.Devices)
	}
	if err != nil {
		return f, err
	}
	settle(c.Devices)
	n := float64(c.Devices)
	f.Idle = (settled(r.fleetd.pid) - before) / n
	for range 3 {
		if err := devices.connect(r.mqtt); err != nil {
			return f, err
		}
	}
	settle(c.Devices)
	f.AfterStorms = (settled(r.fleetd.pid) - before) / n
	profile := ""
	if c.Profiles != "" {
		profile = filepath.Join(c.Profiles, strings.ReplaceAll(kind, " ", "-")+".heap")
	}
	_, heapAfter, stacksAfter, err := r.memory(profile)
	f.Heap, f.Stacks = (heapAfter-heap)/n, (stacksAfter-stacks)/n
	return f, err
}

// settled returns the resident memory of a process once it has not fallen for ten seconds: after a
// storm of connections fleetd returns memory, on a busy machine late.
func settled(pid int) float64 {
	least := rss(pid)
	for since := time.Now(); time.Since(since) < 10*time.Second; time.Sleep(500 * time.Millisecond) {
		if now := rss(pid); now < 0.99*least {
			least, since = now, time.Now()
		}
	}
	return rss(pid)
}

// memory returns the resident memory of fleetd and, after a collection, its heap and its stacks,
// in KiB. It writes the heap profile to the file, unless that is "".
func (r *rig) memory(profile string) (resident, heap, stacks float64, err error) {
	resident = rss(r.fleetd.pid)
	data, err := r.fromAdmin("/debug/pprof/heap?gc=1")
	if err == nil && profile != "" {
		err = os.WriteFile(profile, data, 0o644)
	}
	if err == nil {
		data, err = r.fromAdmin("/metrics")
	}
	for line := range strings.Lines(string(data)) {
		var value float64
		name, number, _ := strings.Cut(line, " ")
		if _, err := fmt.Sscan(number, &value); err != nil {
			continue
		}
		switch name {
		case "go_memstats_heap_alloc_bytes":
			heap = value / 1024
		case "go_memstats_stack_inuse_bytes":
			stacks = value / 1024
		}
	}
	if err == nil && heap*stacks == 0 {
		err = fmt.Errorf("/metrics has no heap or no stacks")
	}
	return resident, heap, stacks, err
}

func (r *rig) fromAdmin(path string) ([]byte, error) {
	resp, err := http.Get("http://" + r.admin + path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", path, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// xiaozhiFleet are devices like those of run.
type xiaozhiFleet struct {
	process *deviceProcess
	all     []credentials
}

func (c *mqtt5Command) createXiaozhi(r *rig) (benchFleet, error) {
	all, err := r.enrol(c.Devices)
	if err != nil {
		return nil, err
	}
	process, err := startDevices()
	return &xiaozhiFleet{process, all}, err
}

func (f *xiaozhiFleet) connect(broker string) error {
	if err := f.process.drop(); err != nil {
		return err
	}
	time.Sleep(time.Second)
	_, err := f.process.connect(broker, 64, f.all)
	return err
}

func (f *xiaozhiFleet) stop() { f.process.stop() }

// mqtt5Fleet are simulated devices of MCP over MQTT 5 in another process.
type mqtt5Fleet struct {
	order   mqtt5Order
	process *child // nil before the first connection
}

// mqtt5Order is what the process reads.
type mqtt5Order struct {
	SDK     int
	Devices []mqtt5.Credentials
}

func (c *mqtt5Command) createMQTT5(r *rig) (benchFleet, error) {
	f := &mqtt5Fleet{order: mqtt5Order{c.SDK, make([]mqtt5.Credentials, c.Devices)}}
	var g errgroup.Group
	g.SetLimit(16)
	for i := range c.Devices {
		g.Go(func() error {
			var made struct {
				ClientID           string `json:"client_id"`
				Username, Password string
			}
			err := r.ask("POST", "/devices", fmt.Sprintf(`{"id":"sim-%d"}`, i+1), &made)
			f.order.Devices[i] = mqtt5.Credentials{ClientID: made.ClientID, Username: made.Username, Password: made.Password}
			return err
		})
	}
	return f, g.Wait()
}

func (f *mqtt5Fleet) connect(broker string) (err error) {
	f.stop()
	time.Sleep(time.Second)
	for i := range f.order.Devices {
		f.order.Devices[i].Broker = broker
	}
	if f.process, err = startChild("mqtt5-devices"); err != nil {
		return err
	}
	if err := json.NewEncoder(f.process.stdin).Encode(f.order); err != nil {
		return err
	}
	connected, err := bufio.NewReader(f.process.stdout).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the process of the devices ended: %w", err)
	}
	if connected != fmt.Sprintln(len(f.order.Devices)) {
		return fmt.Errorf("of %d devices are connected: %s", len(f.order.Devices), connected)
	}
	return nil
}

func (f *mqtt5Fleet) stop() {
	if f.process != nil {
		f.process.stop()
		f.process = nil
	}
}

// mqtt5DevicesCommand connects the devices of an order, prints how many are initialized after at
// most a minute, and runs them until stdin ends. They leave as a crash does.
type mqtt5DevicesCommand struct{}

func (mqtt5DevicesCommand) Run(ctx context.Context) error {
	in := bufio.NewReader(os.Stdin)
	orders := json.NewDecoder(in)
	var order mqtt5Order
	if err := orders.Decode(&order); err != nil {
		return err
	}
	byID := make(map[string]mqtt5.Credentials)
	for _, c := range order.Devices {
		byID[c.ClientID] = c
	}
	f, err := mqtt5.New(mqtt5.Options{Devices: len(order.Devices), SDK: order.SDK, ConnectRate: 2000,
		Credentials: func(_ context.Context, id string) (mqtt5.Credentials, error) { return byID[id], nil }})
	if err != nil {
		return err
	}
	go func() { _ = f.Run(ctx) }()
	for range 600 {
		if f.Stats().Initialized >= int64(len(order.Devices)) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	fmt.Println(f.Stats().Connected)
	_, err = io.Copy(io.Discard, in)
	return err
}
