package main

import (
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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"fleetd/cmd/fleetd/server"
	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/postgres/embedded"
)

// A rig is a complete fleetd with an embedded PostgreSQL: fleetd serve as users run
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

var benchActor = fleet.Principal{Kind: fleet.KindProgram, Name: "bench", Role: fleet.RoleAdmin}

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

// join connects to the rig's PostgreSQL to read its counters.
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

// postmaster returns the PostgreSQL process of a data directory.
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

// populate enrols n devices, connects them and waits until fleetd has listed their
// tools and has settled.
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

// settle waits until fleetd has finished its work for n new connections.
func settle(n int) { time.Sleep(2*time.Second + time.Duration(n)*time.Millisecond) }

// variant returns calls to this fleetd as a variant; in process, the load is part
// of it.
func (r *rig) variant(do func(worker int) error, devices *deviceProcess) variant {
	v := variant{do: do, calls: 1, processes: []process{r.fleetd, r.postgres}, stop: r.stop, rig: r}
	if r.child != nil {
		v.processes = append(v.processes, self(ofLoad))
	}
	v.processes = append(v.processes, devices.process(ofDevices))
	return v
}

// enrol sends the boot polls of n devices and returns their credentials.
func (r *rig) enrol(n int) ([]credentials, error) {
	r.ids = make([]fleet.DeviceID, n)
	for i := range r.ids {
		r.ids[i] = fleet.DeviceID(fmt.Sprintf("02beef%06x", i))
	}
	all := make([]credentials, n)
	var g errgroup.Group
	g.SetLimit(16)
	for i := range all {
		g.Go(func() error {
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
			m := answer.MQTT
			all[i] = credentials{ClientID: m.ClientID, Username: m.Username, Password: m.Password, Up: m.PublishTopic}
			return err
		})
	}
	return all, g.Wait()
}

// listed waits until the tools of all n devices are listed.
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
	c, err := r.server.Calls.Make(context.Background(), call.Request{Actor: benchActor,
		Device: r.ids[worker%len(r.ids)], Tool: "self.audio_speaker.set_volume", Arguments: json.RawMessage(`{"volume":50}`)})
	if err == nil && c.State != fleet.CallSucceeded {
		err = fmt.Errorf("call to %s ended %s: %+v", c.Device, c.State, c.Error)
	}
	return err
}

// rest makes calls through REST on persistent connections, one for each of n
// workers.
func (r *rig) rest(n int) *httpLoad {
	requests := make([][]byte, n)
	for i := range requests {
		requests[i] = httpRequest("POST", r.http, "/api/v1/devices/"+string(r.ids[i%len(r.ids)])+"/calls", callBody,
			"Authorization: Bearer "+r.token)
	}
	return newHTTPLoad(r.http, `"state":"succeeded"`, requests)
}

// mcp makes the same calls through the MCP server, without a session.
func (r *rig) mcp(n int) *httpLoad {
	requests := make([][]byte, n)
	for i := range requests {
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"call_device",`+
			`"arguments":{"device":%q,%s}}`, i+1, r.ids[i%len(r.ids)], callBody[1:])
		requests[i] = httpRequest("POST", r.http, "/mcp", body, "Authorization: Bearer "+r.token,
			"Accept: application/json, text/event-stream", "MCP-Protocol-Version: 2025-11-25")
	}
	return newHTTPLoad(r.http, `"state":"succeeded"`, requests)
}

// benchSessions are shared by the workers: a token may have 32.
const benchSessions = 16

// mcpSession makes the same calls through the MCP server as clients with an SDK do:
// in a session, and with a token for progress.
func (r *rig) mcpSession(n int) (*httpLoad, error) {
	headers := []string{"Authorization: Bearer " + r.token, "Accept: application/json, text/event-stream",
		"MCP-Protocol-Version: 2025-11-25"}
	sessions := make([]string, min(n, benchSessions))
	for i := range sessions {
		id, err := r.openSession(headers)
		if err != nil {
			return nil, err
		}
		sessions[i] = "Mcp-Session-Id: " + id
	}
	requests := make([][]byte, n)
	for i := range requests {
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"_meta":{"progressToken":%d},`+
			`"name":"call_device","arguments":{"device":%q,%s}}`, i+1, i+1, r.ids[i%len(r.ids)], callBody[1:])
		requests[i] = httpRequest("POST", r.http, "/mcp", body, append(headers, sessions[i%len(sessions)])...)
	}
	return newHTTPLoad(r.http, `"state":"succeeded"`, requests), nil
}

// openSession opens a session of the MCP server, and returns its id.
func (r *rig) openSession(headers []string) (string, error) {
	post := func(session, body string) (*http.Response, error) {
		req, err := http.NewRequest(http.MethodPost, "http://"+r.http+"/mcp", strings.NewReader(body))
		if err != nil {
			return nil, err
		}
		for _, h := range append(headers, "Content-Type: application/json", "Mcp-Session-Id: "+session) {
			if name, value, _ := strings.Cut(h, ": "); value != "" {
				req.Header.Set(name, value)
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		if err == nil && resp.StatusCode >= 300 {
			err = fmt.Errorf("%s: %s", body, resp.Status)
		}
		return resp, err
	}
	resp, err := post("", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25",`+
		`"capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`)
	if err != nil {
		return "", err
	}
	id := resp.Header.Get("Mcp-Session-Id")
	if id == "" {
		return "", errors.New("initialize opened no session")
	}
	_, err = post(id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return id, err
}

// fanOut calls all devices through REST, with the record of each, and returns
// how long that took.
func (r *rig) fanOut(window int) (time.Duration, error) {
	type view struct {
		ID     string
		State  call.FanOutState
		Counts struct{ Succeeded int }
	}
	var made, done view
	begin := time.Now()
	err := r.ask("POST", "/fanouts", fmt.Sprintf(`{"q":"","max_in_flight":%d,%s`, window, callBody[1:]), &made)
	if err != nil {
		return 0, err
	}
	for list := (struct{ Items []view }{}); len(list.Items) == 0 || list.Items[0].State == call.FanOutRunning; {
		time.Sleep(20 * time.Millisecond)
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

// ask sends a request of REST that is not part of the measurement.
func (r *rig) ask(method, path, body string, answer any) error {
	client := httpClient{addr: r.http}
	defer client.close()
	status, data, err := client.do(httpRequest(method, r.http, "/api/v1"+path, body, "Authorization: Bearer "+r.token))
	if err == nil && status >= 300 {
		err = fmt.Errorf("%s %s: status %d: %.200s", method, path, status, data)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(data, answer)
}
