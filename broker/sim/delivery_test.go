package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"fleetd/broker"
	"fleetd/broker/edge"
	"fleetd/fleet"
	"fleetd/fleet/blobs"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
	"fleetd/fleet/fleettest"
	"fleetd/web/device"
)

// A delivery is the server's side of an upgrade of one simulated device, from the broker to the
// link, with stores in memory.
type delivery struct {
	t          *testing.T
	http       *httptest.Server
	broker     *broker.Broker
	edge       *edge.Edge
	enrolments *enrolment.Service
	presences  *fleet.Presences
	devices    fleettest.Devices
	calls      *call.Service
	downloads  *firmware.Downloads
	device     *Device
	deployment campaign.Deployment

	mu    sync.Mutex
	links map[string]firmware.Link
	story []string // evidence of any kind, as it came; without progress
	offer func(enrolment.BootPoll, bool) *fleet.FirmwareOffer
}

func (d *delivery) note(kind fleet.EvidenceKind) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if kind != fleet.EvidenceBytes {
		d.story = append(d.story, string(kind))
	}
}

func (d *delivery) evidence() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.story)
}

func (d *delivery) saw(kind fleet.EvidenceKind) bool {
	return slices.Contains(d.evidence(), string(kind))
}

// inOrder moves the end of a transfer right after its beginning: the server may notice the end
// before or after the device's next step.
func inOrder(story []string) (all []string) {
	end := slices.IndexFunc(story, func(s string) bool { return s == "downloaded" || s == "cut" })
	for i, s := range story {
		if i == end {
			continue
		}
		if all = append(all, s); s == "get" && end > i {
			all = append(all, story[end])
		}
	}
	return all
}

// newDelivery runs a delivery with a 300 KB image of version 2.9.0 for an S3 board.
func newDelivery(t *testing.T, fault string) (d *delivery, elf string) {
	d = &delivery{t: t, links: map[string]firmware.Link{}, offer: func(enrolment.BootPoll,
		bool) *fleet.FirmwareOffer {
		return nil
	}}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	d.enrolments, err = enrolment.New(enrolment.Options{Store: memory{}, Mode: fleet.EnrolOpen,
		Key: make([]byte, enrolment.KeySize)})
	must(err)
	d.presences = fleet.NewPresences(fleet.PresenceOptions{Store: memory{}, Tap: func(_ fleet.DeviceID,
		e fleet.Evidence) {
		d.note(e.Kind)
	}})
	d.broker, err = broker.New(broker.Options{Devices: deviceSide{d}})
	must(err)
	d.edge, err = edge.New(edge.Options{Addr: "127.0.0.1:0", Core: d.broker, Node: "test"})
	must(err)
	store, err := blobs.OpenDir(t.TempDir())
	must(err)
	t.Cleanup(func() { store.Close() })
	image, elf := makeImage(esp32s3.imageID, "2.9.0", 300_000)
	key, err := store.PutFile(t.Context(), bytes.NewReader(image), int64(len(image)))
	must(err)
	options := firmware.DownloadsOptions{Links: d, Blobs: store, Observe: func(t firmware.Transfer) { d.note(t.Kind) }}
	if strings.HasPrefix(fault, "cut") { // else the socket may have taken all of the image before the device cuts it
		options.BytesPerSecond = 100_000
	}
	d.downloads = firmware.NewDownloads(options)
	d.calls = call.New(call.Options{Store: &fleettest.CallStore{}, Targets: fleet.NewTargets(&d.devices,
		&d.devices),
		Link: d.broker, Watcher: d.presences, Events: &fleet.Events{}})
	answers, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: d.edge.Addr().String()})
	must(err)
	router := chi.NewRouter()
	polls := enrolment.NewBootPolls(enrolment.BootPollsOptions{Enrolments: d.enrolments, Presences: d.presences, Offers: d,
		Answers: answers})
	device.New(device.Options{Enrolments: d.enrolments, BootPolls: polls, Downloads: d.downloads}).Routes(router)
	d.http = httptest.NewUnstartedServer(router)
	d.http.Config.ConnContext = device.WithConn
	d.http.Start()
	t.Cleanup(d.http.Close)
	d.deployment = campaign.Deployment{ID: uuid.Must(uuid.NewV7()), Attempt: 1, Image: key, ImageSize: int64(len(image)),
		TargetELF: elf}
	d.run(fault)
	return d, elf
}

