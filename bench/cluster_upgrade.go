package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	"fleetd/broker/sim"
)

// The firmware that a campaign installs during a rolling upgrade.
const (
	upgradeVersion = "9.9.0"
	upgradeSize    = 300_000 // bytes
)

// rollCores upgrades both cores while a campaign upgrades all devices and calls are made: the core that
// stands by is replaced, then the leader is stopped and replaced.
func (r *clusterRun) rollCores(ctx context.Context) error {
	before, err := r.fleet.ask(false)
	if err != nil {
		return err
	}
	id, err := r.startCampaign()
	if err != nil {
		return err
	}
	begun := time.Now()
	done := func() (n int, state string, err error) {
		var c struct {
			State  string
			Counts map[string]int
		}
		err = r.rest(http.MethodGet, "/campaigns/"+id, nil, &c)
		for _, s := range []string{"succeeded", "failed", "timed_out", "rolled_back", "skipped"} {
			n += c.Counts[s]
		}
		return n, c.State, err
	}
	progress := func(share float64) error {
		_, err := r.await(ctx, 30*time.Minute, fmt.Sprintf("%.0f %% of the campaign", 100*share), func() bool {
			time.Sleep(200 * time.Millisecond)
			n, _, err := done()
			return err == nil && float64(n) >= share*float64(r.Devices)
		})
		return err
	}
	if err := progress(0.15); err != nil {
		return err
	}
	leader := r.rig.leader()
	if leader == nil {
		return fmt.Errorf("no core leads")
	}
	for _, core := range r.rig.cores {
		if core != leader {
			core.end(syscall.SIGTERM)
			r.rig.fleetd = r.Fleetd
			if err := r.rig.start(ctx, core); err != nil {
				return err
			}
		}
	}
	if err := progress(0.35); err != nil {
		return err
	}
	stopped := time.Now()
	_ = leader.process.Signal(syscall.SIGTERM)
	if _, err := r.await(ctx, time.Minute, "the hand-over", func() bool {
		now := r.rig.leader()
		return now != nil && now != leader
	}); err != nil {
		return err
	}
	handed := time.Since(stopped)
	leader.end(syscall.SIGTERM)
	if err := r.rig.start(ctx, leader); err != nil {
		return err
	}
	var state string
	if _, err := r.await(ctx, 30*time.Minute, "the end of the campaign", func() bool {
		time.Sleep(time.Second)
		_, state, err = done()
		return err == nil && strings.HasPrefix(state, "completed")
	}); err != nil {
		return err
	}
	took := time.Since(begun)
	time.Sleep(5 * time.Second)
	after, err := r.fleet.ask(true)
	if err != nil {
		return err
	}
	r.row("campaign with both cores replaced", "%s, %d devices in %.0f s; hand-over %.2f s", state, r.Devices, took.Seconds(),
		handed.Seconds())
	others := after.Connects - before.Connects - (after.Reboots - before.Reboots)
	r.row("connections made again without a restart of the device", "%d", others)
	r.must(others <= 0, "%d devices were disconnected", others)
	return r.verdicts(ctx, id, after)
}

// verdicts compares each deployment on record with the firmware that the device runs.
func (r *clusterRun) verdicts(ctx context.Context, campaign string, devices clusterReport) error {
	runs := map[string]string{}
	for i, id := range devices.IDs {
		runs[strings.ReplaceAll(id, ":", "")] = devices.Versions[i]
	}
	rows, err := r.rig.db.Query(ctx, `SELECT device_id, state FROM deployments WHERE campaign_id = $1`, campaign)
	if err != nil {
		return err
	}
	defer rows.Close()
	states, wrong := map[string]int{}, 0
	for rows.Next() {
		var id, state string
		if err := rows.Scan(&id, &state); err != nil {
			return err
		}
		states[state]++
		if (state == "succeeded") != (runs[id] == upgradeVersion) {
			wrong++
		}
	}
	r.row("verdicts, of which wrong", "%v, %d", states, wrong)
	r.must(wrong == 0, "%d verdicts are wrong", wrong)
	return rows.Err()
}

// startCampaign uploads an image and starts a campaign over all devices.
func (r *clusterRun) startCampaign() (id string, err error) {
	image, err := sim.AppImage(clusterBoard, upgradeVersion, upgradeSize)
	if err != nil {
		return "", err
	}
	var uploaded struct{ SHA256 string }
	var release, campaign struct{ ID string }
	if err := r.rest(http.MethodPost, "/images?board="+clusterBoard, image, &uploaded); err != nil {
		return "", err
	}
	if err := r.rest(http.MethodPost, "/releases", map[string]any{"images": []string{uploaded.SHA256}}, &release); err != nil {
		return "", err
	}
	if err := r.rest(http.MethodPost, "/campaigns", map[string]any{"name": "rolling upgrade", "release_id": release.ID, "q": "",
		"max_in_flight": 300, "abort_rules": []any{},
		"waves": []map[string]any{{"percent": 100, "success_percent": 1, "soak_ms": 1000}}}, &campaign); err != nil {
		return "", err
	}
	return campaign.ID, r.rest(http.MethodPost, "/campaigns/"+campaign.ID+"/start", nil, &struct{}{})
}

// rest makes a request through an edge. A body of bytes is sent as it is.
func (r *clusterRun) rest(method, path string, body, answer any) error {
	media, data := "application/octet-stream", []byte(nil)
	switch b := body.(type) {
	case nil:
	case []byte:
		data = b
	default:
		media = "application/json"
		var err error
		if data, err = json.Marshal(b); err != nil {
			return err
		}
	}
	req, err := http.NewRequest(method, "http://"+r.rig.edges[0].http+"/api/v1"+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+r.rig.token)
	req.Header.Set("Content-Type", media)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, text)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, answer)
}

// replaceEdge stops the first edge and starts it as the new version; its devices move to the others.
func (r *clusterRun) replaceEdge(ctx context.Context) error {
	edge := r.rig.edges[0]
	held, err := r.rig.connections(edge)
	if err != nil {
		return err
	}
	begun := time.Now()
	edge.end(syscall.SIGTERM)
	stopped := time.Since(begun)
	if err := r.rig.start(ctx, edge); err != nil {
		return err
	}
	_, err = r.await(ctx, 5*time.Minute, "devices to connect again", func() bool {
		time.Sleep(200 * time.Millisecond)
		return r.rig.online() == r.Devices
	})
	if err != nil {
		return err
	}
	r.row("an edge is stopped and started", "%d devices, ended after %.1f s, all are back after %.1f s", held,
		stopped.Seconds(), time.Since(begun).Seconds())
	return nil
}
