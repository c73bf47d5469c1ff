package matrix

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/broker/sim"
	"fleetd/cmd/fleetd/server"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
	"fleetd/fleet/postgres/pgtest"
)

// A side is the place of a device relative to the scope tag:lab.
type side string

const (
	inside  side = "inside"
	outside side = "outside"
)

var sides = []side{inside, outside}

const (
	liveBoard = "bread-compact-wifi" // its devices join at once
	lonely    = "toaster"            // its devices wait to join
	version   = "2.5.0"              // version of the campaigns; devices run an older one
	scopeTag  = "lab"
)

// marker is part of every text of the devices outside.
const marker = "zqxmarker"

// A world is a server, its database and its devices.
type world struct {
	t   *testing.T
	srv *server.Server
	cfg server.Config
	db  *pgxpool.Pool

	http, mqtt, admin string // addresses
	root              string // secret of the token for setting things up
	rootID            string

	people [2]fleet.Principal      // makers of the tokens: of root, and of all others
	live   map[side]fleet.DeviceID // connected
	asleep map[side]fleet.DeviceID // were connected once
	sims   map[fleet.DeviceID]*sim.Device
	ran    map[fleet.DeviceID]int // number of calls that were checked
	where  map[fleet.DeviceID]side
	paper  map[string]fleet.DeviceID // never connected, by side and use
	macs   int
	stock  map[string][]stocked // devices that have polled, by board
	log    []string             // the latest actions
	notes  int

	image, release string
	fixture        map[side]map[string]string // objects for reads
	kept           map[string]thing
	used           []string              // keys of the objects of the latest action
	owner          map[string]side       // of the objects that were set up, by id
	actors         map[string]*principal // by the id of their tokens
	clients        []string              // Client-Ids, which are secrets
	client         *http.Client
}

