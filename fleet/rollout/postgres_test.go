package rollout_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
	"fleetd/fleet/rollout"
)

// pgFleet is a fleet of quick devices around an engine on a real database.
type pgFleet struct {
	t     testing.TB
	store *postgres.Store
	image firmware.Image

	mu     sync.Mutex
	engine *rollout.Engine
	faults map[fleet.DeviceID]string
	sent   map[uuid.UUID]int // calls by deployment
	elf    map[fleet.DeviceID]string
	work   sync.WaitGroup
	over   chan struct{}

	timers campaign.DeploymentTimers
	ahead  atomic.Int64 // of the engine's clock and the devices', in nanoseconds
}

// now is the fleet's time.
func (f *pgFleet) now() time.Time { return time.Now().Add(time.Duration(f.ahead.Load())).UTC() }

func newPGFleet(t testing.TB, n int, fault func(i int) string) *pgFleet {
	db, err := postgres.Open(t.Context(), pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	f := &pgFleet{t: t, store: postgres.New(db, postgres.Options{}), faults: map[fleet.DeviceID]string{},
		sent: map[uuid.UUID]int{}, elf: map[fleet.DeviceID]string{}, over: make(chan struct{}),
		timers: campaign.DefaultTimers}
	f.image = firmware.Image{SHA256: strings.Repeat("ab", 32), Size: 1 << 20, Chip: "esp32s3", Version: "2.5.0",
		Project: "demo", ELFSHA256: newELF,
		MaxChipRev: 65535, CreatedAt: time.Now().UTC(), UploadedBy: by}
	if _, _, err := f.store.CreateImage(t.Context(), by, f.image); err != nil {
		t.Fatal(err)
	}
	var polls []enrolment.PollRecord
	now := time.Now().UTC()
	for i := range n {
		id := fleet.DeviceID(fmt.Sprintf("d%05d", i))
		f.faults[id] = fault(i)
		polls = append(polls, enrolment.PollRecord{
			Poll: enrolment.BootPoll{Device: id, ClientID: "c", Board: fmt.Sprintf("board-%d", i%3), Chip: "esp32s3",
				Version: "2.4.0", ELFSHA256: oldELF, At: now,
				Layout: &fleet.FlashLayout{SlotSize: 4 << 20, FreeHeap: 1 << 20, Labels: []string{"assets"}}, Facts: []byte(`{}`)},
			Admission: enrolment.Admission{Device: id, Enrolment: fleet.EnrolmentEnrolled, ClientID: "c"},
		})
	}
	if err := f.store.SavePolls(t.Context(), polls); err != nil {
		t.Fatal(err)
	}
	inv := fleet.Inventory{ID: strings.Repeat("cd", 32), Tools: []fleet.Tool{{Name: fleet.ToolUpgradeFirmware,
		InputSchema: []byte(`{}`)}}, CreatedAt: now}
	for _, p := range polls {
		if err := f.store.SaveListing(t.Context(), fleet.ToolListing{Device: p.Poll.Device, Inventory: inv, ELFSHA256: oldELF,
			At: now}); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// shortTimers are for engines that must miss reports of devices.
var shortTimers = func() campaign.DeploymentTimers {
	t := campaign.DefaultTimers
	t.Get, t.Resend, t.BootPoll, t.Goodbye, t.SlowestRate = 2*time.Second, time.Second, 4*time.Second, time.Second, 1<<30
	t.Connect, t.Probe, t.Backoff = 4*time.Second, time.Second, 500*time.Millisecond
	t.Stall, t.Download = 4*time.Second, 8*time.Second // of a download whose end no engine saw
	return t
}()

var by = fleet.Principal{Kind: fleet.KindSystem, Name: "test", Role: fleet.RoleAdmin}

func (f *pgFleet) campaign(change func(*campaign.Plan), sizes ...int) campaign.Campaign {
	now := time.Now().UTC().Truncate(time.Microsecond)
	p := campaign.Plan{Name: "test", Mode: firmware.ModePush, MaxInFlight: 2000, MaxAttempts: 1, MaxReconnects: 2}
	var waves []campaign.Wave
	c := campaign.Campaign{ID: uuid.Must(uuid.NewV7()), State: campaign.Running, CreatedBy: by, CreatedAt: now,
		EditedBy: by, EditedAt: now, StartedAt: &now}
	for range sizes {
		p.Waves = append(p.Waves, campaign.WavePlan{MinSample: 1, Soak: 20 * time.Millisecond, Gate: campaign.GateAuto})
	}
	change(&p)
	c.Plan = p
	var targets []campaign.Deployment
	i := 0
	for number, size := range sizes {
		waves = append(waves, campaign.Wave{Campaign: c.ID, Number: number, Plan: p.Waves[number], Size: size,
			State: campaign.WavePending})
		for range size {
			id := fleet.DeviceID(fmt.Sprintf("d%05d", i))
			targets = append(targets, campaign.Deployment{ID: uuid.Must(uuid.NewV7()), Campaign: c.ID, Device: id,
				Board: fmt.Sprintf("board-%d", i%3), Wave: number,
				State: campaign.DeploymentPending, Image: f.image.SHA256, ImageSize: f.image.Size, TargetELF: newELF,
				ToVersion: "2.5.0", FromELF: oldELF,
				FromVersion: "2.4.0", CreatedAt: now, UpdatedAt: now})
			i++
		}
	}
	c.Targets, c.Images = len(targets), []string{f.image.SHA256}
	c.Digest = campaign.Digest(c.Plan, targets, c.Images)
	if err := f.store.CreateCampaign(f.t.Context(), by, &c, waves, targets); err != nil {
		f.t.Fatal(err)
	}
	return c
}

// start runs an engine; stop ends it.
func (f *pgFleet) start() (stop func()) {
	e := rollout.New(rollout.Options{Store: f.store, Inventories: f.store, Quarantines: f.store, Calls: f, Link: f,
		Presence: f, Downloads: f,
		PublicURL: "http://fleet.example.org", Timers: f.timers, Now: f.now, Tick: 100 * time.Millisecond})
	f.mu.Lock()
	f.engine = e
	f.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := e.Run(ctx); err != nil {
			f.t.Errorf("Run: %v", err)
		}
	}()
	return func() { cancel(); <-done }
}

func (f *pgFleet) current() *rollout.Engine {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.engine
}

// Make makes the device install its image, within milliseconds.
func (f *pgFleet) Make(ctx context.Context, r call.Request) (fleet.Call, error) {
	f.work.Add(1)
	defer f.work.Done()
	if r.Tool != fleet.ToolUpgradeFirmware {
		return fleet.Call{State: fleet.CallSucceeded, Result: text(fmt.Sprintf(`{"elf_sha256":%q}`, f.running(r.Device)))},
			nil
	}
	token := strings.TrimSuffix(strings.TrimPrefix(r.Firmware.URL, "http://fleet.example.org/d/"), "/firmware.bin")
	sum := sha256.Sum256([]byte(token))
	l, err := f.store.FirmwareLink(ctx, sum[:], f.now())
	if err != nil {
		f.t.Errorf("device %s: called with a link that is not on record: %v", r.Device, err)
		return fleet.Call{}, err
	}
	f.mu.Lock()
	f.sent[l.Deployment]++
	f.mu.Unlock()
	r.Firmware.Notify(fleet.Evidence{At: f.now(), Kind: fleet.EvidenceSent})
	f.install(l, f.faults[r.Device])
	select {
	case <-r.Firmware.Done:
	case <-f.over:
	}
	return fleet.Call{}, nil
}

func (f *pgFleet) running(id fleet.DeviceID) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cmp.Or(f.elf[id], oldELF)
}

func (f *pgFleet) install(l firmware.Link, fault string) {
	pause := func() { time.Sleep(time.Duration(1+rand.IntN(5)) * time.Millisecond) }
	download := func(kind fleet.EvidenceKind, n int64) {
		pause()
		f.current().Observe(rollout.OfTransfer(firmware.Transfer{Deployment: l.Deployment, At: f.now(), Kind: kind,
			Attempt: l.Attempt, Sent: n}))
	}
	seen := func(kind fleet.EvidenceKind) {
		pause()
		f.current().Observe(rollout.OfDevice(l.Device, fleet.Evidence{At: f.now(), Kind: kind}))
	}
	if fault == "silent" {
		return
	}
	download(fleet.EvidenceGet, 0)
	if fault == "cut" {
		download(fleet.EvidenceCut, 1000)
		return
	}
	download(fleet.EvidenceDownloaded, l.Size)
	seen(fleet.EvidenceDisconnect)
	pause()
	elf := newELF
	if fault == "rolled back" {
		elf = oldELF
	}
	f.mu.Lock()
	f.elf[l.Device] = elf
	f.mu.Unlock()
	p := enrolment.BootPoll{Device: l.Device, ClientID: "c", Board: "board", Chip: "esp32s3", At: f.now(),
		ELFSHA256: elf, Version: "2.5.0", Facts: []byte(`{}`)}
	record := enrolment.PollRecord{Poll: p, Admission: enrolment.Admission{Device: l.Device,
		Enrolment: fleet.EnrolmentEnrolled, ClientID: "c"}}
	if err := f.store.SavePolls(context.Background(), []enrolment.PollRecord{record}); err != nil {
		f.t.Error(err)
	}
	f.current().Poll(context.Background(), p, true)
	seen(fleet.EvidenceConnect)
	pause()
	f.current().Observe(rollout.OfListing(l.Device, fleet.ToolListing{At: f.now(), ELFSHA256: elf}))
}

// Ping returns the epoch of the connection after the restart.
func (f *pgFleet) Ping(context.Context, fleet.DeviceID) (int64, error) { return 2, nil }

// Epoch returns the epoch of the connection before the restart.
func (f *pgFleet) Epoch(fleet.DeviceID) (int64, bool) { return 1, true }

// State reports every device as online.
func (f *pgFleet) State(fleet.DeviceID) (fleet.Presence, time.Time, fleet.Reason) {
	return fleet.PresenceOnline, time.Time{}, fleet.Reason{}
}

// Revoke does nothing: there are no downloads.
func (f *pgFleet) Revoke(...uuid.UUID) {}

// Room returns a number that no test reaches.
func (f *pgFleet) Room() int { return 1 << 20 }

func (f *pgFleet) await(id uuid.UUID, states ...campaign.State) {
	f.t.Helper()
	fleettest.Eventually(f.t, fmt.Sprintf("the campaign is %v", states), func() bool {
		c, err := f.store.Campaign(f.t.Context(), id)
		if err != nil {
			f.t.Fatal(err)
		}
		return slices.Contains(states, c.State)
	})
}

// skipWaits advances the clock whenever faults block all devices whose turn it is. Their
// timeouts may be long, and no other device may time out because the machine is busy.
func (f *pgFleet) skipWaits(ctx context.Context, id uuid.UUID) {
	turn := campaign.DeploymentFilter{Campaign: id, Limit: fleet.MaxLimit, States: []campaign.DeploymentState{
		campaign.DeploymentQueued, campaign.DeploymentDispatching, campaign.DeploymentSent, campaign.DeploymentAmbiguous,
		campaign.DeploymentDownloading, campaign.DeploymentDownloaded, campaign.DeploymentRebooting,
		campaign.DeploymentBooted, campaign.DeploymentVerifying}}
	goesOn := func(d campaign.Deployment) bool { return f.faults[d.Device] != "silent" && f.faults[d.Device] != "cut" }
	for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		page, err := f.store.Deployments(ctx, turn)
		if err == nil && len(page.Items) > 0 && !slices.ContainsFunc(page.Items, goesOn) {
			f.ahead.Add(int64(time.Minute))
		}
	}
}

