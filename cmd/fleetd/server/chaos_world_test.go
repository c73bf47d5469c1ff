package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"

	"fleetd/broker/sim"
	"fleetd/cmd/fleetd/client"
	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres/embedded"
)

// beFleetd makes the test binary a fleetd that serves with chaosTimers, or runs
// another command.
const beFleetd = "FLEETD_TEST_BE_FLEETD"

// announceAddr is the environment variable with the address of a proxy in front of a core's internal
// address.
const announceAddr = "FLEETD_TEST_ANNOUNCE"

// chaosTimers suit devices that wait a twentieth of the real time. Connect leaves room for
// a slow device that answers the calls in its line, at 4 s each, before a health check.
var chaosTimers = campaign.DeploymentTimers{
	Get: 4 * time.Second, Resend: 3 * time.Second, Stall: 4 * time.Second, Download: 10 * time.Second,
	SlowestRate: 64 << 10, Goodbye: time.Second, BootPoll: 10 * time.Second, Connect: 20 * time.Second,
	Probe: 2 * time.Second, Backoff: 200 * time.Millisecond,
}

const (
	chaosTimeScale = 0.05 // of the devices' own waits
	chaosKeepalive = 8 * time.Second
	chaosBoard     = "atoms3-echo-base" // its light takes any of 2^24 colours
	chaosVersion   = "9.9.0"            // to which the campaign upgrades
	chaosTmpfs     = 400 << 20          // bytes; the disk that a fault fills
)

// testMain is the command line of the test binary when a test runs it as a process.
type testMain struct {
	Serve   quickServe   `cmd:""`
	Token   TokenCommand `cmd:""`
	Sim     sim.Command  `cmd:""`
	Cluster struct {
		Status client.ClusterStatus `cmd:""`
		Drain  client.DrainNode     `cmd:""`
	} `cmd:""`
}

// TestMain runs a command instead of the tests if beFleetd is set.
func TestMain(m *testing.M) {
	if os.Getenv(beFleetd) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	command := kong.Parse(&testMain{}, kong.BindTo(ctx, (*context.Context)(nil)))
	command.FatalIfErrorf(command.Run())
}

// quickServe is `fleetd serve` with other timers of campaigns.
type quickServe struct{ Config }

func (c *quickServe) Run(ctx context.Context) error {
	if name := os.Getenv(clockFile); name != "" {
		if err := followClock(name); err != nil {
			return err
		}
	}
	c.timers, c.engineTick, c.announce = chaosTimers, 50*time.Millisecond, os.Getenv(announceAddr)
	return Run(ctx, c.Config, io.Discard)
}

// A chaosWorld contains all participants: fleetd as a process, which is restarted whenever
// it ends, as systemd would; its PostgreSQL; the devices, in the test's own process; and
// the proxies between them.
type chaosWorld struct {
	schedule chaosSchedule
	dir      string // all files of this seed
	dataDir  string // fleetd's
	pgDir    string // of the database that the test runs; "" if fleetd does
	mounted  bool   // pgDir is a separate file system
	token    string
	asker    string // token whose calls need approvals

	httpAddr, mqttAddr, adminAddr string

	devices     *sim.Fleet
	ids         map[fleet.DeviceID]*sim.Device
	audience    []fleet.DeviceID // of the campaign
	http, mqtt  *chaosProxy
	joined      []*sim.Fleet // boards that joined later, by step
	stopDevices func()

	journal *chaosJournal
	atStart chaosResources

	clockSet bool // fleetd's clock was wrong for a while
	seen     *chaosSightings
	client   *http.Client

	nodes      []*chaosProcess // those that decide first
	deciders   int             // how many
	cluster    *chaosCluster   // nil without one
	internalOf map[string]string

	mu       sync.Mutex
	pg       *embedded.Server
	breaches []string
}

// A chaosJournal records the events of a run with their times, for the analysis of
// failures.
type chaosJournal struct {
	began time.Time
	mu    sync.Mutex
	text  bytes.Buffer
}