// newWorld starts the server and switches the devices on.
func newWorld(t *testing.T, change ...func(*server.Config)) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a whole server")
	}
	w := &world{t: t, live: map[side]fleet.DeviceID{}, asleep: map[side]fleet.DeviceID{},
		stock: map[string][]stocked{}, sims: map[fleet.DeviceID]*sim.Device{},
		ran: map[fleet.DeviceID]int{}, where: map[fleet.DeviceID]side{}, paper: map[string]fleet.DeviceID{},
		fixture: map[side]map[string]string{}, kept: map[string]thing{}, owner: map[string]side{},
		actors: map[string]*principal{},
		client: &http.Client{Timeout: time.Minute,
			Transport:     &http.Transport{MaxIdleConnsPerHost: 8, DisableCompression: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	t.Cleanup(w.client.CloseIdleConnections)
	w.cfg = server.Config{Enrolment: "code", NodeName: "matrix", Log: slog.New(slog.DiscardHandler)}
	for _, addr := range []*string{&w.cfg.HTTPAddr, &w.cfg.MQTTAddr, &w.cfg.AdminAddr} {
		var err error
		if *addr, err = fleettest.FreeAddr(); err != nil { // stays free during a restart
			t.Fatal(err)
		}
	}
	if os.Getenv("FLEETD_TEST_LOG") != "" {
		w.cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	w.cfg.DataDir, w.cfg.DatabaseURL = t.TempDir(), pgtest.URL(t)
	for _, f := range change {
		f(&w.cfg)
	}
	var err error
	if w.db, err = pgxpool.New(t.Context(), w.cfg.DatabaseURL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.db.Close)
	w.start()
	t.Cleanup(func() { w.srv.Close() })
	w.http, w.mqtt, w.admin = w.srv.HTTPAddr().String(), w.srv.MQTTAddr().String(), w.srv.AdminAddr().String()
	w.people = [2]fleet.Principal{w.person("anna"), w.person("bob")}
	token, secret, err := w.srv.Operators.NewToken(t.Context(), w.people[0], operator.TokenRequest{Name: "root",
		Role: fleet.RoleAdmin})
	if err != nil {
		t.Fatal(err)
	}
	w.root, w.rootID = secret, token.ID.String()
	w.must("POST", "/enrolment/rules", obj{"name": "bread", "action": "accept", "boards": []string{liveBoard}, "enabled": true})
	w.switchOn()
	return w
}

func (w *world) start() {
	w.t.Helper()
	var err error
	if w.srv, err = server.Start(w.t.Context(), w.cfg); err != nil {
		w.t.Fatal(err)
	}
}

// restart stops the server, and starts another with the same records and addresses.
func (w *world) restart() {
	w.t.Helper()
	w.srv.Close()
	fleettest.AwaitForks()
	w.start()
}

// person adds an operator.
func (w *world) person(name string) fleet.Principal {
	w.t.Helper()
	by := fleet.Principal{Kind: fleet.KindSystem, Name: "fleetd", Role: fleet.RoleAdmin}
	o, err := w.srv.Operators.Create(w.t.Context(), by, operator.Request{Name: name, Password: goodPassword,
		Access: operator.Access{Role: fleet.RoleAdmin}})
	if err != nil {
		w.t.Fatal(err)
	}
	return fleet.Principal{Kind: fleet.KindOperator, ID: o.ID.String(), Name: name, Role: fleet.RoleAdmin}
}

// switchOn starts two devices on each side. One goes to sleep again, the other
// stays connected.
func (w *world) switchOn() {
	w.t.Helper()
	for i, devices := range []map[side]fleet.DeviceID{w.asleep, w.live} {
		f := w.fleetOf(i)
		for j, s := range sides {
			id, err := fleet.ParseDeviceID(f.Device(j).ID())
			if err != nil {
				w.t.Fatal(err)
			}
			devices[s], w.where[id] = id, s
			w.clients = append(w.clients, f.Device(j).ClientID())
		}
		stop := w.run(f)
		w.online(devices)
		for s, id := range devices {
			w.dress(id, s)
		}
		if i == 0 {
			stop()
			w.eventually("the devices to be asleep", func() bool {
				return w.presence(devices[inside]) == "offline" && w.presence(devices[outside]) == "offline"
			})
		}
	}
}

// fleetOf returns two simulated devices: 0 the sleeping ones, 1 the connected ones.
func (w *world) fleetOf(i int) *sim.Fleet {
	w.t.Helper()
	f, err := sim.New(sim.Options{OTAURL: w.srv.URL() + "/xiaozhi/ota/", Devices: 2, Boards: []string{liveBoard},
		Seed: 7, TimeScale: 0.01, FirstMAC: fmt.Sprintf("a0:85:e3:00:%02x:01", i), RecordCalls: 1 << 14})
	if err != nil {
		w.t.Fatal(err)
	}
	return f
}

// run switches devices on until the test ends or stop is called.
func (w *world) run(f *sim.Fleet) (stop func()) {
	w.t.Helper()
	for i := range f.Len() {
		id, err := fleet.ParseDeviceID(f.Device(i).ID())
		if err != nil {
			w.t.Fatal(err)
		}
		w.sims[id], w.ran[id] = f.Device(i), 0
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	w.t.Cleanup(stop)
	return stop
}

func (w *world) presence(id fleet.DeviceID) string {
	w.t.Helper()
	return w.rest(w.root, "GET", "/devices/"+string(id), nil).str("presence")
}

// online waits until the simulated devices can be called.
func (w *world) online(devices map[side]fleet.DeviceID) {
	w.t.Helper()
	w.eventually("the devices to be online with their tools", func() bool {
		for _, id := range devices {
			d := w.rest(w.root, "GET", "/devices/"+string(id), nil)
			if d.status != 200 || d.body["presence"] != "online" || d.number("tools_count") == 0 {
				return false
			}
		}
		return true
	})
}

// dress sets the name, tags and notes of a device for its side.
func (w *world) dress(id fleet.DeviceID, s side) {
	w.t.Helper()
	tags, name := []string{scopeTag}, "plain"
	if s == outside {
		tags, name = []string{marker}, "name-"+marker
	}
	w.change(id, obj{"name": name, "tags": tags, "notes": name})
	w.where[id] = s
}

// change changes a device whose first boot poll may not be stored yet.
func (w *world) change(id fleet.DeviceID, patch obj) {
	w.t.Helper()
	w.eventually("device "+string(id)+" to change", func() bool {
		return w.rest(w.root, "PATCH", "/devices/"+string(id), patch).status == 200
	})
}

// newMAC returns a new MAC address.
func (w *world) newMAC() string {
	w.macs++
	return fmt.Sprintf("a0:85:e3:01:%02x:%02x", w.macs>>8, w.macs&255)
}

// poll sends a device's boot poll and returns the code that the device shows.
func (w *world) poll(mac, board string) (id fleet.DeviceID, code string) {
	w.t.Helper()
	client := uuid.NewString()
	w.clients = append(w.clients, client)
	body := obj{"version": 2, "language": "en-US", "flash_size": 16 << 20, "minimum_free_heap_size": "8000000", "mac_address": mac,
		"uuid": client, "chip_model_name": "esp32s3",
		"chip_info":   obj{"model": 9, "cores": 2, "revision": 2, "features": 18},
		"application": obj{"name": "xiaozhi", "version": "2.4.2", "elf_sha256": strings.Repeat("a", 64)},
		"partition_table": []obj{{"label": "otadata", "type": 1, "subtype": 0, "address": 0xd000, "size": 0x2000},
			{"label": "ota_0", "type": 0, "subtype": 16, "address": 0x20000, "size": 0x3f0000},
			{"label": "ota_1", "type": 0, "subtype": 17, "address": 0x410000, "size": 0x3f0000}},
		"ota": obj{"label": "ota_0"}, "board": obj{"type": board, "name": board, "ssid": "lab", "rssi": -50, "channel": 1,
			"ip": "192.168.4.2", "mac": mac}}
	data, err := json.Marshal(body)
	if err != nil {
		w.t.Fatal(err)
	}
	req, err := http.NewRequest("POST", "http://"+w.http+"/xiaozhi/ota/", bytes.NewReader(data))
	if err != nil {
		w.t.Fatal(err)
	}
	for k, v := range map[string]string{"Device-Id": mac, "Client-Id": client, "User-Agent": board + "/2.4.2",
		"Content-Type": "application/json"} {
		req.Header.Set(k, v)
	}
	a := w.send(req)
	if a.status != 200 {
		w.t.Fatalf("a boot poll is answered %d %s", a.status, a.text)
	}
	if id, err = fleet.ParseDeviceID(mac); err != nil {
		w.t.Fatal(err)
	}
	activation, _ := a.body["activation"].(map[string]any)
	code, _ = activation["code"].(string)
	return id, code
}

// A stocked device has sent its boot poll.
type stocked struct {
	id   fleet.DeviceID
	code string
}

// fresh returns a device of a board that has polled some time ago. Many poll at once,
// because the server stores polls a moment later.
func (w *world) fresh(board string) stocked {
	w.t.Helper()
	if len(w.stock[board]) == 0 {
		for range 20 {
			id, code := w.poll(w.newMAC(), board)
			w.stock[board] = append(w.stock[board], stocked{id, code})
		}
	}
	first := w.stock[board][0]
	w.stock[board] = w.stock[board][1:]
	return first
}

// enrolled returns a device of a side that never connects, the same for each use until it
// is spent.
func (w *world) enrolled(s side, use string) fleet.DeviceID {
	w.t.Helper()
	key := string(s) + " " + use
	if id, ok := w.paper[key]; ok {
		return id
	}
	id := w.fresh(liveBoard).id
	w.dress(id, s)
	w.paper[key] = id
	return id
}

// An obj is a JSON object.
type obj = map[string]any

// An answer is the answer to a request.
type answer struct {
	status int
	text   string
	body   obj
	header http.Header
}

func (a answer) str(name string) string {
	v, _ := a.body[name].(string)
	return v
}

func (a answer) number(name string) float64 {
	v, _ := a.body[name].(float64)
	return v
}

// items returns the items of a list.
func (a answer) items() (all []obj) {
	list, _ := a.body["items"].([]any)
	for _, item := range list {
		o, _ := item.(map[string]any)
		all = append(all, o)
	}
	return all
}

func (w *world) send(req *http.Request) answer {
	w.t.Helper()
	resp, err := w.client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	a := answer{status: resp.StatusCode, text: string(data), header: resp.Header}
	_ = json.Unmarshal(data, &a.body)
	return a
}

// request returns a request of REST. A body is an object, or text or bytes to send
// unchanged.
func (w *world) request(secret, method, path string, body any) *http.Request {
	w.t.Helper()
	var content io.Reader
	mediaType := "application/json"
	switch body := body.(type) {
	case nil:
	case []byte:
		content, mediaType = bytes.NewReader(body), "application/octet-stream"
	case string:
		content, mediaType = strings.NewReader(body), "text/csv"
	default:
		data, err := json.Marshal(body)
		if err != nil {
			w.t.Fatal(err)
		}
		content = bytes.NewReader(data)
	}
	req, err := http.NewRequest(method, "http://"+w.http+"/api/v1"+path, content)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	if content != nil {
		req.Header.Set("Content-Type", mediaType)
	}
	return req
}

// rest sends a request of REST.
func (w *world) rest(secret, method, path string, body any) answer {
	w.t.Helper()
	return w.send(w.request(secret, method, path, body))
}

// must sends a request for setting something up.
func (w *world) must(method, path string, body any) answer {
	w.t.Helper()
	a := w.rest(w.root, method, path, body)
	if a.status/100 != 2 {
		w.t.Fatalf("setting up: %s %s %v: %d %s", method, path, body, a.status, a.text)
	}
	return a
}

// exec changes the database without the server.
func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	fleettest.Eventually(w.t, what, ok)
}

// name returns a new name.
func (w *world) name(s side) string {
	w.notes++
	if s == outside {
		return fmt.Sprintf("%s-%d", marker, w.notes)
	}
	return fmt.Sprintf("thing-%d", w.notes)
}
