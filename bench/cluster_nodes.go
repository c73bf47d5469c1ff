package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet/postgres/embedded"
)

// A clusterRig is a cluster of processes on this machine: two cores, edges, and their PostgreSQL.
type clusterRig struct {
	fleetd string // the program
	nice   bool   // edges and devices yield to cores and database
	dir    string
	env    []string // of the cores
	token  string   // of an administrator
	db     *pgxpool.Pool
	pg     *embedded.Server
	cores  []*clusterNode
	edges  []*clusterNode
}

// A clusterNode is a core or an edge.
type clusterNode struct {
	name              string
	http, mqtt, admin string // addresses; mqtt of an edge only
	args, env         []string
	log               string      // file
	ended             chan error  // of the running process
	process           *os.Process // nil before it was started
}

// newClusterRig starts the cluster without devices.
func newClusterRig(ctx context.Context, fleetd, dir string, edges int, nice bool) (_ *clusterRig, err error) {
	r := &clusterRig{fleetd: fleetd, nice: nice, dir: dir}
	defer func() {
		if err != nil {
			r.stop()
		}
	}()
	var url string
	if r.pg, url, err = postgresOverTCP(ctx, filepath.Join(dir, "postgres"), nil); err != nil {
		return nil, err
	}
	if r.db, err = pgxpool.New(ctx, url); err != nil {
		return nil, err
	}
	r.env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "FLEETD_") || strings.HasPrefix(v, "DATABASE_URL=")
	}), "FLEETD_DATA_DIR="+dir)
	if err := r.plan(url, edges); err != nil {
		return nil, err
	}
	if err := r.checkPorts(); err != nil {
		return nil, err
	}
	for _, n := range slices.Concat(r.cores, r.edges) {
		if err := r.start(ctx, n); err != nil {
			return nil, err
		}
	}
	r.token, err = r.run("token", "create", "bench", "--role", "admin")
	return r, err
}

// plan gives the nodes their names, addresses and certificates.
func (r *clusterRig) plan(url string, edges int) error {
	ca := filepath.Join(r.dir, "ca")
	if _, err := r.run("cluster", "init", ca); err != nil {
		return err
	}
	ports := 20000 // below the range for outgoing connections, which the devices nearly use up
	addr := func() string { ports += 2; return "127.0.0.1:" + strconv.Itoa(ports) }
	servers := []string{addr(), addr()}
	node := func(role string, i int) (*clusterNode, error) {
		n := &clusterNode{name: role + "-" + strconv.Itoa(i+1), http: addr(), admin: addr(), env: r.env}
		n.log = filepath.Join(r.dir, n.name+".log")
		_, err := r.run("cluster", "cert", "--dir", ca, n.name, "--role", role)
		n.args = []string{"serve", "--role", role, "--cluster-dir", filepath.Join(ca, n.name), "--admin-addr", n.admin}
		return n, err
	}
	for i := range edges {
		n, err := node("edge", i)
		if err != nil {
			return err
		}
		n.mqtt = addr()
		n.args = append(n.args, "--http-addr", n.http, "--mqtt-addr", n.mqtt, "--voice-udp-addr", "127.0.0.1:0",
			"--cluster-servers", strings.Join(servers, ","))
		r.edges = append(r.edges, n)
	}
	r.env = append(r.env, "FLEETD_DATABASE_URL="+url)
	for i, listen := range servers {
		n, err := node("core", i)
		if err != nil {
			return err
		}
		n.args = append(n.args, "--cluster-listen", listen, "--cluster-routes", servers[1-i], "--internal-addr", n.http,
			"--blobs-shared", "--enrolment", "open", "--public-url", "http://"+r.edges[0].http, "--mqtt-endpoint", r.edges[0].mqtt)
		r.cores = append(r.cores, n)
	}
	return nil
}