func (d *delivery) run(fault string) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, part := range []func(context.Context) error{d.broker.Run, d.edge.Run} {
		wg.Go(func() {
			if err := part(ctx); err != nil {
				d.t.Error(err)
			}
		})
	}
	faults, err := ParseFaults(fault)
	if err != nil {
		d.t.Fatal(err)
	}
	f, err := New(Options{OTAURL: d.http.URL + "/xiaozhi/ota/", Boards: []string{"bread-compact-wifi"}, TimeScale: 0.02,
		Faults: faults})
	if err != nil {
		d.t.Fatal(err)
	}
	d.device = f.Device(0)
	simulated, off := context.WithCancel(context.Background())
	var devices sync.WaitGroup
	devices.Go(func() {
		if err := f.Run(simulated); err != nil {
			d.t.Error(err)
		}
	})
	d.t.Cleanup(func() {
		off()
		devices.Wait()
		d.calls.Shutdown()
		cancel()
		wg.Wait()
	})
	id := d.id()
	fleettest.Eventually(d.t, "a device with tools", func() bool {
		got, err := d.devices.Device(context.Background(), id)
		return err == nil && got.InventoryID != ""
	})
}

func (d *delivery) id() fleet.DeviceID {
	id, err := fleet.ParseDeviceID(d.device.id.mac)
	if err != nil {
		d.t.Fatal(err)
	}
	return id
}

// newLink returns the link of an attempt.
func (d *delivery) newLink() (url string) {
	l, url := firmware.NewLink(d.http.URL, d.deployment.Link(), time.Minute, time.Now())
	d.mu.Lock()
	defer d.mu.Unlock()
	d.links[string(l.TokenHash)] = l
	return url
}

func (d *delivery) Poll(_ context.Context, p enrolment.BootPoll, first bool) *fleet.FirmwareOffer {
	d.mu.Lock()
	offer := d.offer
	d.mu.Unlock()
	return offer(p, first)
}

func (d *delivery) FirmwareLink(_ context.Context, hash []byte, _ time.Time) (firmware.Link, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l, ok := d.links[string(hash)]
	if !ok {
		return l, fleet.ErrNotFound
	}
	return l, nil
}

func (d *delivery) FinishFirmwareLink(_ context.Context, hash []byte, _ time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.links, string(hash))
	return nil
}

// deviceSide connects the domain to the broker, as fleetd does.
type deviceSide struct{ *delivery }

func (s deviceSide) Authenticate(clientID, username string, password []byte, remoteAddr string) (fleet.DeviceID,
	error) {
	return s.enrolments.Authenticate(clientID, username, password, remoteAddr)
}
func (s deviceSide) AuthenticateToken(id fleet.DeviceID, clientID, token, addr string) (string, error) {
	return s.enrolments.AuthenticateToken(id, clientID, token, addr)
}
func (s deviceSide) Connected(c fleet.Connection) { s.presences.Connected(c) }
func (s deviceSide) Adopted(fleet.Connection)     {}

func (s deviceSide) Disconnected(c fleet.Connection, clean bool, cause fleet.Cause) {
	s.presences.Disconnected(c, clean, cause)
}
func (s deviceSide) Seen(id fleet.DeviceID)      { s.presences.Seen(id) }
func (s deviceSide) Responded(id fleet.DeviceID) { s.presences.Responded(id) }
func (s deviceSide) Unresponsive(c fleet.Connection, cause fleet.Cause) {
	s.presences.Unresponsive(c, cause)
}
func (s deviceSide) AnsweredLate(fleet.DeviceID, int32, func(string) fleet.Answer) bool {
	return false
}
func (s deviceSide) NeedsListing(fleet.DeviceID) bool                 { return true }
func (s deviceSide) IsSoftware(fleet.DeviceID) bool                   { return false }
func (s deviceSide) Notified(fleet.DeviceID, string, json.RawMessage) {}
func (s deviceSide) SaveListing(_ context.Context, l fleet.ToolListing) error {
	s.devices.PutInventory(l.Inventory)
	s.devices.Put(fleet.Device{ID: l.Device, Enrolment: fleet.EnrolmentEnrolled, InventoryID: l.Inventory.ID})
	return nil
}

// memory is a store that keeps nothing: the services have their rows in memory.
type memory struct{}

func (memory) Admissions(context.Context) ([]enrolment.Admission, error)          { return nil, nil }
func (memory) SavePolls(context.Context, []enrolment.PollRecord) error            { return nil }
func (memory) DropWaiting(context.Context, []fleet.DeviceID) error                { return nil }
func (memory) ForgetWaiting(context.Context, time.Time) ([]fleet.DeviceID, error) { return nil, nil }
func (memory) SavePresence(context.Context, []fleet.PresenceChange) error         { return nil }
func (memory) SavePresenceSample(context.Context, time.Time) error                { return nil }
func (memory) LoseEdge(context.Context, string, []fleet.DeviceID, fleet.Reason, time.Time) ([]fleet.DeviceID,
	error) {
	return nil, nil
}
func (memory) ResetPresence(context.Context, []fleet.DeviceID, []string, fleet.Reason, time.Time) (int64, error) {
	return 0, nil
}
func (memory) PresenceSamples(context.Context, time.Time) ([]fleet.PresenceSample, error) {
	return nil, nil
}
func (memory) CreateDevice(context.Context, fleet.Principal, enrolment.Admission, string, time.Time) error {
	return nil
}
func (memory) SaveAdmission(context.Context, fleet.Principal, string, enrolment.Admission, time.Time) error {
	return nil
}

