package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
	"fleetd/web"
	"fleetd/web/device"
)

// instantLink answers every call at once, without a goroutine: only the path of the call itself is
// measured.
type instantLink struct{ rpcID atomic.Int32 }

var open = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (l *instantLink) Introduced(fleet.DeviceID) bool { return true }

func (l *instantLink) Queue(fleet.DeviceID, fleet.PrincipalKind) (fleet.Turn, error) {
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

// tokenStore contains one token.
type tokenStore struct{ operator.Store }

func (tokenStore) TokenByHash(context.Context, []byte) (operator.Token, error) {
	return operator.Token{ID: uuid.Max, Name: "bench", Role: fleet.RoleOperator}, nil
}
func (tokenStore) TouchToken(context.Context, uuid.UUID, time.Time) error { return nil }

// benchAPI returns the API with calls that cost no time of a device.
func benchAPI(b *testing.B, store call.Store) *api {
	devices := &fleettest.Devices{}
	devices.PutInventory(fleet.Inventory{ID: "inv", Tools: tools})
	devices.Put(fleet.Device{ID: unit, Enrolment: fleet.EnrolmentEnrolled, InventoryID: "inv"})
	presence := fleet.NewPresences(fleet.PresenceOptions{})
	calls := call.New(call.Options{Store: store, Targets: fleet.NewTargets(devices, devices),
		Link:    &instantLink{},
		Watcher: presence, URLs: noURLs{}, Events: &fleet.Events{}})
	b.Cleanup(calls.Shutdown)
	return newAPI(Options{Calls: calls, Operators: operator.New(tokenStore{}), Events: &fleet.Events{}})
}

// forgetfulStore stores nothing, as fast as possible.
type forgetfulStore struct{ call.Store }

func (forgetfulStore) InsertCall(context.Context, *fleet.Call) error { return nil }
func (forgetfulStore) FinishCall(context.Context, *fleet.Call) error { return nil }

func callInProcess(b *testing.B, a *api) {
	r := call.Request{Actor: fleet.Principal{Kind: fleet.KindProgram, Name: "bench", Role: fleet.RoleOperator},
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

// BenchmarkCall measures the cost that REST adds to a call: first without a store, with the handler
// alone and over a kept-alive connection; then with the calls recorded in PostgreSQL, 64 in flight,
// as in production.
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
	b.Run("http-alone", func(b *testing.B) { // the cost of net/http alone
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
	b.Run("served", func(b *testing.B) {
		callServed(b, func(ctx context.Context, ln net.Listener) error { return serveConsole(ctx, a.handler(), ln) })
	})
	b.Run("served-alone", func(b *testing.B) { callServed(b, serveAlone) })
}

// callServed makes calls through an HTTP server, 64 in flight. The client does little more than its
// system calls, and cpu-us/op is the processor time of both: it depends less on other load of the
// machine.
func callServed(b *testing.B, serve func(context.Context, net.Listener) error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := serve(ctx, ln); err != nil {
			b.Error(err)
		}
	})
	defer running.Wait()
	defer stop()
	request := fmt.Appendf(nil, "POST %s%s HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer flt_bench\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", prefix, callPath, len(volume50), volume50)

	b.ReportAllocs()
	var left atomic.Int64
	left.Store(int64(b.N))
	before := processorTime(b)
	b.ResetTimer()
	var clients sync.WaitGroup
	for range min(64, b.N) {
		clients.Go(func() {
			conn, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				b.Error(err)
				return
			}
			defer conn.Close()
			answer := make([]byte, 4096)
			for left.Add(-1) >= 0 {
				if _, err := conn.Write(request); err != nil {
					b.Error(err)
					return
				}
				n, err := conn.Read(answer) // it is small, and arrives in one segment
				if err != nil || !bytes.HasPrefix(answer[:n], []byte("HTTP/1.1 200 OK")) ||
					!bytes.HasSuffix(answer[:n], []byte("}\n")) {
					b.Errorf("answered %q, %v", answer[:n], err)
					return
				}
			}
		})
	}
	clients.Wait()
	b.StopTimer()
	b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
}

// serveConsole serves the API as cmd/fleetd/server does.
func serveConsole(ctx context.Context, h http.Handler, ln net.Listener) error {
	s := web.New(web.Options{API: h, Console: func(chi.Router) {}, DeviceRoutes: func(chi.Router) {},
		ConnContext: device.WithConn, Log: slog.New(slog.DiscardHandler)})
	return s.Run(ctx, device.NewLingerer(device.LingerOptions{}).Listener(ln))
}

// serveAlone is net/http with a handler that does nothing: the minimum cost of any framework.
func serveAlone(ctx context.Context, ln net.Listener) error {
	size := strconv.Itoa(600)
	answer := append(bytes.Repeat([]byte(" "), 598), "}\n"...)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header()["Content-Length"] = []string{size}
		w.Header()["Content-Type"] = []string{"application/json"}
		_, _ = w.Write(answer)
	})}
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// processorTime returns the processor time of this process so far.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
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
