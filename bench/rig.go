package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/cmd/fleetd/server"
	"fleetd/fleet"
	"fleetd/fleet/postgres/embedded"
)

// A rig is a whole fleetd with an embedded PostgreSQL: fleetd serve as users run
// it, or a server in this process.
type rig struct {
	http, mqtt, admin string // addresses
	token             string // of an administrator
	db                *pgxpool.Pool
	fleetd, postgres  process
	ids               []fleet.DeviceID // enrolled

	server   *server.Server   // nil for a child
	child    *exec.Cmd        // nil in process
	separate *embedded.Server // nil unless PostgreSQL is reached over TCP
}

// rigOptions say which fleetd runs. Devices join at once: the default asks a
// person for each, which no call notices.
type rigOptions struct {
	Fleetd string `help:"The program fleetd." default:"bin/fleetd"`
	Procs  int    `help:"GOMAXPROCS of fleetd; 0 is all cores." default:"0"`
	TCP    bool   `help:"fleetd reaches PostgreSQL over TCP (--database-url)."`
}

var benchActor = fleet.Actor{Kind: fleet.ActorToken, Name: "bench", Role: fleet.RoleAdmin}

// startServer starts a server in this process.
func startServer(ctx context.Context, dir string) (r *rig, err error) {
	r = &rig{fleetd: self(ofFleetd)}
	r.server, err = server.Start(ctx, server.Config{Database: server.Database{DataDir: dir}, HTTPAddr: "127.0.0.1:0",
		MQTTAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0", Enrolment: string(fleet.EnrolOpen), NodeName: "bench",
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	r.http, r.mqtt, r.admin = r.server.HTTPAddr().String(), r.server.MQTTAddr().String(), r.server.AdminAddr().String()
	if err := r.join(ctx, dir); err != nil {
		r.stop()
		return nil, err
	}
	return r, nil
}

// startServe starts fleetd serve as a child, with default flags but for addresses
// and enrolment.
func startServe(ctx context.Context, dir string, o rigOptions) (_ *rig, err error) {
	r := &rig{}
	for _, addr := range []*string{&r.http, &r.mqtt, &r.admin} {
		if *addr, err = freeAddr(); err != nil {
			return nil, err
		}
	}
	clusterDir := dir
	env := append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "FLEETD_") || strings.HasPrefix(v, "DATABASE_URL=")
	}), "FLEETD_DATA_DIR="+dir)
	if o.Procs > 0 {
		env = append(env, "GOMAXPROCS="+strconv.Itoa(o.Procs))
	}
	if o.TCP {
		clusterDir = dir + "-postgres"
		var url string
		if r.separate, url, err = postgresOverTCP(ctx, clusterDir); err != nil {
			return nil, err
		}
		env = append(env, "FLEETD_DATABASE_URL="+url)
	}
	defer func() {
		if err != nil {
			r.stop()
		}
	}()
	log, err := os.Create(dir + ".log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	r.child = exec.Command(o.Fleetd, "serve", "--http-addr", r.http, "--mqtt-addr", r.mqtt, "--admin-addr", r.admin,
		"--enrolment", "open")
	r.child.Env, r.child.Stdout, r.child.Stderr = env, log, log
	r.child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := r.child.Start(); err != nil {
		return nil, fmt.Errorf("%w: build it with go build -o bin/ ./cmd/fleetd, or name one with --fleetd", err)
	}
	r.fleetd = process{name: ofFleetd, pid: r.child.Process.Pid}
	if err := r.ready(ctx); err != nil {
		said, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("%w: %s", err, said)
	}
	token := exec.CommandContext(ctx, o.Fleetd, "token", "create", "bench", "--role", "admin")
	token.Env, token.Stderr = env, os.Stderr
	out, err := token.Output()
	if err != nil {
		return nil, fmt.Errorf("fleetd token create: %w", err)
	}
	r.token = strings.TrimSpace(string(out))
	return r, r.join(ctx, clusterDir)
}

