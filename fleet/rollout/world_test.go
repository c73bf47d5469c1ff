package rollout_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/fleet/rollout"
)

const (
	oldELF    = "0000000000000000000000000000000000000000000000000000000000000001"
	newELF    = "0000000000000000000000000000000000000000000000000000000000000002"
	otherELF  = "0000000000000000000000000000000000000000000000000000000000000003"
	imageSHA  = "aa00000000000000000000000000000000000000000000000000000000000000"
	imageSize = 1 << 20
	tools     = "tools"
)

// world is a fleet of scripted devices around an engine: the registry, broker, web server and
// calls that the engine uses.
type world struct {
	t     testing.TB
	store *memStore
	log   *slog.Logger

	mu      sync.Mutex
	engine  *rollout.Engine // the running engine
	devices map[fleet.DeviceID]*device
	sent    map[string]bool // attempts with a sent call: "deployment/attempt"
	epochs  int64
	room    int
	tick    time.Duration
	lag     time.Duration // of the evidence about a device's presence
	copies  int           // how often evidence arrives
	over    chan struct{} // closed at the end of the test
	bad     []string      // forbidden events that happened
	reboots int
	full    bool                // calls cannot be stored, except upgrade calls
	calling int                 // upgrade calls under way
	ordered fleet.FirmwareOffer // the last order, without its link and version
	rolled  []uuid.UUID

	rights register           // of the maker
	watch  func(call.Request) // sees every call; may be nil

	open  *fleet.OpenConversations
	talks *call.Interruptions // with the maximum wait
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, store: newMemStore(), devices: map[fleet.DeviceID]*device{}, sent: map[string]bool{}, room: 500,
		copies: 1, over: make(chan struct{}),
		log: slog.New(slog.DiscardHandler)}
	w.open = fleet.NewOpenConversations(fleet.OpenConversationsOptions{Free: func(id fleet.DeviceID) {
		if e := w.current(); e != nil {
			e.ConversationEnded(id)
		}
	}})
	w.talks = &call.Interruptions{Open: w.open, Bound: 2 * time.Minute}
	w.store.images[imageSHA] = firmware.Image{SHA256: imageSHA, Size: imageSize, Chip: "esp32s3", Version: "2.0.1",
		Project:   "demo",
		ELFSHA256: newELF, MaxChipRev: 65535}
	return w
}

func (w *world) options() rollout.Options {
	return rollout.Options{Leader: w.store,
		Store: w.store, Quarantines: quarantineStore{s: w.store}, Calls: w, Link: w, Presence: w, Downloads: w,
		Inventories: inventoryStore{byID: map[string]*fleet.Inventory{
			tools:         {ID: tools, Tools: []fleet.Tool{{Name: fleet.ToolUpgradeFirmware}, {Name: "self.get_system_info"}}},
			"fewer tools": {ID: "fewer tools", Tools: []fleet.Tool{{Name: fleet.ToolUpgradeFirmware}}},
		}},
		Authority: &w.rights, Rollback: w.rollBack, Conversations: w.talks, Register: w,
		PublicURL: "http://fleet.example.org", Log: w.log, Tick: w.tick,
	}
}

// Stored stores the pending polls.
func (w *world) Stored(_ context.Context, ids ...fleet.DeviceID) error {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	for _, id := range ids {
		if p, ok := w.store.polls[id]; ok {
			row := w.store.devices[id]
			row.ELFSHA256, row.Version, row.LastPoll = p.ELFSHA256, p.Version, p.LastPoll
			w.store.devices[id] = row
			delete(w.store.polls, id)
		}
	}
	return nil
}

// Runs records the build that a device reported.
func (w *world) Runs(id fleet.DeviceID, elfSHA256, version string) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	row := w.store.devices[id]
	row.ELFSHA256, row.Version = elfSHA256, version
	w.store.devices[id] = row
}

func (w *world) rollBack(_ context.Context, id uuid.UUID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rolled = append(w.rolled, id)
	return nil
}

// start runs an engine; stop ends it like a crash, except for its goroutines.
func (w *world) start() (stop func()) {
	e := rollout.New(w.options())
	w.mu.Lock()
	w.engine = e
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := e.Run(ctx); err != nil {
			w.t.Errorf("Run: %v", err)
		}
	}()
	return func() { cancel(); <-done }
}

