package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// spellings are the ways in which a Client-Id may be written.
func spellings(id string) []string {
	id = strings.ToLower(id)
	return []string{id, strings.ReplaceAll(id, "-", "")}
}

// A viewer who sees everything that devices report cannot read the Client-Id, which is
// enough to poll in a device's place. The database contains it only where credentials are
// made.
func TestViewersSeeNoClientID(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	board := d.simulate(sim.Options{Boards: []string{"bread-compact-wifi"}}).Device(0)
	const ownID = "5f0c0f4e-6f0a-4c7e-9d0e-2d6f1f7a9b10"
	const own = "/devices/020000000001"
	o := d.otherDevice("02:00:00:00:00:01", `{"version":7,"values":{"name":"`+strings.ToUpper(ownID)+`"}}`)
	d.listed(2)
	id, err := fleet.ParseDeviceID(board.ID())
	if err != nil {
		t.Fatal(err)
	}

	_, viewer, err := d.Operators.NewToken(t.Context(), testOperator, operator.TokenRequest{Name: "v", Role: fleet.RoleViewer})
	if err != nil {
		t.Fatal(err)
	}
	events := d.follow(viewer)
	var c callJSON
	if d.rest("POST", "/devices/"+string(id)+"/calls", map[string]any{"tool": "self.get_system_info"}, &c); c.State != "succeeded" {
		t.Fatalf("the call is %+v", c)
	}
	d.rest("POST", own+"/calls", map[string]any{"tool": "self.config.get"}, &c)
	o.report("job", `{"job":"j1","kind":"upgrade","state":"failed","code":"x","reason":"`+ownID+`"}`)
	d.eventually("the job on record", func() bool {
		var jobs list[struct{ Reason string }]
		d.rest("GET", own+"/jobs", nil, &jobs)
		return len(jobs.Items) == 1
	})
	if err := d.Enrolments.Rotate(t.Context(), testOperator, id); err != nil { // with its audit entry
		t.Fatal(err)
	}

	secrets := append(spellings(board.ClientID()), spellings(ownID)...)
	clean := func(where, text string) {
		t.Helper()
		for _, s := range secrets {
			if strings.Contains(strings.ToLower(text), s) {
				t.Errorf("%s shows a Client-Id: %.300s", where, text)
			}
		}
	}
	d.token = viewer
	for _, path := range []string{"/calls", "/calls?tool=self.get_system_info", "/devices", "/audit",
		"/devices/" + string(id), "/devices/" + string(id) + "/facts", "/devices/" + string(id) + "/timeline",
		"/devices/" + string(id) + "/calls", own, own + "/facts", own + "/jobs", own + "/timeline",
		own + "/calls"} {
		text := d.get(path)
		clean(path, text)
	}
	if text := d.get("/calls?tool=self.get_system_info"); !strings.Contains(text, `\"uuid\":\"***\"`) {
		t.Errorf("the result lost more than the Client-Id: %s", text)
	}
	clean("the stream of events", events())
	d.Close() // all pending data is stored
	clean("the database", d.dump(t))
}

// get returns REST's answer as text.
func (d *testServer) get(path string) string {
	d.t.Helper()
	req, _ := http.NewRequest("GET", "http://"+d.http+"/api/v1"+path, nil)
	req.Header.Set("Authorization", "Bearer "+d.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		d.t.Fatalf("GET %s: %s: %s", path, resp.Status, text)
	}
	return string(text)
}

// follow reads the stream of events with a token. The returned function ends the stream
// and returns its text.
func (d *testServer) follow(token string) func() string {
	ctx, cancel := context.WithCancel(context.Background())
	d.t.Cleanup(cancel)
	req, _ := http.NewRequestWithContext(ctx, "GET", "http://"+d.http+"/api/v1/events", nil)
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		d.t.Fatalf("events: %v %v", resp, err)
	}
	var said strings.Builder
	var wg sync.WaitGroup
	wg.Go(func() {
		defer resp.Body.Close()
		for s := bufio.NewScanner(resp.Body); s.Scan(); {
			said.WriteString(s.Text() + "\n")
		}
	})
	return func() string {
		cancel()
		wg.Wait()
		return said.String()
	}
}

// dump returns all text of the database, except columns that must contain Client-Ids and
// are not shown.
func (d *testServer) dump(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := pgx.Connect(ctx, d.cfg.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(ctx)
	rows, _ := db.Query(ctx, `
		SELECT table_name, column_name FROM information_schema.columns
		WHERE table_schema = current_schema()
			AND data_type IN ('text', 'json', 'jsonb', 'ARRAY', 'character varying', 'bytea')
			AND (table_name, column_name) NOT IN (('devices', 'client_id'), ('devices', 'new_client_id'),
				('connections', 'client_id'), ('upstream_accounts', 'client_id'))`)
	columns, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Table, Column string }])
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, c := range columns {
		rows, _ := db.Query(ctx, `SELECT `+pgx.Identifier{c.Column}.Sanitize()+`::text FROM `+
			pgx.Identifier{c.Table}.Sanitize()+` WHERE `+pgx.Identifier{c.Column}.Sanitize()+` IS NOT NULL`)
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			fmt.Fprintf(&all, "%s.%s: %s\n", c.Table, c.Column, text)
		}
	}
	if !strings.Contains(all.String(), "calls.result: ") {
		t.Fatal("the database was not read")
	}
	return all.String()
}
