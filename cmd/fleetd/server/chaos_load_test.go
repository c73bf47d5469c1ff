package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fleetd/broker/sim"
	"fleetd/fleet"
)

// A chaosLoad is the requests of clients to fleetd during its faults, with
// their answers.
type chaosLoad struct {
	w    *chaosWorld
	stop context.CancelFunc
	all  sync.WaitGroup
	next atomic.Int64

	mu        sync.Mutex
	calls     []askedCall
	fanOuts   []askedFanOut
	approvals []askedApproval
	uploads   []chaosUpload
	campaigns []string
	polls     int
}

// An askedCall is one request for a call. Every call carries a marker, which
// links the record to the run on the device.
type askedCall struct {
	marker chaosMarker
	async  bool
	leaves time.Duration // time after which the caller disconnects; 0: never
	status int           // 0 if no answer came
	err    error         // of any answer but a good one
	call   chaosCall     // of a good answer
}

type askedFanOut struct {
	id     string
	marker chaosMarker
}

// A chaosCall is a call as REST shows it.
type chaosCall struct {
	ID         string
	DeviceID   fleet.DeviceID `json:"device_id"`
	Tool       string
	Arguments  chaosMarker
	State      fleet.CallState
	Error      *fleet.CallError
	FanOutID   *string    `json:"fanout_id"`
	ApprovalID *string    `json:"approval_id"`
	CreatedAt  time.Time  `json:"created_at"`
	SentAt     *time.Time `json:"sent_at"`
}

// A chaosMarker is a number from 1 to 2^24, sent as three arguments of
// chaosTool. The marker of other calls is 0.
type chaosMarker struct {
	R int `json:"r"`
	G int `json:"g"`
	B int `json:"b"`
}

// newMarker returns a unique colour for a call or a fan-out.
func (l *chaosLoad) newMarker() chaosMarker {
	return newMarker(l.next.Add(1))
}

func newMarker(n int64) chaosMarker {
	return chaosMarker{int(n >> 16 & 255), int(n >> 8 & 255), int(n & 255)}
}

func (m chaosMarker) String() string { return fmt.Sprintf("#%d", m.R<<16|m.G<<8|m.B) }

const (
	chaosTool        = "self.light.set_rgb"
	chaosCallTimeout = 3 * time.Second // of a call on the device
	chaosPollTimeout = 5 * time.Second // of a boot poll; a device waits six times as long
)

// startLoad starts clients that call devices, and separate devices that poll,
// until stop.
func (w *chaosWorld) startLoad() *chaosLoad {
	ctx, cancel := context.WithCancel(context.Background())
	l := &chaosLoad{w: w, stop: cancel}
	ids := slices.Sorted(maps.Keys(w.ids))
	for i := range w.schedule.size.workers {
		random := rand.New(rand.NewPCG(w.schedule.seed, uint64(100+i)))
		l.all.Go(func() { l.callUntil(ctx, random, ids) })
	}
	for i := range 3 {
		l.all.Go(func() { l.pollUntil(ctx, i) })
	}
	random := rand.New(rand.NewPCG(w.schedule.seed, 99))
	l.all.Go(func() { l.approveUntil(ctx, random, ids) })
	l.all.Go(func() { l.uploadUntil(ctx) })
	return l
}

func (l *chaosLoad) end() {
	l.stop()
	l.all.Wait()
}

func (l *chaosLoad) callUntil(ctx context.Context, random *rand.Rand, ids []fleet.DeviceID) {
	for ctx.Err() == nil {
		asked := l.ask(random, ids[random.IntN(len(ids))])
		l.mu.Lock()
		l.calls = append(l.calls, asked)
		l.mu.Unlock()
		pause := 30 * time.Millisecond
		if asked.status/100 != 2 {
			pause = 250 * time.Millisecond
		}
		time.Sleep(pause)
	}
}

func (l *chaosLoad) ask(random *rand.Rand, device fleet.DeviceID) askedCall {
	asked := askedCall{marker: l.newMarker(), async: random.IntN(8) == 0}
	if random.IntN(10) == 0 {
		asked.leaves = between(random, time.Millisecond, 400*time.Millisecond)
	}
	body := map[string]any{"tool": chaosTool, "timeout_ms": chaosCallTimeout.Milliseconds(), "arguments": asked.marker}
	if random.IntN(60) == 0 && !l.w.inCampaign(device) { // an upgrade restarts a device, too
		body = map[string]any{"tool": fleet.ToolReboot, "timeout_ms": 10_000}
	}
	data, _ := json.Marshal(body)
	url := "http://" + l.w.httpAddr + "/api/v1/devices/" + string(device) + "/calls"
	req, _ := http.NewRequest("POST", url, strings.NewReader(string(data)))
	req.Header.Set("Authorization", "Bearer "+l.w.token)
	req.Header.Set("Content-Type", "application/json")
	if asked.async {
		req.Header.Set("Prefer", "respond-async")
	}
	if asked.leaves > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), asked.leaves)
		defer cancel()
		req = req.WithContext(ctx)
	}
	asked.status, asked.err = l.w.send(req, &asked.call)
	return asked
}