func (w *world) setFull(full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.full = full
}

func (w *world) current() *rollout.Engine {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.engine
}

func (w *world) violated(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bad = append(w.bad, fmt.Sprintf(format, args...))
}

// add adds a device to the fleet.
func (w *world) add(id fleet.DeviceID, fault string) *device {
	d := &device{w: w, id: id, fault: fault, elf: oldELF, online: true}
	w.epochs++
	d.epoch = w.epochs
	w.devices[id] = d
	polled := time.Now().Add(-time.Hour)
	w.store.devices[id] = fleet.Device{ID: id, Board: "board-" + string(id[len(id)-1:]), Chip: "esp32s3", Version: "2.0.0",
		ELFSHA256: oldELF, Enrolment: fleet.EnrolmentEnrolled,
		InventoryID: tools, LastPoll: &polled, Layout: &fleet.FlashLayout{SlotSize: 4 << 20, FreeHeap: 100 << 10,
			Labels: []string{"assets"}}}
	return d
}

// asker is the maker of the campaigns of these tests.
var asker = fleet.Principal{Kind: fleet.KindOperator, ID: "ana", Name: "ana", Role: fleet.RoleOperator}

// plan stores a campaign over all devices, in waves of the given sizes.
func (w *world) plan(change func(*campaign.Plan), sizes ...int) campaign.Campaign {
	now := time.Now().UTC()
	p := campaign.Plan{Name: "test", Mode: firmware.ModeAuto, MaxInFlight: 10, MaxAttempts: 3, MaxReconnects: 2}
	for range sizes {
		p.Waves = append(p.Waves, campaign.WavePlan{MinSample: 1, Soak: time.Minute, Gate: campaign.GateAuto})
	}
	if change != nil {
		change(&p)
	}
	c := campaign.Campaign{ID: uuid.New(), Plan: p, State: campaign.Scheduled, EditedBy: asker, CreatedAt: now,
		Revision: 1}
	wave, left := 0, sizes[0]
	for _, id := range w.ids() {
		for left == 0 && wave < len(sizes)-1 {
			wave++
			left = sizes[wave]
		}
		left--
		device := w.store.devices[id]
		d := campaign.Deployment{ID: uuid.New(), Campaign: c.ID, Device: id, Board: device.Board, Wave: wave,
			State: campaign.DeploymentPending, Image: imageSHA,
			ImageSize: imageSize, TargetELF: newELF, ToVersion: "2.0.1", FromELF: oldELF, FromVersion: "2.0.0", CreatedAt: now,
			UpdatedAt: now, Revision: 1}
		w.store.deployments[d.ID] = d
		c.Targets++
	}
	for i, n := range sizes {
		w.store.waves[c.ID] = append(w.store.waves[c.ID], campaign.Wave{Campaign: c.ID, Number: i, Plan: p.Waves[i], Size: n,
			State: campaign.WavePending})
	}
	w.seal(&c)
	w.store.campaigns[c.ID] = c
	return c
}

// seal sets the digest of the campaign's plan to match the stored rows.
func (w *world) seal(c *campaign.Campaign) {
	c.Images = []string{imageSHA}
	c.Digest = campaign.Digest(c.Plan, w.store.where(func(d campaign.Deployment) bool { return d.Campaign == c.ID }),
		c.Images)
}

func (w *world) ids() []fleet.DeviceID {
	ids, _ := w.store.DeviceIDs(context.Background(), fleet.Query{})
	return ids
}

// edit changes a campaign's row as an operator does.
func (w *world) edit(id uuid.UUID, change func(*campaign.Campaign)) {
	w.store.mu.Lock()
	c := w.store.campaigns[id]
	change(&c)
	c.Revision++
	w.store.campaigns[id] = c
	w.store.mu.Unlock()
	w.current().Wake()
}

// resume resumes a paused campaign in spite of its failures.
func (w *world) resume(id uuid.UUID) {
	now := time.Now()
	w.edit(id, func(c *campaign.Campaign) {
		c.State, c.PauseReason, c.OverruledAt = campaign.Running, "", &now
	})
}

