package api

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/heavy"
)

// Every operation that costs much more than its request is declared as heavy.
func TestLargeBodiesAndFilesAreHeavy(t *testing.T) {
	w := newWorld(t)
	for path, item := range w.api.huma.OpenAPI().Paths {
		for method, op := range operationsOf(item) {
			work, _ := op.Metadata[heavyKey].(heavy.Work)
			streams, _ := op.Metadata[streamsKey].(bool)
			large := method != http.MethodGet && (streams || op.MaxBodyBytes > maxBody+1)
			if (large || strings.HasSuffix(path, ".csv")) && work == heavy.None {
				t.Errorf("%s %s declares no heavy work", method, path)
			}
		}
	}
}

// A principal runs one import at a time, and the body of a second one is not read.
func TestOneImportOfAPrincipalAtATime(t *testing.T) {
	w := newWorld(t)
	conn, err := net.Dial("tcp", w.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"csv":"id,name\n"}`
	fmt.Fprintf(conn, "POST %s/devices/import HTTP/1.1\r\nHost: fleet.test\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
		"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n", prefix, w.tokens[fleet.RoleOperator], len(body))
	in := bufio.NewReader(conn)
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, " 100 ") { // when it reads the body
		t.Fatalf("%q, %v", line, err)
	}
	again := w.as(t, fleet.RoleOperator, http.MethodPost, "/devices/import", `{"csv":"id,name\n"}`)
	if p := again.problem(t); again.status != http.StatusTooManyRequests || p.Code != "heavy_at_once" ||
		again.header.Get("Retry-After") == "" {
		t.Errorf("a second import: %d %s", again.status, again.body)
	}
	if r := w.as(t, fleet.RoleAdmin, http.MethodPost, "/devices/import", `{"csv":"id,name\n"}`); r.status != 200 {
		t.Errorf("another principal's import: %d %s", r.status, r.body)
	}
	_, _ = in.ReadString('\n')
	fmt.Fprint(conn, body)
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, " 200 ") {
		t.Errorf("the first import: %q, %v", line, err)
	}
	if r := w.as(t, fleet.RoleOperator, http.MethodPost, "/devices/import", `{"csv":"id,name\n"}`); r.status != 200 {
		t.Errorf("one after the first: %d %s", r.status, r.body)
	}
}

// An import uses memory in proportion to its body, and a token without per_minute is limited too.
func TestImportsAreBounded(t *testing.T) {
	w := newWorldAlone(t)
	hostile := `{"csv":"id,name\n` + strings.Repeat(",", 7<<20) + `"}`
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := w.post(t, "/devices/import", hostile)
	runtime.ReadMemStats(&after)
	if p := r.problem(t); p.Code != "device_file_too_wide" {
		t.Fatalf("7 MiB of commas: %d %s", r.status, r.body)
	}
	// Reading, decoding and validating allocate the body about nine times.
	if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 400 {
		t.Errorf("7 MiB of commas allocate %d MiB", n)
	}
	for range 500 { // a slot becomes free every three seconds
		r := w.post(t, "/devices/import", `{"csv":"id,name\n"}`)
		if r.status == http.StatusTooManyRequests {
			if p := r.problem(t); p.Code != "heavy_rate" {
				t.Errorf("%s, want heavy_rate", r.body)
			}
			return
		}
		if r.status != 200 {
			t.Fatalf("%d %s", r.status, r.body)
		}
	}
	t.Error("imports of a token without per_minute are not bounded")
}