// TestPushedUpgrade has a campaign call self.upgrade_firmware, and checks all the evidence that
// the server collects.
func TestPushedUpgrade(t *testing.T) {
	success := "sent get downloaded disconnect boot_poll connect"
	tests := []struct {
		fault string
		story string // what must have been observed, in this order
		want  fleet.CallState
		code  string
	}{
		{"", success, fleet.CallSucceeded, ""},
		{"silent-accept", "sent", fleet.CallUnknown, "attempt_over"},
		{"no-get", "sent answer", fleet.CallUnknown, "attempt_over"},
		{"cut=30", "sent get cut answer", fleet.CallUnknown, "attempt_over"},
		{"late-true", "sent get downloaded answer", fleet.CallUnknown, "attempt_over"},
		{"wrong-build", success, fleet.CallToolError, "not_installed"},
		{"rollback", success, fleet.CallToolError, "not_installed"},
		{"poll-without-mqtt", "sent get downloaded disconnect boot_poll", fleet.CallSucceeded, ""},
		{"mqtt-without-poll", "sent get downloaded disconnect connect", fleet.CallUnknown, "attempt_over"},
		{"error", "sent refused", fleet.CallToolError, "tool_error"},
	}
	for _, tt := range tests {
		t.Run(tt.fault, func(t *testing.T) {
			t.Parallel()
			d, elf := newDelivery(t, tt.fault)
			d.mu.Lock()
			d.story = nil // boot and first connection
			d.mu.Unlock()
			over := make(chan struct{})
			c, err := d.calls.Start(t.Context(), call.Request{Device: d.id(), Tool: fleet.ToolUpgradeFirmware,
				Actor: fleet.Principal{Kind: fleet.KindCampaign, ID: "c", Name: "2.9", Role: fleet.RoleOperator},
				Firmware: &call.FirmwareOrder{URL: d.newLink(), ELFSHA256: elf, Timeout: time.Minute, Done: over,
					Notify: func(e fleet.Evidence) { d.note(e.Kind) }}})
			if err != nil {
				t.Fatal(err)
			}
			want := strings.Fields(tt.story)
			fleettest.Eventually(t, tt.story, func() bool { return len(d.evidence()) >= len(want) })
			time.Sleep(100 * time.Millisecond) // nothing more may come
			close(over)
			fleettest.Eventually(t, "the outcome", func() bool {
				c, err = d.calls.Get(t.Context(), c.ID)
				return err != nil || c.State.Final()
			})
			code := ""
			if c.Error != nil {
				code = c.Error.Code
			}
			if err != nil || c.State != tt.want || code != tt.code {
				t.Errorf("%s %q, %v; want %s %q", c.State, code, err, tt.want, tt.code)
			}
			if diff := cmp.Diff(inOrder(want), inOrder(d.evidence())); diff != "" {
				t.Errorf("observed (-want +got)\n%s", diff)
			}
		})
	}
}

// TestOfferedDelivery offers the upgrade in the answer to a boot poll, once the running build is
// confirmed.
func TestOfferedDelivery(t *testing.T) {
	tests := []struct {
		fault, story string
		installed    bool
	}{
		{"", "disconnect boot_poll get downloaded boot_poll connect", true},
		{"cut=30", "disconnect boot_poll get cut connect", false},
	}
	for _, tt := range tests {
		t.Run(tt.fault, func(t *testing.T) {
			t.Parallel()
			d, elf := newDelivery(t, tt.fault)
			d.mu.Lock()
			d.story = nil
			d.offer = func(p enrolment.BootPoll, first bool) *fleet.FirmwareOffer {
				if first != (p.ELFSHA256 == elf) {
					t.Errorf("first boot %v of %s", first, p.Version)
				}
				if first {
					return nil
				}
				return &fleet.FirmwareOffer{Version: "2.9.0", URL: d.newLink()}
			}
			d.mu.Unlock()
			if _, err := d.calls.Start(t.Context(), call.Request{Device: d.id(), Tool: fleet.ToolReboot,
				Actor: fleet.Principal{Kind: fleet.KindOperator, ID: "1", Name: "ann", Role: fleet.RoleOperator}}); err != nil {
				t.Fatal(err)
			}
			want := strings.Fields(tt.story)
			fleettest.Eventually(t, "the device on MQTT again", func() bool {
				return d.saw(fleet.EvidenceConnect) && len(d.evidence()) >= len(want)
			})
			if diff := cmp.Diff(inOrder(want), inOrder(d.evidence())); diff != "" {
				t.Errorf("observed (-want +got)\n%s", diff)
			}
			if runs := d.device.Firmware(); (runs.ElfSHA256 == elf) != tt.installed || runs.Pending {
				t.Errorf("runs %+v", runs)
			}
		})
	}
}