// await waits until the campaign is in one of the states.
func (w *world) await(id uuid.UUID, within time.Duration, states ...campaign.State) campaign.Campaign {
	w.t.Helper()
	var c campaign.Campaign
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(time.Second) {
		c, _ = w.store.Campaign(context.Background(), id)
		for _, s := range states {
			if c.State == s {
				synctest.Wait() // its effects are complete and can be checked
				return c
			}
		}
	}
	w.t.Fatalf("campaign is %s (%s: %s) after %v, want %v; deployments: %v", c.State, c.PauseReason, c.Reason, within,
		states, w.outcomes(id))
	return c
}

// sleep lets time pass, and waits until everything due in it is done.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// outcomes returns the states of a campaign's deployments by device.
func (w *world) outcomes(id uuid.UUID) map[fleet.DeviceID]campaign.DeploymentState {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	all := map[fleet.DeviceID]campaign.DeploymentState{}
	for _, d := range w.store.deployments {
		if d.Campaign == id {
			all[d.Device] = d.State
		}
	}
	return all
}

func (w *world) deployment(campaignID uuid.UUID, id fleet.DeviceID) campaign.Deployment {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	for _, d := range w.store.deployments {
		if d.Campaign == campaignID && d.Device == id {
			return d
		}
	}
	w.t.Fatalf("device %s has no deployment", id)
	return campaign.Deployment{}
}

// Make makes calls to the scripted devices.
func (w *world) Make(ctx context.Context, r call.Request) (fleet.Call, error) {
	w.mu.Lock()
	d := w.devices[r.Device]
	if w.watch != nil {
		w.watch(r)
	}
	full := w.full && r.Tool != fleet.ToolUpgradeFirmware
	w.mu.Unlock()
	if full {
		return fleet.Call{}, fmt.Errorf("%w: %w", fleet.ErrNotStored, fleet.ErrUnavailable)
	}
	now := time.Now().UTC()
	c := fleet.Call{ID: uuid.New(), Device: r.Device, Tool: r.Tool, State: fleet.CallSucceeded, SentAt: &now}
	if call.Interrupts(r.Tool) && w.refusesToInterrupt(r) {
		return fleet.Call{}, call.ErrTalking
	}
	if r.Tool == fleet.ToolUpgradeFirmware {
		return w.upgrade(d, r, c)
	}
	if !d.isOnline() {
		c.State, c.SentAt = fleet.CallOffline, nil
		return c, nil
	}
	switch r.Tool {
	case fleet.ToolReboot:
		w.mu.Lock()
		w.reboots++
		w.mu.Unlock()
		go d.reboot(time.Second)
		return c, nil
	case "self.get_system_info":
		time.Sleep(100 * time.Millisecond)
		c.Result = text(fmt.Sprintf(`{"ssid":"a"b","application":{"elf_sha256":"%s"}}`, d.running()))
	default:
		time.Sleep(100 * time.Millisecond)
		if d.fault == "unhealthy" && d.running() == newELF || d.fault == "unhealthy before" {
			c.State, c.Error = fleet.CallToolError, &fleet.CallError{Code: fleet.CodeToolError, Message: "speaker gone"}
		}
		c.Result = text(`{"ok":true}`)
	}
	return c, nil
}

// talk starts a conversation of the given length, unless the device is in one already.
func (w *world) talk(id fleet.DeviceID, length time.Duration) {
	if _, talks := w.open.Of(id); talks {
		return
	}
	c := fleet.Conversation{ID: uuid.Must(uuid.NewV7()), Device: id, Begin: time.Now().UTC()}
	w.open.Begin(c)
	time.AfterFunc(length, func() { w.open.End(id, c.ID) })
}

// refusesToInterrupt reports, as [call.Service] does, whether the call would interrupt a
// conversation. The engine may interrupt only after it has waited.
func (w *world) refusesToInterrupt(r call.Request) bool {
	c, talks := w.open.Of(r.Device)
	switch {
	case r.Interrupt || !r.UnlessTalking:
		w.violated("%s is not let finish its conversation", r.Device)
	case talks && r.Outwaited != c.ID:
		if r.Firmware != nil {
			r.Firmware.Notify(fleet.Evidence{At: time.Now().UTC(), Kind: fleet.EvidenceNotSent,
				Code: fleet.CodeTalking})
		}
		return true
	case talks && time.Since(c.Since) < w.talks.Bound:
		w.violated("%s is interrupted after %v", r.Device, time.Since(c.Since))
	}
	return false
}

