package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

func rowOrders(w *rowsWorld, n int) func(*testing.T) {
	refuses, loads := w.newRowDevice(n), w.newRowDevice(n+1)
	for i, d := range []*rowDevice{refuses, loads} {
		d.board, d.tools = "ordered", rowTool(fleet.ToolUpgradeFirmware, "", "url", "job")
		d.silent.Store(true)
		d.begin(w.edges[1-i])
	}
	data, err := sim.AppImage(chaosBoard, chaosVersion, 400_000)
	if err != nil {
		w.t.Fatal(err)
	}
	campaign := w.startCampaign(data, "ordered", map[string]any{"q": "board:ordered", "max_in_flight": 2, "max_attempts": 1,
		"waves": []any{map[string]any{"percent": 100, "soak_ms": 200}}})
	inState := func(d *rowDevice, states ...string) bool {
		return w.count(`SELECT count(*) FROM deployments WHERE campaign_id = $1 AND device_id = $2 AND state = ANY ($3)`,
			campaign, d.id, states) == 1
	}
	var order struct{ URL, Job string }
	refuses.arguments(&struct{}{})
	loads.arguments(&order)
	loads.say(loads.newest(), loads.received("tools/call")[0].ID, rowResult(`{"job":"`+order.Job+`","state":"accepted"}`))
	reports := func(percent int) {
		loads.send(loads.newest(), fmt.Sprintf(`"method":"notifications/job","params":{"job":%q,"kind":"upgrade",`+
			`"state":"progress","percent":%d}`, order.Job, percent))
	}
	fetch := func(from int) (*http.Response, error) {
		req, err := http.NewRequest("GET", at(w.edges[1], order.URL), nil)
		if err != nil {
			return nil, err
		}
		if from > 0 {
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
		}
		return http.DefaultClient.Do(req)
	}
	var got, requests atomic.Int64
	loaded := make(chan error, 1)
	go func() { // like the included firmware
		for got.Load() < int64(len(data)) {
			requests.Add(1)
			resp, err := fetch(int(got.Load()))
			if err != nil || resp.StatusCode/100 != 2 {
				loaded <- fmt.Errorf("the image from byte %d: %+v, %v", got.Load(), resp, err)
				return
			}
			n, _ := io.Copy(io.Discard, resp.Body)
			got.Add(n)
			resp.Body.Close()
		}
		loaded <- nil
	}()
	reports(5)
	fleettest.EventuallyWithin(w.t, time.Minute, "the download on record", func() bool {
		return inState(loads, "downloading") && w.count(`SELECT count(*) FROM deployments WHERE campaign_id = $1 AND percent > 0`,
			campaign) == 1
	})
	return func(t *testing.T) {
		if !inState(refuses, "sent", "ambiguous") {
			t.Error("the deployment of the device that has not answered yet is over")
		}
		refuses.say(refuses.newest(), refuses.received("tools/call")[0].ID,
			`{"content":[{"type":"text","text":"battery low"}],"isError":true}`)
		fleettest.EventuallyWithin(t, 20*time.Second, "the refusal to count", func() bool { return inState(refuses, "rejected") })
		select {
		case err := <-loaded:
			if err != nil || requests.Load() < 2 || got.Load() != int64(len(data)) {
				t.Errorf("%d requests brought %d of %d bytes: %v", requests.Load(), got.Load(), len(data), err)
			}
		case <-time.After(time.Minute):
			t.Fatal("the download does not end")
		}
		fleettest.EventuallyWithin(t, time.Minute, "the download to be complete", func() bool {
			return w.count(`SELECT count(*) FROM deployment_events e JOIN deployments d ON d.id = e.deployment_id
				WHERE d.campaign_id = $1 AND d.device_id = $2 AND e.kind = 'downloaded' AND e.attempt = 1`, campaign, loads.id) == 1
		})
	}
}

// startCampaign uploads an image for a board, and starts a campaign with it and the settings.
func (w *clusterWorld) startCampaign(data []byte, board string, settings map[string]any) (id string) {
	w.t.Helper()
	edge := w.edges[1]
	req, err := http.NewRequest("POST", "http://"+edge.http+"/api/v1/images?board="+board, bytes.NewReader(data))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.token)
	req.Header.Set("Content-Type", "application/octet-stream")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	var stored struct{ SHA256 string }
	if err := json.NewDecoder(resp.Body).Decode(&stored); err != nil || stored.SHA256 == "" {
		w.t.Fatalf("image: %s, %v", resp.Status, err)
	}
	var release, campaign struct{ ID string }
	w.rest(edge, w.token, "POST", "/releases", map[string]any{"images": []string{stored.SHA256}}, &release)
	plan := map[string]any{"name": "rows", "release_id": release.ID, "max_reconnects": 100, "min_heap_percent": 0,
		"abort_rules": []any{}}
	maps.Copy(plan, settings)
	w.rest(edge, w.token, "POST", "/campaigns", plan, &campaign)
	w.rest(edge, w.token, "POST", "/campaigns/"+campaign.ID+"/start", nil, nil)
	return campaign.ID
}

