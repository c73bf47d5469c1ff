package server

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// A streamReceiver receives the whole record from whichever process leads, as batches of CloudEvents.
type streamReceiver struct {
	*httptest.Server

	mu       sync.Mutex
	next     int64            // entry that must follow, unless an earlier one is repeated
	lines    map[int64]string // of the entries before next
	repeated int
	gaps     []int64 // entries that came too early
	changed  []int64 // entries that were repeated with another line
}

func newStreamReceiver(t *testing.T) *streamReceiver {
	r := &streamReceiver{lines: make(map[int64]string)}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *streamReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the sender was killed
	}
	var events []struct {
		ID   string
		Data json.RawMessage
	}
	if json.Unmarshal(body, &events) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		n, err := strconv.ParseInt(e.ID, 10, 64)
		switch line := string(e.Data); {
		case err != nil || n > r.next:
			r.gaps = append(r.gaps, n)
		case n == r.next:
			r.lines[n] = line
			r.next++
		default:
			if r.repeated++; r.lines[n] != line {
				r.changed = append(r.changed, n)
			}
		}
	}
}

// follow creates the stream that sends the record to the receiver.
func (r *streamReceiver) follow(w *leaseWorld) {
	w.t.Helper()
	body, _ := json.Marshal(map[string]any{"name": "standby", "kind": "webhook", "url": r.URL, "batch": 20,
		"from": "start"})
	req, err := http.NewRequest("POST", "http://"+w.first.http+"/api/v1/log-streams", strings.NewReader(string(body)))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		text, _ := io.ReadAll(resp.Body)
		w.t.Fatalf("the log stream was not created: %s %s", resp.Status, text)
	}
}

// check waits until the receiver has the whole record, and compares it with what callers were answered.
func (r *streamReceiver) check(w *leaseWorld, l *standbyLoad) {
	t := w.t
	t.Helper()
	fleettest.EventuallyWithin(t, time.Minute, "the receiver to have the whole record", func() bool {
		if w.count(`SELECT count(*) FROM record_queue`) > 0 {
			return false
		}
		size := w.count(`SELECT coalesce(max(size), 0) FROM record_checkpoints`) // contains what was in the queue
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.next >= int64(size)
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.gaps) > 0 || len(r.changed) > 0 {
		t.Errorf("entries that came before an earlier one: %v; repeated with another line: %v", r.gaps, r.changed)
	}
	received := make(map[string]int)
	for n := range r.next {
		var line struct {
			Entry, Tool, State string
			Arguments          chaosMarker
		}
		// Of other tools, the arguments have another form.
		err := json.Unmarshal([]byte(r.lines[n]), &line)
		if err == nil && line.Entry == "call" && line.Tool == chaosTool && line.State == string(fleet.CallSucceeded) {
			marker, _ := json.Marshal(line.Arguments)
			received[string(marker)]++
		}
	}
	for marker, state := range l.states {
		if n := received[marker]; state == string(fleet.CallSucceeded) && n != 1 {
			t.Errorf("call %s was acknowledged, and the receiver has %d entries of it", marker, n)
		}
	}
	t.Logf("the receiver has %d entries, and got %d of them again", r.next, r.repeated)
}
