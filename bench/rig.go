package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"fleetd/cmd/fleetd/server"
	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/postgres/embedded"
)

// A rig is a whole fleetd in this process, with a PostgreSQL that outlives it.
type rig struct {
	*server.Server
	postgres *embedded.Server
	http     string // address of REST and the boot poll
	token    string

	ids []fleet.DeviceID
}

var benchActor = fleet.Actor{Kind: fleet.ActorToken, Name: "bench", Role: fleet.RoleAdmin}

func newRig(ctx context.Context, dir string) (*rig, error) {
	pg, err := embedded.Start(ctx, embedded.Options{DataDir: filepath.Join(dir, "data")})
	if err != nil {
		return nil, err
	}
	r := &rig{postgres: pg}
	r.Server, err = server.Start(ctx, server.Config{
		Database: server.Database{DataDir: filepath.Join(dir, "fleetd"), DatabaseURL: pg.URL()},
		HTTPAddr: "127.0.0.1:0", MQTTAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0", Enrolment: string(fleet.EnrolOpen),
		NodeName: "bench", Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		r.http = r.HTTPAddr().String()
		_, r.token, err = r.Operators.NewToken(ctx, benchActor, "bench", fleet.RoleAdmin, nil)
	}
	if err != nil {
		r.stop()
		return nil, err
	}
	return r, nil
}

func (r *rig) stop() {
	if r.Server != nil {
		r.Close()
	}
	_ = r.postgres.Stop(context.Background())
}

// enrol lets n devices poll as at boot and returns their credentials.
func (r *rig) enrol(n int) ([]credentials, error) {
	r.ids = make([]fleet.DeviceID, n)
	out := make([]credentials, n)
	for i := range n {
		r.ids[i] = fleet.DeviceID(fmt.Sprintf("02beef%06x", i))
		a, err := r.Enrolments.Poll(enrolment.BootPoll{Device: r.ids[i],
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

// listed waits until the tools of all n devices are known.
func (r *rig) listed(ctx context.Context, n int) error {
	q, err := fleet.ParseQuery("tool:self.audio_speaker.set_volume")
	if err != nil {
		return err
	}
	for range 600 {
		known, err := r.Devices.CountDevices(ctx, q)
		if err != nil || known == n {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("not all of %d devices listed their tools within a minute", n)
}

// call makes one call in process, as the console and fan-outs do.
func (r *rig) call(worker int) error {
	c, err := r.Calls.Make(context.Background(), fleet.CallRequest{Actor: benchActor, Device: r.ids[worker],
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
	f, err := r.FanOuts.Create(ctx, fleet.FanOutRequest{Actor: benchActor, Devices: r.ids[:n],
		Tool: "self.audio_speaker.set_volume", Arguments: json.RawMessage(`{"volume":50}`), MaxInFlight: window})
	if err != nil {
		return 0, err
	}
	for f.State == fleet.FanOutRunning {
		time.Sleep(5 * time.Millisecond)
		if f, err = r.FanOuts.Get(ctx, f.ID); err != nil {
			return 0, err
		}
	}
	took := time.Since(begin)
	p, err := r.FanOuts.Progress(ctx, f.ID)
	if err == nil && p.ByState[fleet.CallSucceeded] != n {
		err = fmt.Errorf("of %d calls of the fan-out: %v", n, p.ByState)
	}
	return took, err
}
