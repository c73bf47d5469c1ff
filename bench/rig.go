package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"fleetd/broker"
	"fleetd/fleet"
	"fleetd/fleet/blobs"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/embedded"
	"fleetd/migrations"
	"fleetd/web/api"
	"fleetd/web/device"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A rig is fleetd's own path of a call, whole: embedded PostgreSQL, broker,
// services, REST. Only the console is missing.
type rig struct {
	pool       *pgxpool.Pool
	enrolments *enrolment.Service
	presences  *fleet.Presences
	devices    *fleet.Devices
	operators  *fleet.Operators
	calls      *fleet.Calls
	fanOuts    *fleet.FanOuts
	broker     *broker.Broker
	http       string // address of REST and the boot poll
	token      string

	ids   []fleet.DeviceID
	stops []func() // in the order of starting
}

var benchActor = fleet.Actor{Kind: fleet.ActorToken, Name: "bench", Role: fleet.RoleAdmin}

func newRig(ctx context.Context, dir string) (_ *rig, err error) {
	r := &rig{}
	defer func() {
		if err != nil {
			r.stop()
		}
	}()
	pg, err := embedded.Start(ctx, embedded.Options{DataDir: filepath.Join(dir, "data")})
	if err != nil {
		return nil, err
	}
	r.onStop(func() { _ = pg.Stop(context.Background()) })
	if r.pool, err = postgres.Open(ctx, pg.URL()); err != nil {
		return nil, err
	}
	r.onStop(r.pool.Close)
	if err := migrations.Up(ctx, r.pool); err != nil {
		return nil, err
	}
	return r, r.open(ctx, dir)
}

func (r *rig) open(ctx context.Context, dir string) error {
	store := postgres.New(r.pool, postgres.Options{})
	r.run(store.Run)
	events := &fleet.Events{}
	key := make([]byte, 32)
	rand.Read(key)
	r.presences = fleet.NewPresences(fleet.PresenceOptions{Store: store, Log: slog.New(slog.DiscardHandler),
		Events: events, Node: "bench"})
	var err error
	r.enrolments, err = enrolment.New(enrolment.Options{Store: store, Mode: fleet.EnrolOpen, Key: key, Events: events})
	if err != nil {
		return err
	}
	targets := fleet.NewTargets(store, store)
	r.run(func(ctx context.Context) error { return targets.Run(ctx, events) })
	r.run(r.presences.Run)
	r.run(r.enrolments.Run)
	r.devices = fleet.NewDevices(fleet.DevicesOptions{Store: store, Targets: targets, Presence: r.presences,
		Events: events,
		Kick:   func(fleet.DeviceID, string) {}, Retiring: func(fleet.DeviceID) {}})
	if r.broker, err = broker.New(broker.Options{Addr: "127.0.0.1:0", Node: "bench", Devices: rigDevices{r}}); err != nil {
		return err
	}
	r.run(r.broker.Run)
	pictures, err := blobs.OpenDir(filepath.Join(dir, "blobs"))
	if err != nil {
		return err
	}
	snapshots := fleet.NewSnapshots(fleet.SnapshotsOptions{Links: store, Store: store, Blobs: pictures,
		PublicURL: "http://127.0.0.1"})
	r.calls = fleet.NewCalls(fleet.CallsOptions{Store: store, Targets: targets, Link: r.broker, Watcher: r.presences,
		URLs: snapshots, Events: events})
	r.onStop(r.calls.Shutdown)
	r.fanOuts = fleet.NewFanOuts(fleet.FanOutsOptions{Store: store, Devices: store, Calls: r.calls, Presence: r.presences,
		Events: events})
	r.run(r.fanOuts.Run)
	r.operators = fleet.NewOperators(store)
	if _, r.token, err = r.operators.NewToken(ctx, benchActor, "bench", fleet.RoleAdmin, nil); err != nil {
		return err
	}
	rest := api.New(api.Options{Devices: r.devices, Calls: r.calls, FanOuts: r.fanOuts, Enrolment: r.enrolments,
		Operators: r.operators, Snapshots: snapshots, SnapshotStore: store, Stats: store, Samples: store, Audit: store,
		Idempotency: store, Events: events})
	return r.serve(rest, device.Options{Enrolments: r.enrolments, Snapshots: snapshots})
}

func (r *rig) serve(rest http.Handler, o device.Options) error {
	answers, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: "127.0.0.1:1883"})
	if err != nil {
		return err
	}
	o.BootPolls = enrolment.NewBootPolls(enrolment.BootPollsOptions{Enrolments: r.enrolments, Presences: r.presences,
		Answers: answers})
	mux := chi.NewRouter()
	device.New(o).Routes(mux)
	mux.Mount("/api/v1", rest)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: mux, ConnContext: device.WithConn}
	lingerer := device.NewLingerer(device.LingerOptions{})
	go func() { _ = srv.Serve(lingerer.Listener(ln)) }()
	r.onStop(func() { lingerer.Stop(); _ = srv.Close() })
	r.http = ln.Addr().String()
	return nil
}

// run starts a part that stops before those it was started after.
func (r *rig) run(part func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = part(ctx)
	}()
	r.onStop(func() {
		cancel()
		<-done
	})
}

