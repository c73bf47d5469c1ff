package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// instantLink answers every call at once, without a goroutine: what is left is
// the path of the call itself.
type instantLink struct{ rpcID atomic.Int32 }

var open = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (l *instantLink) Queue(fleet.DeviceID) (fleet.Turn, error) {
	return instantTurn{l.rpcID.Add(1)}, nil
}

type instantTurn struct{ id int32 }

func (t instantTurn) Ready() <-chan struct{} { return open }
func (t instantTurn) Lost() <-chan struct{}  { return nil }
func (t instantTurn) RPCID() int32           { return t.id }
func (t instantTurn) Done()                  {}
func (t instantTurn) Send(context.Context, fleet.Invocation, func(fleet.Answer)) (fleet.Answer, error) {
	return trueAnswer, nil
}

var trueAnswer = fleettest.Text("true")

type noURLs struct{}

func (noURLs) UploadURL(context.Context, fleet.DeviceID, uuid.UUID, time.Duration) (string, error) {
	return "", nil
}
func (noURLs) CoreDumpURL(context.Context, fleet.DeviceID, uuid.UUID, time.Duration) (string, error) {
	return "", nil
}
func (noURLs) PreviewURL(context.Context, fleet.DeviceID, uuid.UUID, string, time.Duration) (string, error) {
	return "", nil
}

// tokenStore knows one token.
type tokenStore struct{ fleet.OperatorStore }

func (tokenStore) TokenByHash(context.Context, []byte) (fleet.Token, error) {
	return fleet.Token{ID: uuid.Max, Name: "bench", Role: fleet.RoleOperator}, nil
}
func (tokenStore) TouchToken(context.Context, uuid.UUID, time.Time) error { return nil }

// benchAPI is the API over calls that cost nothing but themselves.
func benchAPI(b *testing.B, store fleet.CallStore) *api {
	devices := &fleettest.Devices{}
	devices.PutInventory(fleet.Inventory{ID: "inv", Tools: tools})
	devices.Put(fleet.Device{ID: unit, Enrolment: fleet.EnrolmentEnrolled, InventoryID: "inv"})
	presence := fleet.NewPresences(fleet.PresenceOptions{})
	calls := fleet.NewCalls(fleet.CallsOptions{Store: store, Targets: fleet.NewTargets(devices, devices),
		Link:    &instantLink{},
		Watcher: presence, URLs: noURLs{}, Events: &fleet.Events{}})
	b.Cleanup(calls.Shutdown)
	return newAPI(Options{Calls: calls, Operators: fleet.NewOperators(tokenStore{}), Events: &fleet.Events{}})
}

// forgetfulStore keeps nothing, as fast as can be.
type forgetfulStore struct{ fleet.CallStore }

func (forgetfulStore) InsertCall(context.Context, *fleet.Call) error { return nil }
func (forgetfulStore) FinishCall(context.Context, *fleet.Call) error { return nil }

func callInProcess(b *testing.B, a *api) {
	r := fleet.CallRequest{Actor: fleet.Actor{Kind: fleet.ActorToken, Name: "bench", Role: fleet.RoleOperator},
		Device: unit,
		Tool:   "self.audio_speaker.set_volume", Arguments: json.RawMessage(`{"volume":50}`)}
	if c, err := a.Calls.Make(context.Background(), r); err != nil || c.State != fleet.CallSucceeded {
		b.Fatal(c.State, err)
	}
}

func newRequest(url string) *http.Request {
	req := httptest.NewRequest(http.MethodPost, url, strings.NewReader(volume50))
	req.RequestURI = ""
	req.Header.Set("Authorization", "Bearer flt_bench")
	req.Header.Set("Content-Type", "application/json")
	return req
}

func callOverHTTP(b *testing.B, client *http.Client, url string) {
	resp, err := client.Do(newRequest(url))
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
		b.Fatal(resp.StatusCode, err)
	}
}

// BenchmarkCall shows what REST adds to a call: first without any store, the
// handler alone and over a kept-alive connection; then with the calls on
// record in PostgreSQL, 64 in flight, as in life.
func BenchmarkCall(b *testing.B) {
	a := benchAPI(b, forgetfulStore{})
	h := mounted(a)
	b.Run("in-process", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			callInProcess(b, a)
		}
	})
	b.Run("handler", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, newRequest("http://h"+prefix+callPath))
			if w.Code != 200 {
				b.Fatal(w.Code, w.Body)
			}
		}
	})
	b.Run("http-alone", func(b *testing.B) { // what no framework can save
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = w.Write(make([]byte, 500))
		}))
		defer s.Close()
		for b.Loop() {
			callOverHTTP(b, s.Client(), s.URL+prefix+callPath)
		}
	})
	b.Run("keep-alive", func(b *testing.B) {
		b.ReportAllocs()
		s := httptest.NewServer(h)
		defer s.Close()
		for b.Loop() {
			callOverHTTP(b, s.Client(), s.URL+prefix+callPath)
		}
	})
}

func BenchmarkDurableCall(b *testing.B) {
	w := newWorld(b)
	a := benchAPI(b, w.store)
	s := httptest.NewServer(mounted(a))
	defer s.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128}}
	defer client.CloseIdleConnections()
	b.Run("in-process", func(b *testing.B) {
		b.SetParallelism(32) // times GOMAXPROCS
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				callInProcess(b, a)
			}
		})
	})
	b.Run("keep-alive", func(b *testing.B) {
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				callOverHTTP(b, client, s.URL+prefix+callPath)
			}
		})
	})
}