// verdicts counts the outcomes of devices by fault.
func (f *pgFleet) verdicts(id uuid.UUID) map[string]map[campaign.DeploymentState]int {
	got := map[string]map[campaign.DeploymentState]int{}
	for filter := (campaign.DeploymentFilter{Campaign: id, Limit: fleet.MaxLimit}); ; {
		page, err := f.store.Deployments(f.t.Context(), filter)
		if err != nil {
			f.t.Fatal(err)
		}
		for _, d := range page.Items {
			fault := f.faults[d.Device]
			if got[fault] == nil {
				got[fault] = map[campaign.DeploymentState]int{}
			}
			got[fault][d.State]++
		}
		if filter.Cursor = page.Next; page.Next == "" {
			return got
		}
	}
}

// threePercent gives every 33rd device a fault.
func threePercent(i int) string {
	if i%33 == 7 {
		return []string{"silent", "cut", "rolled back"}[i/33%3]
	}
	return ""
}

func TestOnPostgreSQL(t *testing.T) {
	const n = 600
	f := newPGFleet(t, n, threePercent)
	c := f.campaign(func(p *campaign.Plan) { p.MaxInFlight = 100 }, 20, 180, n-200)
	stop := f.start()
	ctx, noMore := context.WithCancel(t.Context())
	f.work.Go(func() { f.skipWaits(ctx, c.ID) })
	f.await(c.ID, campaign.CompletedWithErrors)
	noMore()
	stop()
	close(f.over)
	f.work.Wait()
	count := map[string]int{}
	for i := range n {
		count[threePercent(i)]++
	}
	want := map[string]map[campaign.DeploymentState]int{
		"": {campaign.DeploymentSucceeded: count[""]}, "silent": {campaign.DeploymentTimedOut: count["silent"]},
		"cut":         {campaign.DeploymentFailed: count["cut"]},
		"rolled back": {campaign.DeploymentRolledBack: count["rolled back"]},
	}
	if diff := gocmp.Diff(want, f.verdicts(c.ID)); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	for id, calls := range f.sent {
		if calls != 1 {
			t.Errorf("deployment %s was called %d times", id, calls)
		}
	}
}

