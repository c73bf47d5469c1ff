package server

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/fleet/fleettest"
)

// quickTimers suit devices that wait a hundredth of the real time, and leave room for a
// machine that simulates ten thousand of them.
var quickTimers = campaign.DeploymentTimers{
	Get: 8 * time.Second, Resend: 8 * time.Second, Stall: 8 * time.Second, Download: 30 * time.Second,
	SlowestRate: 8 << 10,
	Goodbye:     2 * time.Second, BootPoll: 30 * time.Second, Connect: 15 * time.Second, Probe: 4 * time.Second,
	Backoff: 500 * time.Millisecond,
}

// verdicts are the final states of devices with each fault, as an observer from outside
// can determine them.
var verdicts = map[sim.FaultKind]campaign.DeploymentState{
	sim.FaultSilentAccept:    campaign.DeploymentTimedOut,
	sim.FaultNoGet:           campaign.DeploymentTimedOut,
	sim.FaultCut:             campaign.DeploymentFailed,
	sim.FaultLateTrue:        campaign.DeploymentFailed,
	sim.FaultWrongBuild:      campaign.DeploymentWrongBuild,
	sim.FaultRollback:        campaign.DeploymentRolledBack,
	sim.FaultPollWithoutMQTT: campaign.DeploymentTimedOut,
	sim.FaultMQTTWithoutPoll: campaign.DeploymentTimedOut,
}

// TestCampaignOverSimulatedFleet runs a campaign of three waves over a fleet in which 3 %
// of the devices misbehave, in all ways of the simulator, over real sockets and a real
// database, and checks each verdict.
func TestCampaignOverSimulatedFleet(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes minutes; FLEETD_CAMPAIGN_DEVICES makes it smaller")
	}
	devices := campaignDevices
	if n, err := strconv.Atoi(os.Getenv("FLEETD_CAMPAIGN_DEVICES")); err == nil {
		devices = n
	}
	s := startTestServer(t, func(c *Config) { c.timers, c.engineTick = quickTimers, 50*time.Millisecond })
	fleetOf := startSim(t, s, devices, "0.375%") // 3 % together
	release := releaseForSim(t, s, "2.5.0")

	plan := campaign.Plan{Name: "three waves", Release: release.ID, MaxInFlight: 500, MaxAttempts: 2,
		Waves: []campaign.WavePlan{
			{Name: "canary", Percent: 1, SuccessPercent: 50, MinSample: 1, Soak: time.Second},
			{Name: "early", Percent: 10, SuccessPercent: 80, MinSample: 5, Soak: time.Second},
			{Name: "rest", Percent: 100, SuccessPercent: 80, MinSample: 5, Soak: time.Second}},
		AbortRules: []campaign.AbortRule{{Class: campaign.ClassAny, MinExecuted: 100, Percent: 20,
			Scope: campaign.ScopeCampaign, Action: campaign.AbortPause}}}
	ctx := t.Context()
	c, err := s.Campaigns.Create(ctx, testOperator, plan)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if c, err = s.Campaigns.Start(ctx, testOperator, c.ID); err != nil {
		t.Fatal(err)
	}
	fleettest.EventuallyWithin(t, 8*time.Minute, "the end of the campaign", func() bool {
		c, err = s.Campaigns.Campaign(ctx, c.ID)
		if err != nil {
			t.Fatal(err)
		}
		if c.State == campaign.Paused {
			t.Fatalf("paused: %s, %s", c.PauseReason, c.Reason)
		}
		return c.State.Final()
	})
	t.Logf("%d devices in %v, %s", devices, time.Since(begin).Round(100*time.Millisecond), c.State)
	checkVerdicts(t, s, c, fleetOf)
	if c.State != campaign.CompletedWithErrors && devices >= 600 {
		t.Errorf("the campaign ended %s, want completed_with_errors", c.State)
	}
}

func checkVerdicts(t *testing.T, s *testServer, c campaign.Campaign, fleetOf *sim.Fleet) {
	t.Helper()
	got := deploymentsOf(t, s, c)
	tally := map[campaign.DeploymentState]int{}
	wrong := 0
	for i := range fleetOf.Len() {
		d := fleetOf.Device(i)
		id, err := fleet.ParseDeviceID(d.ID())
		if err != nil {
			t.Fatal(err)
		}
		dep := got[id]
		tally[dep.State]++
		if want, ok := expected(d); ok && dep.State != want {
			if wrong++; wrong <= 20 {
				events, _ := s.Campaigns.DeploymentEvents(t.Context(), dep.ID)
				t.Errorf("%s with %v: %s (%s: %s), want %s; %v", id, d.Faults(), dep.State, dep.Class, dep.Reason, want, events)
			}
		}
	}
	t.Logf("verdicts: %v; %s", tally, dispatchRate(got))
	if wrong > 0 {
		t.Errorf("%d of %d verdicts are wrong", wrong, fleetOf.Len())
	}
}