func (j *chaosJournal) notef(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	fmt.Fprintf(&j.text, "%s %6.2f s  ", now.UTC().Format("15:04:05.000"), now.Sub(j.began).Seconds())
	fmt.Fprintf(&j.text, format+"\n", args...)
}

func (j *chaosJournal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// breachf records that an invariant does not hold.
func (w *chaosWorld) breachf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.journal.notef("BREACH %s", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.breaches = append(w.breaches, text)
}

// newChaosWorld starts everything, from a copy of the template.
func newChaosWorld(schedule chaosSchedule, template chaosTemplate, dir string) (_ *chaosWorld, err error) {
	w := &chaosWorld{schedule: schedule, dir: dir, token: template.token, asker: template.asker}
	if err := w.prepare(); err != nil {
		return w, err
	}
	if err := w.placeDatabase(template); err != nil {
		return w, err
	}
	if err := w.startNodes(); err != nil {
		return w, err
	}
	if err := w.await(time.Minute, "fleetd to be ready", w.isReady); err != nil {
		return w, err
	}
	return w, w.switchOn()
}

// prepare reserves addresses and starts the proxies.
func (w *chaosWorld) prepare() (err error) {
	w.dataDir, w.journal = filepath.Join(w.dir, "fleetd"), &chaosJournal{began: time.Now()}
	w.client = &http.Client{Timeout: 25 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 5 * time.Second}}
	for _, addr := range []*string{&w.httpAddr, &w.mqttAddr, &w.adminAddr} {
		if *addr, err = fleettest.FreeAddr(); err != nil {
			return err
		}
	}
	if w.http, err = newChaosProxy(w.httpAddr); err != nil {
		return err
	}
	w.mqtt, err = newChaosProxy(w.mqttAddr)
	return err
}

// startNodes starts fleetd: one, or a cluster.
func (w *chaosWorld) startNodes() error {
	if w.schedule.cluster {
		return w.startCluster()
	}
	p := newChaosProcess(w, "fleetd", w.adminAddr, "/readyz", w.singleArgs)
	w.nodes, w.deciders = []*chaosProcess{p}, 1
	if err := w.writeClock(p, 0); err != nil {
		return err
	}
	go p.supervise()
	return nil
}

// placeDatabase copies the template's cluster to the place of this seed's PostgreSQL, and
// starts it there if the test runs it.
func (w *chaosWorld) placeDatabase(template chaosTemplate) error {
	if err := copyTree(template.dir, w.dataDir); err != nil || w.schedule.embedded {
		return err
	}
	w.pgDir = filepath.Join(w.dir, "pg")
	if err := os.Mkdir(w.pgDir, 0o755); err != nil {
		return err
	}
	if os.Geteuid() == 0 && w.schedule.has("pg-full") {
		if err := unix.Mount("tmpfs", w.pgDir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=755", chaosTmpfs)); err != nil {
			w.journal.notef("no file system to fill: %v", err)
		} else {
			w.mounted = true
		}
	}
	if err := copyTree(filepath.Join(w.dataDir, "postgres"), filepath.Join(w.pgDir, "postgres")); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(w.dataDir, "postgres")); err != nil {
		return err
	}
	return w.startPostgres()
}

// copyTree copies with cp, because that preserves owners.
func copyTree(from, to string) error {
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copying %s: %w: %s", from, err, out)
	}
	return nil
}

func (s chaosSchedule) has(fault string) bool {
	for _, step := range s.steps {
		if step.fault == fault {
			return true
		}
	}
	return false
}

// startPostgres starts the test's own database.
func (w *chaosWorld) startPostgres() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pg, err := embedded.Start(ctx, embedded.Options{DataDir: w.pgDir})
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pg = pg
	return nil
}

func (w *chaosWorld) postgres() *embedded.Server {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pg
}

// pgData returns the database's directory, which also contains its socket.
func (w *chaosWorld) pgData() string {
	if w.pgDir != "" {
		return filepath.Join(w.pgDir, "postgres")
	}
	return filepath.Join(w.dataDir, "postgres")
}