// run runs fleetd to its end and returns what it printed.
func (r *clusterRig) run(args ...string) (string, error) {
	cmd := exec.Command(r.fleetd, args...)
	cmd.Env = r.env
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("fleetd %s: %w: %s", strings.Join(args, " "), err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// start starts the node and waits until it serves. A core that is not the first stands by.
func (r *clusterRig) start(ctx context.Context, n *clusterNode) error {
	log, err := os.OpenFile(n.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args := append([]string{r.fleetd}, n.args...)
	if n.mqtt != "" {
		args = append(r.niced(5), args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = n.env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%w: build it with go build -o bin/ ./cmd/fleetd, or name one with --fleetd", err)
	}
	n.process, n.ended = cmd.Process, make(chan error, 1)
	go func() { n.ended <- cmd.Wait() }()
	path := "/readyz"
	if r.token != "" || len(r.cores) > 0 && n == r.cores[len(r.cores)-1] {
		path = "/healthz"
	}
	return n.await(ctx, path)
}

// niced returns what starts a program with a lower priority.
func (r *clusterRig) niced(n int) []string {
	if !r.nice {
		return nil
	}
	return []string{"nice", "-n", strconv.Itoa(n)}
}

// await waits until the node answers 200.
func (n *clusterNode) await(ctx context.Context, path string) error {
	for range 1200 {
		resp, err := http.Get("http://" + n.admin + path)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case err := <-n.ended:
			n.ended <- err
			return fmt.Errorf("%s ended: %w; its log is %s", n.name, err, n.log)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return fmt.Errorf("%s does not answer %s; its log is %s", n.name, path, n.log)
}

// end ends the node's process with a signal and waits for its end.
func (n *clusterNode) end(signal syscall.Signal) {
	if n.process == nil {
		return
	}
	_ = n.process.Signal(signal)
	select {
	case <-n.ended:
	case <-time.After(time.Minute):
		_ = n.process.Kill()
		<-n.ended
	}
	n.process = nil
}

// metric returns a metric of the node without labels.
func (n *clusterNode) metric(name string) (float64, error) {
	resp, err := http.Get("http://" + n.admin + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if key, value, _ := strings.Cut(strings.TrimSpace(line), " "); key == name {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("%s has no metric %s", n.name, name)
}

// leader returns the core that leads, or nil.
func (r *clusterRig) leader() *clusterNode {
	for _, n := range r.cores {
		if n.process == nil {
			continue
		}
		if resp, err := http.Get("http://" + n.admin + "/readyz"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return n
			}
		}
	}
	return nil
}

// online returns how many devices the leader shows as connected, 0 without a leader.
func (r *clusterRig) online() int {
	n := r.leader()
	if n == nil {
		return 0
	}
	v, _ := n.metric("fleetd_mqtt_connections") // 0 while it is about to end
	return int(v)
}

// connections returns how many devices a node holds.
func (r *clusterRig) connections(node *clusterNode) (int, error) {
	req, err := http.NewRequest(http.MethodGet, "http://"+node.http+"/api/v1/cluster", nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var v struct {
		Nodes []struct {
			Name        string
			Connections int
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		return 0, fmt.Errorf("GET /cluster: %s: %w", resp.Status, err)
	}
	for _, n := range v.Nodes {
		if n.Name == node.name {
			return n.Connections, nil
		}
	}
	return 0, fmt.Errorf("GET /cluster: %s, without %s", resp.Status, node.name)
}

func (r *clusterRig) stop() {
	for _, n := range slices.Concat(r.edges, r.cores) {
		n.end(syscall.SIGKILL)
	}
	if r.db != nil {
		r.db.Close()
	}
	if r.pg != nil {
		_ = r.pg.Stop(context.Background())
	}
}

// memoryOf returns the memory that the processes share fairly (Pss), in MiB.
func memoryOf(pids ...int) (sum float64) {
	for _, pid := range pids {
		sum += procFields(fmt.Sprintf("/proc/%d/smaps_rollup", pid))["Pss"] / 1024
	}
	return sum
}

// checkPorts returns an error if an address of the plan is in use.
func (r *clusterRig) checkPorts() error {
	for _, n := range slices.Concat(r.cores, r.edges) {
		for _, addr := range []string{n.http, n.admin, n.mqtt} {
			if addr == "" {
				continue
			}
			ln, err := net.Listen("tcp", addr)
			if err != nil {
				return fmt.Errorf("%w; does another cluster run?", err)
			}
			ln.Close()
		}
	}
	return nil
}
