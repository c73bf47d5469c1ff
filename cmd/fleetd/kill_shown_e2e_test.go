package main

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fleetd/broker/sim"
	"fleetd/broker/voice/voicetest"
	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

// Facts that fleetd has shown before a kill are still true after the next start: presence,
// conflicts, vitals, keys in use, conversations, and the end of a device's old password.
// Meanwhile boards join, connect, report and talk, the database writes slowly, and other
// clients read without a pause.
func TestWhatWasShownOutlivesAKill(t *testing.T) {
	t.Parallel()
	up := voicetest.Start(voicetest.Options{Secret: "s3cret", Echo: true, MCP: true})
	defer up.Close()
	flags := []string{"--voice-upstream", up.URL(true), "--voice-secret", "s3cret", "--voice-udp-addr", "127.0.0.1:0",
		"--voice-udp-endpoint", "127.0.0.1:0"}
	d := newDaemon(t, flags...)
	const talkers = 2
	f := d.simulate(sim.Options{Devices: talkers, Seed: 7, TimeScale: 0.05, BootDelay: 10 * time.Millisecond,
		Speech: func(string, int) []byte { return []byte("hello") }})
	d.listed(talkers)
	d.run("key", "rotate", "--confirm", "rotate")
	d.eventually("aware of the rotation", func() bool { return d.rotation().State == "running" })
	keyed := d.keyedBoard("02:f1:ee:00:0f:01")
	d.slowWrites("devices", "rotation_devices", "device_vitals", "conversations")

	load, end := context.WithCancel(t.Context())
	defer end()
	var running sync.WaitGroup
	for i := range talkers {
		running.Go(func() {
			for load.Err() == nil {
				f.Device(i).Talk()
				time.Sleep(500 * time.Millisecond)
				f.Device(i).EndTalk()
				time.Sleep(500 * time.Millisecond)
			}
		})
	}
	var boards atomic.Int64
	for range 8 {
		running.Go(func() {
			for load.Err() == nil {
				d.join(int(boards.Add(1)))
			}
		})
	}
	s := newShown()
	for _, look := range s.looks() {
		running.Go(func() {
			for load.Err() == nil && look(d) == nil {
			}
		})
	}
	select {
	case <-s.enough:
	case <-time.After(time.Minute):
		t.Fatalf("too little was shown: %s", s)
	}
	if code := d.connectWith(keyed.proved()); code != 0 {
		t.Fatalf("a board with a key is refused with %d", code)
	}
	d.kill()
	end()
	running.Wait()
	t.Logf("shown: %s", s)

	d.start(flags...)
	s.check(d)
	if code := d.connectWith(keyed.before); code == 0 {
		t.Error("the password from before the key is good again")
	}
	if code := d.connectWith(keyed.proved()); code != 0 {
		t.Errorf("the board itself is refused with %d", code)
	}
}

// shown records the facts that were shown last.
type shown struct {
	enough chan struct{} // closed once the kill may come

	mu            sync.Mutex
	devices       map[string]shownDevice
	vitals        map[string]int64 // uptime, by device
	rotation      rotationJSON
	conversations map[string]shownConversation
}

type shownDevice struct {
	ID, Presence, Transport string
	Since                   time.Time `json:"presence_since"`
	LastSeen                time.Time `json:"last_seen"`
	Conflict                *struct{ Evidence []string }
}

type shownConversation struct {
	ID, Ended string
	Audio     struct{ Received, Sent int }
}

func newShown() *shown {
	return &shown{enough: make(chan struct{}), devices: make(map[string]shownDevice), vitals: make(map[string]int64),
		conversations: make(map[string]shownConversation)}
}

func (s *shown) looks() []func(*daemon) error {
	return []func(*daemon) error{s.seeDevices, s.seeVitals, s.seeRotation, s.seeConversations}
}

// note records a fact, and whether there is enough of each kind.
func (s *shown) note(set func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	set()
	conflicts, ended := 0, 0
	for _, v := range s.devices {
		if v.Conflict != nil {
			conflicts++
		}
	}
	for _, c := range s.conversations {
		if c.Ended != "" {
			ended++
		}
	}
	const few = 5
	select {
	case <-s.enough:
	default:
		if conflicts >= few && len(s.vitals) >= few && s.rotation.Devices.New >= few && ended >= few {
			close(s.enough)
		}
	}
	return nil
}

func (s *shown) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%d devices, vitals of %d, %d with the new key, %d conversations", len(s.devices), len(s.vitals),
		s.rotation.Devices.New, len(s.conversations))
}

func (s *shown) seeDevices(d *daemon) error {
	all, err := seen[list[shownDevice]](d, "/devices?limit=500")
	if err != nil {
		return err
	}
	return s.note(func() {
		for _, v := range all.Items {
			s.devices[v.ID] = v
		}
	})
}

// seeVitals reads the vitals of devices that have shown none so far.
func (s *shown) seeVitals(d *daemon) error {
	s.mu.Lock()
	ids := slices.DeleteFunc(slices.Collect(maps.Keys(s.devices)), func(id string) bool { return s.vitals[id] != 0 })
	s.mu.Unlock()
	for _, id := range ids {
		v, err := seen[struct {
			UptimeMS int64 `json:"uptime_ms"`
		}](d, "/devices/"+id+"/vitals")
		if err != nil {
			return err
		}
		if v.UptimeMS != 0 {
			_ = s.note(func() { s.vitals[id] = v.UptimeMS })
		}
	}
	return nil
}

func (s *shown) seeRotation(d *daemon) error {
	r, err := seen[rotationJSON](d, "/key-rotation")
	if err != nil {
		return err
	}
	return s.note(func() { s.rotation = r })
}