// postmaster returns the process id of the database's first process.
func (w *chaosWorld) postmaster() (int, error) {
	text, err := os.ReadFile(filepath.Join(w.pgData(), "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(line)
}

// singleArgs are the arguments of a fleetd that is not a node of a cluster.
func (w *chaosWorld) singleArgs() []string {
	args := []string{"--http-addr", w.httpAddr, "--mqtt-addr", w.mqttAddr, "--admin-addr", w.adminAddr,
		"--enrolment", "open", "--public-url", "http://" + w.http.addr(), "--mqtt-endpoint", w.mqtt.addr()}
	if w.pgDir != "" {
		args = append(args, "--database-url", w.postgres().URL())
	}
	return args
}

// isReady reports whether all processes work and one of them decides.
func (w *chaosWorld) isReady() bool {
	for _, p := range w.nodes {
		if p.probe(p.works) != http.StatusOK {
			return false
		}
	}
	return w.leader() != nil
}

// leader returns the process that decides: the only one, or the core that leads. nil: none does.
func (w *chaosWorld) leader() *chaosProcess {
	for _, p := range w.nodes[:w.deciders] {
		if p.probe("/readyz") == http.StatusOK {
			return p
		}
	}
	return nil
}

func (w *chaosWorld) await(limit time.Duration, what string, ok func() bool) error {
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %v for %s", limit, what)
		}
	}
	return nil
}

func (w *chaosWorld) inCampaign(id fleet.DeviceID) bool { return slices.Contains(w.audience, id) }

// switchOn starts the devices and waits until fleetd has listed the tools of all.
func (w *chaosWorld) switchOn() error {
	faults, err := sim.ParseFaults("slow=4s:30%,silent:1%,drop:1%,cut:2%,rollback:1%,late-true:1%,wrong-build:1%")
	if err != nil {
		return err
	}
	w.devices, err = sim.New(sim.Options{OTAURL: "http://" + w.http.addr() + "/xiaozhi/ota/", Seed: w.schedule.seed,
		Devices: w.schedule.size.devices, Boards: []string{chaosBoard}, Faults: faults, TimeScale: chaosTimeScale,
		Keepalive: chaosKeepalive, RecordCalls: 1 << 16})
	if err != nil {
		return err
	}
	w.ids = map[fleet.DeviceID]*sim.Device{}
	for i := range w.devices.Len() {
		id, err := fleet.ParseDeviceID(w.devices.Device(i).ID())
		if err != nil {
			return err
		}
		w.ids[id] = w.devices.Device(i)
		// A device that drops its orders uses the time of all attempts. fleetd does not
		// call a device that does not answer calls until the next probe, a minute later.
		faults := w.ids[id].Faults()
		if i%3 == 0 && !slices.Contains(faults, sim.FaultDrop) && !slices.Contains(faults, sim.FaultSilent) {
			w.audience = append(w.audience, id)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.devices.Run(ctx) }()
	w.seen = watchDevices(ctx, w.ids)
	w.stopDevices = func() { cancel(); <-done }
	return w.await(2*time.Minute, "all devices to be online with their tools", func() bool {
		n := 0
		devices, err := chaosList[deviceView](w, "/devices?q=presence:online&limit=500")
		for _, d := range devices {
			if d.ToolsCount > 0 {
				n++
			}
		}
		return err == nil && n == len(w.ids)
	})
}

// stop ends everything that was started and unmounts the disk.
func (w *chaosWorld) stop() {
	if w.stopDevices != nil {
		w.stopDevices()
	}
	w.thaw()
	for _, p := range slices.Backward(w.nodes) {
		p.stop()
	}
	if w.cluster != nil {
		w.cluster.close()
	}
	for _, p := range []*chaosProxy{w.http, w.mqtt} {
		if p != nil {
			p.close()
		}
	}
	if pg := w.postgres(); pg != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = pg.Stop(ctx)
	}
	w.client.CloseIdleConnections()
}