// Leaders are killed while devices download, restart and are verified. Every deployment ends as it
// would have otherwise, and no wave opens twice. The images are in S3, from where the edges send them.
func TestNewCoresContinueACampaign(t *testing.T) {
	t.Parallel()
	address, fetched := startS3(t)
	w := prepareCluster(t, nil, "--enrolment", "open", "--blob-url", address)
	for _, c := range w.cores {
		c.env = []string{"AWS_ACCESS_KEY_ID=fleetd-test", "AWS_SECRET_ACCESS_KEY=not-a-secret"}
	}
	w.start()
	w.populate(w.edges[0])
	data, err := sim.AppImage(chaosBoard, chaosVersion, 400_000)
	if err != nil {
		t.Fatal(err)
	}
	campaign := w.startCampaign(data, chaosBoard, map[string]any{"q": "", "max_in_flight": 4, "max_attempts": 5,
		"waves": []any{map[string]any{"percent": 40, "soak_ms": 200, "gate": "manual"},
			map[string]any{"percent": 70, "soak_ms": 200, "gate": "manual"}, map[string]any{"percent": 100, "soak_ms": 200}}})
	const inState = `SELECT count(*) FROM deployments WHERE campaign_id = $1 AND state = ANY ($2)`
	var killed time.Time
	for i, states := range [][]string{{"downloading"}, {"downloaded", "rebooting", "booted"}, {"verifying"}} {
		leads, next := w.cores[i%2], w.cores[1-i%2]
		if i > 0 { // a wave for each kill: the one before it may be over since
			w.rest(w.edges[1], w.token, "POST", "/campaigns/"+campaign+"/advance", nil, nil)
		}
		for deadline := time.Now().Add(time.Minute); w.count(inState, campaign, states) == 0; {
			if time.Now().After(deadline) {
				t.Fatalf("no deployment is %v", states)
			}
		}
		killed = time.Now()
		leads.signal(syscall.SIGKILL)
		leads.awaitEnd(time.Minute)
		t.Logf("killed while %d deployments are %v, %d have succeeded", w.count(inState, campaign, states), states,
			w.count(inState, campaign, []string{"succeeded"}))
		next.awaitReady()
		leads.start()
		leads.awaitStandby(next.name)
	}
	fleettest.EventuallyWithin(t, 2*time.Minute, "the end of the campaign", func() bool {
		return w.count(`SELECT count(*) FROM campaigns WHERE id = $1 AND state = 'completed'`, campaign) == 1
	})
	if n := w.count(inState, campaign, []string{"succeeded"}); n != leaseDevices {
		t.Errorf("%d of %d deployments succeeded", n, leaseDevices)
	}
	for i := range leaseDevices {
		if v := w.devices.Device(i).Firmware().Version; v != chaosVersion {
			t.Errorf("device %d runs %s", i, v)
		}
	}
	if n := w.count(`SELECT count(*) FROM (SELECT FROM deployment_events e JOIN deployments d ON d.id = e.deployment_id
		WHERE d.campaign_id = $1 AND e.kind = 'wave_opened' GROUP BY d.id HAVING count(*) <> 1) AS w`, campaign); n != 0 {
		t.Errorf("the waves of %d devices were not opened once", n)
	}
	// Of the devices that were verified when the last leader died: all, and those asked for their build once.
	const verified = `SELECT count(*) FROM deployments d WHERE campaign_id = $1 AND EXISTS (SELECT FROM deployment_events
		WHERE deployment_id = d.id AND kind = 'fleetd_start' AND from_state = 'verifying' AND at > $2)`
	all, once := w.count(verified, campaign, killed), w.count(verified+` AND (SELECT count(*) FROM calls WHERE
		device_id = d.device_id AND tool = 'self.get_system_info' AND created_at > $2) = 1`, campaign, killed)
	if once != all { // none, if the last one succeeded just before the kill
		t.Errorf("%d of %d devices that were verified were asked for their build once", once, all)
	}
	if s := w.devices.Stats(); s.Rollbacks != 0 {
		t.Errorf("%d devices were rolled back", s.Rollbacks)
	}
	if n := w.count(`SELECT count(*) FROM devices WHERE version = $1`, chaosVersion); n != leaseDevices {
		t.Errorf("%d devices are on record with the new version", n)
	}
	if n := fetched.Load(); n < leaseDevices {
		t.Errorf("the edges have read %d images from S3", n)
	}
	for _, p := range []*leaseProcess{w.cores[0], w.cores[1], w.edges[0], w.edges[1]} {
		if strings.Contains(p.out.String(), "X-Amz") {
			t.Errorf("the log of %s has an address of S3", p.name)
		}
	}
}

// startS3 starts an S3 server with a bucket, and counts the requests with a presigned address.
func startS3(t *testing.T) (blobURL string, fetched *atomic.Int64) {
	t.Helper()
	memory := s3mem.New()
	if err := memory.CreateBucket("blobs"); err != nil {
		t.Fatal(err)
	}
	s3, fetched := gofakes3.New(memory).Server(), new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("X-Amz-Signature") {
			fetched.Add(1)
		}
		s3.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return "s3://blobs/fleet?region=x&endpoint=" + server.URL, fetched
}