func text(s string) json.RawMessage {
	raw, _ := json.Marshal(map[string]any{"content": []any{map[string]string{"type": "text", "text": s}}})
	return raw
}

func (w *world) upgrade(d *device, r call.Request, c fleet.Call) (fleet.Call, error) {
	failed := func(kind fleet.EvidenceKind, code, detail string) {
		r.Firmware.Notify(fleet.Evidence{At: time.Now().UTC(), Kind: kind, Code: code, Detail: detail})
	}
	sees := func(kind fleet.EvidenceKind, detail string) {
		r.Firmware.Notify(fleet.Evidence{At: time.Now().UTC(), Kind: kind, Detail: detail})
	}
	o := r.Firmware
	w.order(fleet.FirmwareOffer{SHA256: o.SHA256, Size: o.Size, Job: o.Job, Manifest: o.Manifest, Signature: o.Signature})
	l := w.linkOf(r.Firmware.URL)
	w.checkSend(l)
	switch {
	case !d.isOnline():
		failed(fleet.EvidenceNotSent, fleet.CodeOffline, "not connected")
		c.State = fleet.CallOffline
		return c, nil
	case d.fault == "busy":
		failed(fleet.EvidenceNotSent, fleet.CodeBusy, "line full")
		return c, nil
	case d.fault == "refuses call":
		sees(fleet.EvidenceSent, "")
		failed(fleet.EvidenceRefused, fleet.CodeToolError, "no such tool")
		return c, nil
	}
	sees(fleet.EvidenceSent, "")
	go d.install(l, sees)
	w.countCalls(1)
	defer w.countCalls(-1)
	select {
	case <-r.Firmware.Done:
	case <-w.over:
	}
	return c, nil
}

func (w *world) countCalls(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calling += n
}

func (w *world) order(o fleet.FirmwareOffer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o.URL, o.Version = "", ""
	w.ordered = o
}

func (w *world) linkOf(url string) firmware.Link {
	token := strings.TrimSuffix(strings.TrimPrefix(url, "http://fleet.example.org/d/"), "/firmware.bin")
	sum := sha256.Sum256([]byte(token))
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	l, ok := w.store.links[string(sum[:])]
	if !ok {
		w.t.Errorf("link %s is not on record", url)
	}
	return l
}

// checkSend checks that everything required is stored before the call.
func (w *world) checkSend(l firmware.Link) {
	w.store.mu.Lock()
	row := w.store.deployments[l.Deployment]
	w.store.mu.Unlock()
	if row.Attempt < l.Attempt {
		w.violated("attempt %d of %s was sent while its row says %s, attempt %d", l.Attempt, l.Device, row.State, row.Attempt)
	}
	key := fmt.Sprintf("%s/%d", l.Deployment, l.Attempt)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sent[key] {
		w.bad = append(w.bad, "sent twice: "+key)
	}
	w.sent[key] = true
}

// Ping answers for the broker.
func (w *world) Ping(ctx context.Context, id fleet.DeviceID) (int64, error) {
	time.Sleep(50 * time.Millisecond)
	w.mu.Lock()
	d := w.devices[id]
	w.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.online {
		return 0, fleet.ErrOffline
	}
	return d.epoch, nil
}

// Epoch answers for the broker.
func (w *world) Epoch(id fleet.DeviceID) (int64, bool) {
	w.mu.Lock()
	d := w.devices[id]
	w.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.epoch, d.online
}

// State answers for the presence of devices.
func (w *world) State(id fleet.DeviceID) (fleet.Presence, time.Time, fleet.Reason) {
	time.Sleep(w.lag)
	w.mu.Lock()
	d := w.devices[id]
	w.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.online {
		return fleet.PresenceOnline, d.since, fleet.Reason{}
	}
	return fleet.PresenceOffline, d.since, fleet.Reason{}
}

// Revoke need not do anything: the devices check the store after each piece.
func (w *world) Revoke(...uuid.UUID) {}

// Room returns how many downloads have a place.
func (w *world) Room() int { return w.room }