// startFanOut calls all devices that are online. A fan-out may be on record
// even if the answer was not 201.
func (l *chaosLoad) startFanOut() {
	marker := l.newMarker()
	var made struct {
		ID      string
		Targets int
	}
	_, err := l.w.rest("POST", "/fanouts", map[string]any{"q": "presence:online", "tool": chaosTool, "max_in_flight": 8,
		"timeout_ms": chaosCallTimeout.Milliseconds(), "arguments": marker}, &made)
	if err != nil {
		l.w.journal.notef("fan-out %s not begun: %v", marker, err)
		return
	}
	l.w.journal.notef("fan-out %s, %s, to %d devices", marker, made.ID, made.Targets)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fanOuts = append(l.fanOuts, askedFanOut{made.ID, marker})
}

// startCampaign upgrades some of the devices.
func (l *chaosLoad) startCampaign(release string) {
	var made struct {
		ID      string
		Targets int
	}
	plan := map[string]any{"name": "chaos", "release_id": release, "devices": l.w.audience, "max_in_flight": 15,
		"max_attempts": 2, "waves": []map[string]any{{"name": "first", "percent": 20, "success_percent": 1, "soak_ms": 0},
			{"name": "rest", "percent": 100, "success_percent": 1, "soak_ms": 200}},
		"abort_rules": []map[string]any{{"class": "any", "min_executed": 100_000, "percent": 100, "scope": "campaign",
			"action": "pause"}}}
	_, err := l.w.rest("POST", "/campaigns", plan, &made)
	if err == nil {
		_, err = l.w.rest("POST", "/campaigns/"+made.ID+"/start", nil, &made)
	}
	if err != nil {
		l.w.journal.notef("campaign not started: %v", err)
		return
	}
	l.w.journal.notef("campaign %s, %d devices", made.ID, made.Targets)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.campaigns = append(l.campaigns, made.ID)
}

// pollUntil polls as a known device that only sends boot polls. Whatever
// happens to the database, fleetd must answer while it runs.
func (l *chaosLoad) pollUntil(ctx context.Context, i int) {
	mac := fmt.Sprintf("02:c4:a0:5e:00:%02x", i)
	client := fmt.Sprintf("5f0c0f4e-6f0a-4c7e-9d0e-0000000000%02x", i)
	body := fmt.Sprintf(`{"version":2,"mac_address":"%s","uuid":"%s","chip_model_name":"esp32s3",
		"application":{"name":"xiaozhi","version":"2.4.2","elf_sha256":"%064x"},
		"ota":{"label":"ota_0"},"board":{"type":"chaos","name":"chaos"}}`, mac, client, i+1)
	known := false
	for ; ctx.Err() == nil; time.Sleep(150 * time.Millisecond) {
		before := l.w.serving()
		answer, err := l.poll(mac, client, body)
		switch {
		case before == 0 || before != l.w.serving():
			continue // fleetd did not run all the time
		case err == nil && strings.Contains(answer, `"mqtt"`):
			known = true
			l.mu.Lock()
			l.polls++
			l.mu.Unlock()
		case known:
			l.w.breachf("a boot poll of a known device failed: %v %.200s", err, answer)
			return
		}
	}
}

func (l *chaosLoad) poll(mac, client, body string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), chaosPollTimeout)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+l.w.httpAddr+"/xiaozhi/ota/", strings.NewReader(body))
	req.Header.Set("Device-Id", mac)
	req.Header.Set("Client-Id", client)
	req.Header.Set("User-Agent", "chaos/2.4.2")
	req.Header.Set("Content-Type", "application/json")
	resp, err := l.w.client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", resp.Status)
	}
	return string(answer), err
}

// chaosSightings records when each device was connected, from the device's
// side.
type chaosSightings struct {
	mu      sync.Mutex
	changes map[fleet.DeviceID][]sighting // the first is the initial state
}

type sighting struct {
	at        time.Time
	connected bool
}

const sightingEvery = 100 * time.Millisecond

func watchDevices(ctx context.Context, devices map[fleet.DeviceID]*sim.Device) *chaosSightings {
	s := &chaosSightings{changes: map[fleet.DeviceID][]sighting{}}
	go func() {
		for tick := time.NewTicker(sightingEvery); ctx.Err() == nil; <-tick.C {
			s.look(devices)
		}
	}()
	return s
}

func (s *chaosSightings) look(devices map[fleet.DeviceID]*sim.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for id, d := range devices {
		past, connected := s.changes[id], d.Connected()
		if len(past) == 0 || past[len(past)-1].connected != connected {
			s.changes[id] = append(past, sighting{now, connected})
		}
	}
}

// steady reports whether the device is connected, and whether its state has not
// changed since the given time.
func (s *chaosSightings) steady(id fleet.DeviceID, since time.Time) (connected, steady bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	past := s.changes[id]
	if len(past) == 0 {
		return false, false
	}
	last := past[len(past)-1]
	return last.connected, last.at.Before(since)
}

// connectedWithin reports whether the device was connected at any time between
// from and to.
func (s *chaosSightings) connectedWithin(id fleet.DeviceID, from, to time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	past := s.changes[id]
	for i, change := range past {
		ends := i+1 == len(past) || past[i+1].at.After(from)
		if change.connected && change.at.Before(to) && ends {
			return true
		}
	}
	return false
}

// lostWithin returns when the device was disconnected between from and to.
func (s *chaosSightings) lostWithin(id fleet.DeviceID, from, to time.Time) (at time.Time, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, change := range s.changes[id] {
		if i > 0 && !change.connected && change.at.After(from) && change.at.Before(to) {
			return change.at, true
		}
	}
	return time.Time{}, false
}