func deploymentsOf(t *testing.T, s *testServer, c campaign.Campaign) map[fleet.DeviceID]campaign.Deployment {
	t.Helper()
	got := map[fleet.DeviceID]campaign.Deployment{}
	for cursor := ""; ; {
		page, err := s.Campaigns.Deployments(t.Context(), campaign.DeploymentFilter{Campaign: c.ID, Limit: fleet.MaxLimit,
			Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range page.Items {
			got[d.Device] = d
		}
		if cursor = page.Next; cursor == "" {
			return got
		}
	}
}

// dispatchRate returns the speed at which the last wave was dispatched. It excludes the
// first and the last tenth, which have few devices left: the rest shows the speed of the
// engine.
func dispatchRate(all map[fleet.DeviceID]campaign.Deployment) string {
	var at []time.Time
	for _, d := range all {
		if d.Wave == 2 && d.Attempt == 1 && d.SentAt != nil {
			at = append(at, *d.SentAt)
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	n := len(at)
	if n < 100 {
		return "too few devices for a rate"
	}
	took := at[n*9/10].Sub(at[n/10])
	return fmt.Sprintf("dispatched %.0f devices a second", float64(n)*0.8/took.Seconds())
}

// expected returns the right verdict. For a device with several faults any failure is
// right, so it returns false.
func expected(d *sim.Device) (campaign.DeploymentState, bool) {
	switch faults := d.Faults(); len(faults) {
	case 0:
		return campaign.DeploymentSucceeded, true
	case 1:
		return verdicts[faults[0]], true
	}
	return "", false
}

// startSim runs the simulator as a separate process, with each fault at the rate, because
// one process may not open both ends of ten thousand connections. The seed determines the
// faults of each device, so a fleet that is not running has the same ones.
func startSim(t *testing.T, s *testServer, devices int, rate string, more ...string) *sim.Fleet {
	t.Helper()
	var list []string
	for _, kind := range slices.Sorted(maps.Keys(verdicts)) {
		list = append(list, string(kind)+":"+rate)
	}
	faults, err := sim.ParseFaults(strings.Join(list, ","))
	if err != nil {
		t.Fatal(err)
	}
	const seed = 7
	f, err := sim.New(sim.Options{OTAURL: s.URL() + "/xiaozhi/ota/", Devices: devices, Seed: seed, Faults: faults})
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"sim", "--ota-url", s.URL() + "/xiaozhi/ota/", "--devices", strconv.Itoa(devices),
		"--seed", strconv.Itoa(seed), "--faults", strings.Join(list, ","), "--time-scale", "0.01", "--connect-rate", "1000",
		"--local-addrs", "127.0.0.2,127.0.0.3,127.0.0.4,127.0.0.5", "--progress", "0"}, more...)
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), beFleetd+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Signal(os.Interrupt); _ = cmd.Wait() })
	online, begin := 0, time.Now()
	defer func() {
		t.Logf("%d of %d devices online after %v", online, devices, time.Since(begin).Round(time.Second))
	}()
	fleettest.EventuallyWithin(t, 3*time.Minute, "all devices to be online with their tools", func() bool {
		q, _ := fleet.ParseQuery("presence:online tool:self.upgrade_firmware")
		var err error
		if online, err = s.Devices.CountDevices(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		return online == devices
	})
	return f
}

func releaseForSim(t *testing.T, s *testServer, version string) firmware.Release {
	t.Helper()
	var images []string
	for _, board := range sim.DefaultBoards {
		data, err := sim.AppImage(board, version, 40_000)
		if err != nil {
			t.Fatal(err)
		}
		img, _, err := s.Firmware.Upload(t.Context(), testOperator, firmware.ImageUpload{Body: bytes.NewReader(data),
			Board: board})
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, img.SHA256)
	}
	r, err := s.Firmware.Create(t.Context(), testOperator, firmware.ReleaseRequest{Images: images})
	if err != nil {
		t.Fatal(err)
	}
	return r
}
