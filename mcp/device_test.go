package mcp_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"

	"fleetd/mcp"
)

// A device is the far end of a session, in memory: it records each message with
// its envelope, and answers from a script.
type device struct {
	session *mcp.Session
	answer  func(wire string) []string // uplinks to deliver at once; nil is a silent device
	sendErr error

	mu   sync.Mutex
	sent []string
}

// connect joins a session to a device.
func connect(o mcp.SessionOptions, answer func(wire string) []string) (*mcp.Session, *device) {
	d := &device{answer: answer}
	d.session = mcp.NewSession(d, o)
	return d.session, d
}

func (d *device) Send(_ context.Context, msg []byte, scope mcp.Scope) error {
	if d.sendErr != nil {
		return d.sendErr
	}
	wire := string(mcp.AppendEnvelope(nil, msg, scope))
	d.mu.Lock()
	d.sent = append(d.sent, wire)
	d.mu.Unlock()
	if d.answer != nil {
		for _, up := range d.answer(wire) {
			d.deliver([]byte(up))
		}
	}
	return nil
}

// deliver passes an uplink to the session, as a broker does.
func (d *device) deliver(raw []byte) {
	e, err := mcp.ParseEnvelope(raw)
	switch {
	case err != nil:
		d.session.ReceiveBroken(raw)
	case e.Type == mcp.TypeMCP:
		d.session.Receive(e.Payload)
	}
}

// replies answers the nth request with the nth text.
func replies(texts ...string) func(string) []string {
	return func(wire string) []string {
		if strings.Contains(wire, `"method":"notifications`) || len(texts) == 0 {
			return nil
		}
		next := texts[0]
		texts = texts[1:]
		return []string{next}
	}
}

// request is the request of a vector.
type request struct {
	Type    string
	Payload struct {
		ID     int32
		Method string
		Params struct {
			Name          string
			Arguments     json.RawMessage
			Cursor        string
			WithUserTools bool
			ClientInfo    struct{ Name, Version string }
			Capabilities  struct {
				Vision struct{ URL, Token string }
			}
		}
	}
}

func parseRequest(t *testing.T, wire string) request {
	t.Helper()
	var r request
	if err := json.Unmarshal([]byte(wire), &r); err != nil {
		t.Fatalf("vector request %s: %v", wire, err)
	}
	return r
}

// loadVectors reads a vector file. A member that the test does not know, and so
// would not check, is an error.
func loadVectors(t testing.TB, name string, into any) {
	t.Helper()
	decodeVectors(t, name, into, (*json.Decoder).DisallowUnknownFields)
}

// loadLoosely is loadVectors for a file that is only partly about this package.
func loadLoosely(t testing.TB, name string, into any) {
	t.Helper()
	decodeVectors(t, name, into, func(*json.Decoder) {})
}

func decodeVectors(t testing.TB, name string, into any, configure func(*json.Decoder)) {
	t.Helper()
	f, err := os.Open("testdata/vectors/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dec := json.NewDecoder(f)
	configure(dec)
	if err := dec.Decode(into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}