// postgresOverTCP starts a PostgreSQL that is reached over TCP.
func postgresOverTCP(ctx context.Context, dir string) (pg *embedded.Server, url string, err error) {
	const host = "127.54.32.1" // of the loopback interface; the port is taken by others on 127.0.0.1
	pg, err = embedded.Start(ctx, embedded.Options{DataDir: dir, Settings: map[string]string{"listen_addresses": host}})
	if err != nil {
		return nil, "", err
	}
	file := filepath.Join(dir, "postgres", "pg_hba.conf")
	rules, err := os.ReadFile(file)
	if err == nil { // the cluster refuses hosts
		err = os.WriteFile(file, append([]byte("host all all 127.0.0.0/8 trust\n"), rules...), 0o600)
	}
	p, pidErr := postmaster(dir)
	if err = errors.Join(err, pidErr); err == nil {
		err = syscall.Kill(p.pid, syscall.SIGHUP)
	}
	if err != nil {
		_ = pg.Stop(ctx)
		return nil, "", err
	}
	return pg, "postgres://fleetd@" + host + ":5432/fleetd?sslmode=disable", nil
}

// ready waits until the child serves.
func (r *rig) ready(ctx context.Context) error {
	for range 600 {
		resp, err := http.Get("http://" + r.admin + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		if ctx.Err() != nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("%s did not become ready", r.child.Path)
}

// join connects to the rig's PostgreSQL, for what only it knows.
func (r *rig) join(ctx context.Context, dir string) error {
	url, running, err := embedded.Join(dir)
	if err == nil && !running {
		err = fmt.Errorf("no PostgreSQL runs in %s", dir)
	}
	if err == nil {
		r.db, err = pgxpool.New(ctx, url)
	}
	if err == nil {
		r.postgres, err = postmaster(dir)
	}
	return err
}

// postmaster is the PostgreSQL of a data directory.
func postmaster(dir string) (process, error) {
	p := process{name: ofPostgres, children: true}
	data, err := os.ReadFile(filepath.Join(dir, "postgres", "postmaster.pid"))
	if err == nil {
		first, _, _ := strings.Cut(string(data), "\n")
		p.pid, err = strconv.Atoi(first)
	}
	return p, err
}

func (r *rig) stop() {
	if r.db != nil {
		r.db.Close()
	}
	if r.server != nil {
		r.server.Close()
	}
	if r.child != nil && r.child.Process != nil {
		_ = r.child.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(time.Minute, func() { _ = r.child.Process.Kill() })
		_ = r.child.Wait()
		kill.Stop()
	}
	if r.separate != nil {
		_ = r.separate.Stop(context.Background())
	}
}

// populate enrols n devices, connects them and waits until fleetd knows their
// tools and has settled, unaided.
func (r *rig) populate(ctx context.Context, n int, devices *deviceProcess) ([]credentials, error) {
	all, err := r.enrol(n)
	if err != nil {
		return nil, err
	}
	if _, err := devices.connect(r.mqtt, 64, all); err != nil {
		return nil, err
	}
	if err := r.listed(ctx, n); err != nil {
		return nil, err
	}
	settle(n)
	return all, nil
}

// settle waits until what fleetd does about n new connections is over.
func settle(n int) { time.Sleep(2*time.Second + time.Duration(n)*time.Millisecond) }

// variant is calls to this fleetd; in process, the load is part of it.
func (r *rig) variant(do func(worker int) error, devices *deviceProcess) variant {
	v := variant{do: do, calls: 1, processes: []process{r.fleetd, r.postgres}, stop: r.stop, rig: r}
	if r.child != nil {
		v.processes = append(v.processes, self(ofLoad))
	}
	v.processes = append(v.processes, devices.process())
	return v
}

// enrol lets n devices poll as at boot and returns their credentials.
func (r *rig) enrol(n int) ([]credentials, error) {
	r.ids = make([]fleet.DeviceID, n)
	for i := range r.ids {
		r.ids[i] = fleet.DeviceID(fmt.Sprintf("02beef%06x", i))
	}
	all := make([]credentials, n)
	var next atomic.Int64
	errs := make(chan error)
	const workers = 16
	for range workers {
		go func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					errs <- nil
					return
				}
				var answer struct {
					MQTT struct {
						ClientID     string `json:"client_id"`
						Username     string `json:"username"`
						Password     string `json:"password"`
						PublishTopic string `json:"publish_topic"`
					} `json:"mqtt"`
				}
				body, err := r.bootPoll(i)
				if err == nil {
					err = json.Unmarshal(body, &answer)
				}
				if err != nil {
					errs <- err
					return
				}
				m := answer.MQTT
				all[i] = credentials{ClientID: m.ClientID, Username: m.Username, Password: m.Password, Up: m.PublishTopic}
			}
		}()
	}
	var failed error
	for range workers {
		if err := <-errs; err != nil {
			failed = err
		}
	}
	return all, failed
}