func (r *rig) onStop(stop func()) { r.stops = append(r.stops, stop) }

func (r *rig) stop() {
	for i := len(r.stops) - 1; i >= 0; i-- {
		r.stops[i]()
	}
}

// enrol lets n devices poll as at boot and returns their credentials.
func (r *rig) enrol(n int) ([]credentials, error) {
	r.ids = make([]fleet.DeviceID, n)
	out := make([]credentials, n)
	for i := range n {
		r.ids[i] = fleet.DeviceID(fmt.Sprintf("02beef%06x", i))
		a, err := r.enrolments.Poll(enrolment.BootPoll{Device: r.ids[i],
			ClientID: fmt.Sprintf("5f0c0f4e-6f0a-4c7e-9d0e-%012x", i), Board: "bench",
			Chip: "esp32s3", Version: "2.4.2", ELFSHA256: "9f2c4d6b8a01c3e5f7091b2d4f60718293a4b5c6d7e8f90a1b2c3d4e5f607101",
			Slot: "ota_0", At: time.Now()})
		if err != nil {
			return nil, err
		}
		c := a.Session
		out[i] = credentials{ClientID: c.ClientID, Username: c.Username, Password: c.Password, Up: c.PublishTopic}
	}
	return out, nil
}

// listed waits until the tools of the first n devices are known.
func (r *rig) listed(ctx context.Context, n int) error {
	for range 600 {
		var known int
		err := r.pool.QueryRow(ctx, `SELECT count(*) FROM devices WHERE tools_count > 0 AND id = ANY($1)`, r.ids[:n]).Scan(
			&known)
		if err != nil || known == n {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("not all of %d devices listed their tools within a minute", n)
}

// call makes one call in process, as the console and fan-outs do.
func (r *rig) call(worker int) error {
	c, err := r.calls.Make(context.Background(), fleet.CallRequest{Actor: benchActor, Device: r.ids[worker],
		Tool: "self.audio_speaker.set_volume", Arguments: json.RawMessage(`{"volume":50}`)})
	if err == nil && c.State != fleet.CallSucceeded {
		err = fmt.Errorf("call to %s ended %s: %+v", c.Device, c.State, c.Error)
	}
	return err
}

// restCall makes one call through REST, on a connection that is kept.
func (r *rig) restCall(client *http.Client, worker int) error {
	req, err := http.NewRequest("POST", "http://"+r.http+"/api/v1/devices/"+string(r.ids[worker])+"/calls",
		bytes.NewReader([]byte(`{"tool":"self.audio_speaker.set_volume","arguments":{"volume":50}}`)))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && !bytes.Contains(body, []byte(`"state":"succeeded"`)) {
		err = fmt.Errorf("%s: %.200s", resp.Status, body)
	}
	return err
}

// fanOut calls the first n devices, with the record of each, and returns how
// long that took.
func (r *rig) fanOut(ctx context.Context, n, window int) (time.Duration, error) {
	begin := time.Now()
	f, err := r.fanOuts.Create(ctx, fleet.FanOutRequest{Actor: benchActor, Devices: r.ids[:n],
		Tool: "self.audio_speaker.set_volume", Arguments: json.RawMessage(`{"volume":50}`), MaxInFlight: window})
	if err != nil {
		return 0, err
	}
	for f.State == fleet.FanOutRunning {
		time.Sleep(5 * time.Millisecond)
		if f, err = r.fanOuts.Get(ctx, f.ID); err != nil {
			return 0, err
		}
	}
	took := time.Since(begin)
	p, err := r.fanOuts.Progress(ctx, f.ID)
	if err == nil && p.ByState[fleet.CallSucceeded] != n {
		err = fmt.Errorf("of %d calls of the fan-out: %v", n, p.ByState)
	}
	return took, err
}

// rigDevices shows the domain to the broker.
type rigDevices struct{ *rig }

func (d rigDevices) Authenticate(id, user string, password []byte) (fleet.DeviceID, error) {
	return d.enrolments.Authenticate(id, user, password)
}
func (d rigDevices) Connected(c fleet.Connection) { d.presences.Connected(c) }
func (d rigDevices) Disconnected(c fleet.Connection, clean bool, reason string) {
	d.presences.Disconnected(c, clean, reason)
}
func (d rigDevices) Seen(id fleet.DeviceID)                      { d.presences.Seen(id) }
func (d rigDevices) Responded(id fleet.DeviceID)                 { d.presences.Responded(id) }
func (d rigDevices) Unresponsive(c fleet.Connection, why string) { d.presences.Unresponsive(c, why) }
func (d rigDevices) NeedsListing(id fleet.DeviceID) bool {
	return !d.enrolments.Running(id).InventoryFresh
}
func (d rigDevices) IsSoftware(fleet.DeviceID) bool                   { return false }
func (d rigDevices) Notified(fleet.DeviceID, string, json.RawMessage) {}
func (d rigDevices) SaveListing(ctx context.Context, l fleet.ToolListing) error {
	running := d.enrolments.Running(l.Device)
	l.ELFSHA256, l.Version = running.ELFSHA256, running.Version
	if err := d.devices.Listed(ctx, l); err != nil {
		return err
	}
	d.enrolments.Listed(l.Device, l.ELFSHA256, l.At)
	return nil
}
