package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/bench/large"
	"fleetd/fleet/postgres"
	"fleetd/migrations"
)

// scaleCommand measures the pages of fleetd serve, and its record, over a large fleet and a year of calls.
type scaleCommand struct {
	serveOptions
	Calls   int    `help:"Calls in the last year." default:"10000000"`
	Devices int    `help:"Devices." default:"100000"`
	Output  string `help:"Also write the report to this file." placeholder:"FILE"`
}

const scalePassword = "lantern-quartz-mosaic-41"

// Run fills a database, starts fleetd on it, and measures. It needs 3 KB of disk for each call.
func (c *scaleCommand) Run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "fleetd-scale")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	m := &scale{c: c, dir: filepath.Join(dir, "data"), now: time.Now()}
	steps := []func(context.Context) error{m.begin, m.fill, m.measure, m.explain}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	text := m.report()
	fmt.Print(text)
	if c.Output == "" {
		return nil
	}
	return os.WriteFile(c.Output, []byte(text), 0o644)
}

// A scale is one run of [scaleCommand].
type scale struct {
	c     *scaleCommand
	dir   string // data directory of fleetd; that of PostgreSQL has the suffix -postgres
	now   time.Time
	queue [][]any // rows of record_queue
	pages []*scalePage
	lines []string // further results

	entries int64
	size    string // of the database
}

// A scalePage is an address whose time is measured.
type scalePage struct {
	name, path string
	limit      time.Duration
	console    bool
	next       bool // measure the second page of a list of the REST API

	took time.Duration
	plan string // of the slowest statement, with its time
}

func (m *scale) say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	fmt.Fprintln(os.Stderr, line)
	m.lines = append(m.lines, line)
}

const days = 365

// begin makes a database whose record began a year ago, and lets fleetd start on it once.
func (m *scale) begin(ctx context.Context) error {
	err := m.onDatabase(ctx, func(db *pgxpool.Pool) error {
		if err := migrations.Up(ctx, db); err != nil {
			return err
		}
		return large.RecordStart(ctx, db, m.now.AddDate(0, 0, -days-1))
	})
	if err != nil {
		return err
	}
	r, err := m.serve(ctx, nil)
	if err == nil {
		r.stop()
	}
	return err
}

// onDatabase uses the database while fleetd does not run.
func (m *scale) onDatabase(ctx context.Context, use func(db *pgxpool.Pool) error) error {
	pg, dsn, err := postgresOverTCP(ctx, m.dir+"-postgres", map[string]string{"max_wal_size": "8GB"})
	if err != nil {
		return err
	}
	defer func() { _ = pg.Stop(context.WithoutCancel(ctx)) }()
	db, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	return use(db)
}