// keepLogs leaves only the logs of all processes in the seed's directory.
func (w *chaosWorld) keepLogs() {
	_ = copyTree(filepath.Join(w.pgData(), "log"), filepath.Join(w.dir, "postgres-log"))
	_ = os.WriteFile(filepath.Join(w.dir, "journal.log"), []byte(w.schedule.String()+"\n\n"+w.journal.String()), 0o644)
	w.removeData()
}

func (w *chaosWorld) removeData() {
	if w.mounted {
		_ = unix.Unmount(w.pgDir, unix.MNT_DETACH)
		w.mounted = false
	}
	_ = os.RemoveAll(w.dataDir)
	if w.pgDir != "" {
		_ = os.RemoveAll(w.pgDir)
	}
}

// rest sends a request and decodes an answer of status 2xx.
func (w *chaosWorld) rest(method, path string, body, answer any) (status int, err error) {
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return 0, err
		}
		content = bytes.NewReader(data)
	}
	req, err := http.NewRequest(method, "http://"+w.httpAddr+"/api/v1"+path, content)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+w.token)
	req.Header.Set("Content-Type", "application/json")
	return w.send(req, answer)
}

func (w *chaosWorld) send(req *http.Request, answer any) (status int, err error) {
	status, _, err = w.sendFor(req, answer)
	return status, err
}

// sendFor also returns the header of the answer.
func (w *chaosWorld) sendFor(req *http.Request, answer any) (status int, header http.Header, err error) {
	resp, err := w.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, err
	}
	if resp.StatusCode/100 != 2 {
		return resp.StatusCode, resp.Header, fmt.Errorf("%s %s: %s: %.300s", req.Method, req.URL.Path, resp.Status, data)
	}
	return resp.StatusCode, resp.Header, json.Unmarshal(data, answer)
}

// chaosList reads all pages of a list.
func chaosList[T any](w *chaosWorld, path string) ([]T, error) {
	var all []T
	for cursor := ""; ; {
		var page list[T]
		if _, err := w.rest("GET", path+cursor, nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.NextCursor == "" {
			return all, nil
		}
		cursor = "&cursor=" + page.NextCursor
	}
}

// A chaosTemplate is a data directory with everything that the seeds have in common.
type chaosTemplate struct {
	dir, token, asker, release string
}

// makeChaosTemplate lets fleetd create its database, a token and a release.
func makeChaosTemplate(dir string) (template chaosTemplate, err error) {
	w := &chaosWorld{dir: dir}
	if err := w.prepare(); err != nil {
		return template, err
	}
	defer w.stop()
	if err := w.startNodes(); err != nil {
		return template, err
	}
	if err := w.await(2*time.Minute, "fleetd to make its database", w.isReady); err != nil {
		return template, err
	}
	if w.token, err = w.newToken("chaos", "admin"); err != nil {
		return template, err
	}
	template = chaosTemplate{dir: w.dataDir, token: w.token}
	if template.asker, err = w.makeAsker(); err != nil {
		return template, err
	}
	template.release, err = w.newRelease()
	return template, err
}

func (w *chaosWorld) newToken(name, role string) (string, error) {
	cmd := exec.Command(os.Args[0], "token", "create", name, "--role", role, "--json")
	cmd.Env = append(os.Environ(), beFleetd+"=1", "FLEETD_DATA_DIR="+w.dataDir)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("fleetd token create: %w", err)
	}
	var made struct{ Token string }
	err = json.Unmarshal(out, &made)
	return made.Token, err
}

func (w *chaosWorld) newRelease() (string, error) {
	data, err := sim.AppImage(chaosBoard, chaosVersion, 60_000)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequest("POST", "http://"+w.httpAddr+"/api/v1/images?board="+chaosBoard, bytes.NewReader(data))
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+w.token)
	req.Header.Set("Content-Type", "application/octet-stream")
	var image struct{ SHA256 string }
	if _, err := w.send(req, &image); err != nil {
		return "", err
	}
	var release struct{ ID string }
	_, err = w.rest("POST", "/releases", map[string]any{"images": []string{image.SHA256}}, &release)
	return release.ID, err
}
