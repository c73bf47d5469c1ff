package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fleetd/fleet/postgres/embedded"
)

// serveOptions select which fleetd runs, and how. Devices join at once: by default
// a person approves each, which does not affect calls.
type serveOptions struct {
	Fleetd string `help:"The program fleetd." default:"bin/fleetd"`
	Procs  int    `help:"GOMAXPROCS of fleetd; 0 is all cores." default:"0"`
	TCP    bool   `help:"fleetd reaches its PostgreSQL over TCP (--database-url), and not over a socket of its data directory."`

	settings map[string]string // of that PostgreSQL
}

// startServe starts fleetd serve as a child with default flags, except for
// addresses, enrolment, and the given flags.
func startServe(ctx context.Context, dir string, o serveOptions, flags ...string) (_ *rig, err error) {
	r := &rig{}
	for _, addr := range []*string{&r.http, &r.mqtt, &r.admin} {
		if *addr, err = freeAddr(); err != nil {
			return nil, err
		}
	}
	clusterDir := dir // the directory that contains PostgreSQL's
	env := append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "FLEETD_") || strings.HasPrefix(v, "DATABASE_URL=")
	}), "FLEETD_DATA_DIR="+dir)
	if o.Procs > 0 {
		env = append(env, "GOMAXPROCS="+strconv.Itoa(o.Procs))
	}
	if o.TCP {
		clusterDir = dir + "-postgres"
		var url string
		if r.separate, url, err = postgresOverTCP(ctx, clusterDir, o.settings); err != nil {
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
	r.child = exec.Command(o.Fleetd, append([]string{"serve", "--http-addr", r.http, "--mqtt-addr", r.mqtt,
		"--admin-addr", r.admin, "--enrolment", "open"}, flags...)...)
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
func postgresOverTCP(ctx context.Context, dir string, settings map[string]string) (pg *embedded.Server, url string,
	err error) {
	const host = "127.54.32.1" // on the loopback interface; others use the port on 127.0.0.1
	settings = maps.Clone(settings)
	if settings == nil {
		settings = make(map[string]string)
	}
	settings["listen_addresses"] = host
	pg, err = embedded.Start(ctx, embedded.Options{DataDir: dir, Settings: settings})
	if err != nil {
		return nil, "", err
	}
	file := filepath.Join(dir, "postgres", "pg_hba.conf")
	rules, err := os.ReadFile(file)
	if err == nil { // by default the cluster refuses hosts
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