// fill writes the fleet and its past.
func (m *scale) fill(ctx context.Context) error {
	begun := time.Now()
	seal := func(leaves []byte) { m.queue = append(m.queue, []any{leaves}) }
	f := m.fleet()
	f.Seal = seal
	err := m.onDatabase(ctx, func(db *pgxpool.Pool) error {
		if err := f.Write(ctx, db); err != nil {
			return err
		}
		if err := large.States(ctx, db, days); err != nil {
			return err
		}
		if err := large.Catalogue(ctx, db); err != nil {
			return err
		}
		s := postgres.New(db, postgres.Options{})
		if _, err := s.RollUpUsage(ctx, m.now); err != nil { // fleetd would have counted each hour when it ended
			return err
		}
		for _, before := range []time.Duration{days * 24, 300*24 + 6, 45*24 + 6, 27, 3, 1} { // as old as they ever are
			if err := s.FrameFleet(ctx, m.now.Add(-before*time.Hour)); err != nil {
				return err
			}
		}
		if err := large.SealPresence(ctx, db, seal); err != nil {
			return err
		}
		return db.QueryRow(ctx, `SELECT pg_size_pretty(pg_database_size(current_database()))`).Scan(&m.size)
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "wrote %d calls in %v\n", m.c.Calls, time.Since(begun).Round(time.Second))
	return nil
}

// serve starts fleetd on the database.
func (m *scale) serve(ctx context.Context, settings map[string]string) (*rig, error) {
	o := m.c.serveOptions
	o.TCP, o.settings = true, settings
	return startServe(ctx, m.dir, o, "--admin-password", scalePassword)
}

func (m *scale) measure(ctx context.Context) error {
	r, err := m.serve(ctx, nil)
	if err != nil {
		return err
	}
	defer r.stop()
	if err := m.seal(ctx, r); err != nil {
		return err
	}
	if err := m.export(ctx, r); err != nil {
		return err
	}
	if err := m.verify(ctx, r); err != nil {
		return err
	}
	browser, err := signIn(r)
	if err != nil {
		return err
	}
	m.pages = m.list()
	for _, p := range m.pages {
		if err := p.measure(ctx, r, browser); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%8.1f ms  %s\n", ms(p.took), p.name)
	}
	return nil
}

// seal queues all leaves, and waits until fleetd has appended them.
func (m *scale) seal(ctx context.Context, r *rig) error {
	if _, err := r.db.CopyFrom(ctx, pgx.Identifier{"record_queue"}, []string{"leaves"}, pgx.CopyFromRows(m.queue)); err != nil {
		return err
	}
	m.queue = nil
	begun := time.Now()
	for {
		var waits bool
		if err := r.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM record_queue)`).Scan(&waits); err != nil {
			return err
		}
		if !waits {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	took := time.Since(begun)
	err := r.db.QueryRow(ctx, `SELECT max(size) FROM record_checkpoints`).Scan(&m.entries)
	m.say("%d entries appended in %.1f s: %.0f a second", m.entries, took.Seconds(), float64(m.entries)/took.Seconds())
	return err
}

// verify runs a verification.
func (m *scale) verify(ctx context.Context, r *rig) error {
	var v struct {
		State    string  `json:"state"`
		Checked  int64   `json:"checked"`
		Duration float64 `json:"duration_ms"`
		Findings []any   `json:"findings"`
	}
	if err := r.ask(http.MethodPost, "/audit/verify", `{}`, &v); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := r.ask(http.MethodGet, "/audit/verify", "", &v); err != nil {
			return err
		}
		switch {
		case v.State == "running":
			time.Sleep(200 * time.Millisecond)
			continue
		case v.State != "sound":
			return fmt.Errorf("the verification ended as %s: %v", v.State, v.Findings)
		}
		m.say("%d entries verified in %.1f s: %.0f a second", v.Checked, v.Duration/1000, float64(v.Checked)/v.Duration*1000)
		return nil
	}
	return ctx.Err()
}

// export reads a million calls, and watches the memory of fleetd.
func (m *scale) export(ctx context.Context, r *rig) error {
	for _, format := range []string{"ndjson", "csv"} {
		begun, before, most := time.Now(), rss(r.fleetd.pid), 0.0
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.http+"/api/v1/audit/export?kind=call&format="+format, nil)
		req.Header.Set("Authorization", "Bearer "+r.token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		lines, early, last := 0, 0.0, ""
		for scan := bufio.NewScanner(resp.Body); lines < 1_000_000 && scan.Scan(); lines++ {
			last = scan.Text()
			if lines%10_000 == 0 {
				now := rss(r.fleetd.pid)
				if most = max(most, now); lines < 100_000 {
					early = max(early, now)
				}
			}
		}
		resp.Body.Close()
		if lines < min(m.c.Calls, 1_000_000) {
			return fmt.Errorf("an export ended after %d lines: %s", lines, last)
		}
		m.say("%d calls exported as %s in %.1f s: fleetd's memory was %.0f MiB before, at most %.0f MiB in the first 100,000 "+
			"and %.0f MiB in all", lines, format, time.Since(begun).Seconds(), before/1024, early/1024, most/1024)
	}
	return nil
}

// get returns the body of a successful answer.
func get(client *http.Client, req *http.Request) ([]byte, error) {
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %.300s", req.Method, req.URL.RequestURI(), resp.Status, body)
	}
	return body, err
}

// signIn returns a client with a session of the console.
func signIn(r *rig) (*http.Client, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Jar: jar}
	form := url.Values{"name": {"admin"}, "password": {scalePassword}}
	resp, err := client.PostForm("http://"+r.http+"/sign-in", form)
	if err != nil {
		return nil, err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Request.URL.Path == "/sign-in" {
		return nil, errors.New("cannot sign in: " + resp.Status)
	}
	return client, nil
}

// request asks for the page, and returns the body.
func (p *scalePage) request(ctx context.Context, r *rig, browser *http.Client) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.http+p.path, nil)
	if err != nil {
		return nil, err
	}
	if p.console {
		return get(browser, req)
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	return get(http.DefaultClient, req)
}

// measure asks for the page once, and takes the median of five further times.
func (p *scalePage) measure(ctx context.Context, r *rig, browser *http.Client) error {
	body, err := p.request(ctx, r, browser)
	if err != nil {
		return err
	}
	if p.next {
		var page struct {
			Next string `json:"next_cursor"`
		}
		if err := json.Unmarshal(body, &page); err != nil || page.Next == "" {
			return fmt.Errorf("%s has no second page", p.path)
		}
		p.path += "&cursor=" + url.QueryEscape(page.Next)
	}
	var took []time.Duration
	for range 5 {
		begun := time.Now()
		if _, err := p.request(ctx, r, browser); err != nil {
			return err
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	p.took = took[len(took)/2]
	return nil
}

// explainAll makes PostgreSQL log the plan of each statement that takes some time.
var explainAll = map[string]string{"session_preload_libraries": "auto_explain", "auto_explain.log_min_duration": "2ms",
	"auto_explain.log_analyze": "on", "auto_explain.log_buffers": "on", "auto_explain.log_timing": "off",
	"auto_explain.log_nested_statements": "on", "auto_explain.log_parameter_max_length": "0"}

// explain asks for each page again, and keeps the plan of its slowest statement.
func (m *scale) explain(ctx context.Context) error {
	r, err := m.serve(ctx, explainAll)
	if err != nil {
		return err
	}
	defer r.stop()
	browser, err := signIn(r)
	if err != nil {
		return err
	}
	logs := filepath.Join(m.dir+"-postgres", "postgres", "log")
	for _, p := range m.pages {
		if _, err := p.request(ctx, r, browser); err != nil {
			return err
		}
		begin, err := logSize(logs)
		if err != nil {
			return err
		}
		if _, err := p.request(ctx, r, browser); err != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond) // the collector of the log writes later
		if p.plan, err = slowestPlan(logs, begin); err != nil {
			return err
		}
	}
	return nil
}

// list returns the pages, each with its limit.
func (m *scale) list() []*scalePage {
	const all, one = 100 * time.Millisecond, 50 * time.Millisecond
	device := string(large.DeviceID(77))
	ago := func(days int) string { return m.now.AddDate(0, 0, -days).UTC().Format(time.RFC3339) }
	var pages []*scalePage
	add := func(limit time.Duration, prefix string, paths ...string) {
		for _, path := range paths {
			path = prefix + path
			pages = append(pages, &scalePage{name: "GET " + path, path: path, limit: limit, console: prefix == ""})
		}
	}
	add(all, "/api/v1", "/stats", "/devices", "/devices?q=board:board-3&sort=-last_seen", "/devices?q=kitchen",
		"/devices?q=presence:online+-hold&sort=version", "/devices?q=tool:self.t2&sort=-created",
		"/devices?q="+url.QueryEscape("seen<1d -tag:lab version>=1.2 board:board-1*"),
		"/calls", "/calls?tool=self.t3", "/calls?tool=none", "/calls?actor=op5", "/calls?state=timed_out", "/calls?state=refused",
		"/calls?actor=op5&state=timed_out", "/calls?since="+ago(200)+"&until="+ago(199), "/calls?fanout="+m.fleet().FanOut(500).String(),
		"/audit?kind=call", "/audit?kind=action", "/audit", "/audit?actor=op5",
		"/audit?kind=call,action&address="+large.OftenFrom, "/audit?kind=call,action&address="+large.SeldomFrom,
		"/audit?kind=call,action&address="+large.OnceFrom, "/audit?action=device.hold&since="+ago(300)+"&until="+ago(299),
		"/audit?kind=connection", "/audit?kind=connection&outcome=offline", "/audit?since="+ago(100)+"&until="+ago(99),
		"/fanouts", "/tools", "/tools/self.t3", "/campaigns", "/history/devices?as_of="+ago(300), "/history/devices?as_of="+ago(45)+"&q=board:board-3",
		"/history/devices?as_of="+ago(1)+"&q=presence:online", "/history/counts?as_of="+ago(300), "/history/counts?as_of="+ago(1),
		"/history/diff?from="+ago(45)+"&to="+ago(1), "/history/adoption?from="+ago(90), "/history/adoption?from="+ago(360))
	for _, path := range []string{"/devices?limit=50", "/calls?limit=50", "/calls?actor=op5", "/audit?limit=50", "/audit?kind=call"} {
		pages = append(pages, &scalePage{name: "GET /api/v1" + path + ", second page", path: "/api/v1" + path, limit: all, next: true})
	}
	add(one, "/api/v1", "/devices/"+device, "/devices/"+device+"/calls", "/devices/"+device+"/timeline", "/devices/"+device+"/states",
		"/devices/"+device+"/tools", "/devices/"+device+"/firmware", "/calls?device="+device, "/calls?device="+device+"&tool=self.t3",
		"/calls?device="+device+"&until="+ago(200), "/calls?device=000000000000", "/audit?subject="+device,
		"/audit?kind=call&subject="+device, "/audit?kind=connection&subject="+device)
	add(all, "", "/", "/devices", "/devices?q=board:board-3", "/calls", "/calls?actor=op5", "/calls?state=timed_out", "/audit",
		"/audit?kind=call", "/history", "/fanouts", "/tools")
	add(one, "", "/devices/"+device, "/devices/"+device+"/activity", "/devices/"+device+"/tools", "/calls?device="+device)
	return pages
}

// fleet is what fill writes.
func (m *scale) fleet() large.Fleet {
	return large.Fleet{Devices: m.c.Devices, Calls: m.c.Calls, FanOuts: 1000, Actions: m.c.Calls / 50,
		Span: days * 24 * time.Hour, Now: m.now}
}