// listed waits until the tools of all n devices are known.
func (r *rig) listed(ctx context.Context, n int) error {
	for range 600 {
		var known int
		err := r.db.QueryRow(ctx, `SELECT count(*) FROM devices WHERE tools_count > 0`).Scan(&known)
		if err != nil || known == n {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("not all of %d devices listed their tools within a minute", n)
}

const callBody = `{"tool":"self.audio_speaker.set_volume","arguments":{"volume":50}}`

// call makes one call in process, as the console and fan-outs do.
func (r *rig) call(worker int) error {
	c, err := r.server.Calls.Make(context.Background(), fleet.CallRequest{Actor: benchActor,
		Device: r.ids[worker%len(r.ids)], Tool: "self.audio_speaker.set_volume", Arguments: json.RawMessage(`{"volume":50}`)})
	if err == nil && c.State != fleet.CallSucceeded {
		err = fmt.Errorf("call to %s ended %s: %+v", c.Device, c.State, c.Error)
	}
	return err
}

// rest makes calls through REST on connections that are kept, one for each of n
// workers.
func (r *rig) rest(n int) *httpLoad {
	requests := make([][]byte, n)
	for i := range requests {
		requests[i] = httpRequest("POST", r.http, "/api/v1/devices/"+string(r.ids[i%len(r.ids)])+"/calls", callBody,
			"Authorization: Bearer "+r.token)
	}
	return newHTTPLoad(r.http, `"state":"succeeded"`, requests)
}

// fanOut calls all devices through REST, with the record of each, and returns
// how long that took.
func (r *rig) fanOut(window int) (time.Duration, error) {
	type view struct {
		ID     string
		State  fleet.FanOutState
		Counts struct{ Succeeded int }
	}
	var made, done view
	begin := time.Now()
	err := r.ask("POST", "/fanouts", fmt.Sprintf(`{"q":"","max_in_flight":%d,%s`, window, callBody[1:]), &made)
	if err != nil {
		return 0, err
	}
	for list := (struct{ Items []view }{}); len(list.Items) == 0 || list.Items[0].State == fleet.FanOutRunning; {
		time.Sleep(5 * time.Millisecond)
		if err := r.ask("GET", "/fanouts?limit=1", "", &list); err != nil {
			return 0, err
		}
	}
	took := time.Since(begin)
	if err = r.ask("GET", "/fanouts/"+made.ID, "", &done); err == nil && done.Counts.Succeeded != len(r.ids) {
		err = fmt.Errorf("of %d calls of the fan-out %d succeeded", len(r.ids), done.Counts.Succeeded)
	}
	return took, err
}

// ask makes a request of REST that is not what is measured.
func (r *rig) ask(method, path, body string, answer any) error {
	req, err := http.NewRequest(method, "http://"+r.http+"/api/v1"+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %.200s", method, path, resp.Status, data)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(data, answer)
}