// If engines die in the middle, the next one can continue from their rows, on the real store as
// well.
func TestEnginesTakeTurnsOnPostgreSQL(t *testing.T) {
	const n = 300
	f := newPGFleet(t, n, func(int) string { return "" })
	f.timers = shortTimers
	c := f.campaign(func(p *campaign.Plan) { p.MaxInFlight, p.MaxAttempts = 40, 5 }, n)
	for range 4 {
		stop := f.start()
		time.Sleep(300 * time.Millisecond)
		stop()
	}
	stop := f.start()
	f.await(c.ID, campaign.Completed, campaign.CompletedWithErrors)
	stop()
	close(f.over)
	f.work.Wait()
	want := map[string]map[campaign.DeploymentState]int{"": {campaign.DeploymentSucceeded: n}}
	if diff := gocmp.Diff(want, f.verdicts(c.ID)); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

// BenchmarkDispatch examines, notifies and judges devices on a real database.
func BenchmarkDispatch(b *testing.B) {
	const n = 4000
	for b.Loop() {
		b.StopTimer()
		f := newPGFleet(b, n, threePercent)
		f.timers = shortTimers
		c := f.campaign(func(*campaign.Plan) {}, n)
		b.StartTimer()
		begun := time.Now()
		stop := f.start()
		for {
			p, err := f.store.CampaignProgress(b.Context(), c.ID)
			if err != nil {
				b.Fatal(err)
			}
			if p.ByState[campaign.DeploymentPending]+p.ByState[campaign.DeploymentQueued] == 0 {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		b.ReportMetric(n/time.Since(begun).Seconds(), "dispatches/s")
		f.await(c.ID, campaign.CompletedWithErrors)
		b.ReportMetric(n/time.Since(begun).Seconds(), "campaigns/s")
		stop()
		close(f.over)
		f.work.Wait()
	}
}