func (s *shown) seeConversations(d *daemon) error {
	all, err := seen[list[shownConversation]](d, "/conversations?limit=500")
	if err != nil {
		return err
	}
	return s.note(func() {
		for _, c := range all.Items {
			s.conversations[c.ID] = c
		}
	})
}

// seen returns an answer of fleetd, which may be killed meanwhile.
func seen[T any](d *daemon, path string) (answer T, err error) {
	req, err := http.NewRequest("GET", "http://"+d.http+"/api/v1"+path, nil)
	if err != nil {
		return answer, err
	}
	req.Header.Set("Authorization", "Bearer "+d.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer, err
	}
	defer resp.Body.Close()
	var whole T
	if err := json.NewDecoder(resp.Body).Decode(&whole); err != nil {
		return answer, err
	}
	return whole, nil
}

// check compares the recorded facts with those that fleetd shows now.
func (s *shown) check(d *daemon) {
	d.t.Helper()
	now := newShown()
	for _, look := range now.looks() {
		if err := look(d); err != nil {
			d.t.Fatal(err)
		}
	}
	for id, was := range s.devices {
		is := now.devices[id]
		if is.ID == "" || was.Transport != "" && is.Transport != was.Transport || is.LastSeen.Before(was.LastSeen) {
			d.t.Errorf("%s was shown as %+v, and is %+v", id, was, is)
		}
		if was.Conflict != nil && (is.Conflict == nil || len(is.Conflict.Evidence) < len(was.Conflict.Evidence)) {
			d.t.Errorf("%s had a conflict, %v, and has %+v", id, was.Conflict.Evidence, is.Conflict)
		}
		if was.Presence == "online" && !d.wasOnline(id, was.Since) {
			d.t.Errorf("%s was online since %v, and its time line does not say so", id, was.Since)
		}
		if was, is := s.vitals[id], now.vitals[id]; was != 0 && was != is {
			d.t.Errorf("%s had an uptime of %d ms, and has one of %d", id, was, is)
		}
	}
	if was, is := s.rotation.Devices.New, now.rotation.Devices.New; is < was {
		d.t.Errorf("%d devices were shown to use the new key, and %d are", was, is)
	}
	for id, was := range s.conversations {
		is, ok := now.conversations[id]
		if !ok || is.Ended == "" || was.Ended != "" && is != was {
			d.t.Errorf("conversation %s was shown as %+v, and is %+v", id, was, is)
		}
	}
}

func (d *daemon) wasOnline(id string, since time.Time) bool {
	var all list[struct {
		At         time.Time
		Kind, Code string
	}]
	d.rest("GET", "/devices/"+id+"/timeline?kinds=presence&limit=500", nil, &all)
	for _, e := range all.Items {
		if e.Code == "online" && e.At.Equal(since) {
			return true
		}
	}
	return false
}

// join lets the nth board join. Every other board connects and reports; for each of the
// rest, another unit polls under the same Device-Id. The kill may come first.
func (d *daemon) join(n int) {
	id := fmt.Sprintf("02:00:00:00:%02x:%02x", n/256, n%256)
	a, err := d.poll(id, boardClientID)
	if err != nil || a.MQTT.Password == "" {
		return
	}
	if n%2 == 0 {
		_, _ = d.poll(id, "00000000-6f0a-4c7e-9d0e-2d6f1f7a9b10")
		_, _ = d.poll(id, boardClientID)
		return
	}
	conn, _, err := d.dial(a.MQTT)
	if err != nil {
		return
	}
	topic := a.MQTT.Topic
	body := append([]byte{byte(len(topic) >> 8), byte(len(topic))}, topic...)
	body = append(body, `{"session_id":"","type":"mcp","payload":{"jsonrpc":"2.0","method":"notifications/telemetry",`+
		`"params":{"uptime_s":`+strconv.Itoa(60+n)+`}}}`...)
	_, _ = conn.Write(packet(0x30, body))
}

// A keyedBoard has a key to prove.
type keyedBoard struct {
	key    ed25519.PrivateKey
	before credential // from the time before it had the key
	own    credential
}

func (d *daemon) keyedBoard(mac string) *keyedBoard {
	d.t.Helper()
	id, err := fleet.ParseDeviceID(mac)
	if err != nil {
		d.t.Fatal(err)
	}
	b := &keyedBoard{key: ed25519.NewKeyFromSeed([]byte(strings.Repeat("k", ed25519.SeedSize))), before: d.pollAs(mac)}
	public := base64.StdEncoding.EncodeToString(b.key.Public().(ed25519.PublicKey))
	a, err := d.poll(mac, boardClientID, "Device-Key", public)
	if err == nil {
		signature := ed25519.Sign(b.key, enrolment.KeyMessage(id, boardClientID, a.Key.Challenge))
		a, err = d.poll(mac, boardClientID, "Device-Key", public, "Device-Key-Challenge", a.Key.Challenge,
			"Device-Key-Signature", base64.StdEncoding.EncodeToString(signature))
	}
	if b.own = a.MQTT; err != nil || b.own.Password == "" {
		d.t.Fatalf("%v: no credentials for a board with a key", err)
	}
	return b
}

// proved returns the board's own credentials with a proof for the current time.
func (b *keyedBoard) proved() credential {
	c, at := b.own, time.Now().UnixMilli()
	signature := ed25519.Sign(b.key, enrolment.ConnectMessage(c.ClientID, c.Username, at))
	c.Password += fmt.Sprintf(".%d.%s", at, base64.StdEncoding.EncodeToString(signature))
	return c
}
