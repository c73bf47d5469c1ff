package voice

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/broker/voice/voicetest"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/outbound"
	"fleetd/fleet/upstream"
)

// sealing is a Sealer that marks what it sealed.
type sealing struct{}

func (sealing) Seal(name string, key []byte) []byte {
	return []byte("sealed " + name + " " + string(key))
}
func (sealing) Open(name string, sealed []byte) ([]byte, error) {
	key, ok := strings.CutPrefix(string(sealed), "sealed "+name+" ")
	if !ok {
		return nil, fmt.Errorf("sealed under another name: %s", sealed)
	}
	return []byte(key), nil
}

type accountStore struct {
	mu    sync.Mutex
	saved map[accountKey]upstream.Account
}

func (s *accountStore) UpstreamAccount(_ context.Context, u uuid.UUID, d fleet.DeviceID) (upstream.Account,
	error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.saved[accountKey{u, d}]
	if !ok {
		return a, fleet.ErrNotFound
	}
	return a, nil
}

func (s *accountStore) SaveUpstreamAccount(_ context.Context, a upstream.Account) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saved[accountKey{a.Upstream, a.Device}] = a
	return nil
}

// accountWorld has one upstream, which is reached through an OTA address.
type accountWorld struct {
	*Accounts
	store  *accountStore
	choice upstream.Choice
	mu     sync.Mutex
	ahead  time.Duration
}

// newAccountWorld returns accounts whose addresses may also lead to allow.
func newAccountWorld(t *testing.T, address string, allow ...string) *accountWorld {
	t.Helper()
	w := &accountWorld{store: &accountStore{saved: make(map[accountKey]upstream.Account)}}
	w.choice = upstream.Choice{Server: upstream.Server{ID: uuid.New(), Name: "ota", Kind: upstream.OTA,
		URL: address, Tools: true}}
	w.Accounts = NewAccounts(AccountsOptions{Store: w.store, Sealer: sealing{}, Now: w.now,
		Guard:  outbound.New(outbound.Options{Allow: allow}),
		Choose: func(context.Context, fleet.DeviceID) (upstream.Choice, bool) { return w.choice, true }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func (w *accountWorld) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.ahead)
}

func (w *accountWorld) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ahead += d
}

func ota(t *testing.T, a voicetest.OTAAnswer) *voicetest.OTA {
	t.Helper()
	o := voicetest.StartOTA(a)
	t.Cleanup(o.Close)
	return o
}

// A board talks to the server that the OTA address names, with the token that it hands out. A
// refused token is replaced once.
func TestUpstreamFoundByOTA(t *testing.T) {
	up := server(t, voicetest.Options{Token: "second"})
	o := ota(t, voicetest.OTAAnswer{URL: up.URL(false), Token: "first"})
	accounts := newAccountWorld(t, o.URL(), outbound.HostPort(up.URL(false)))
	w := start(t, up.URL(false), func(o *Options) {
		o.Choose = func(context.Context, Hello) (Upstream, bool, error) { return accounts.Of(accounts.choice), true, nil }
	})
	b := newBoard(t, 1)
	accounts.Polled(Poll{Device: b.id, ClientID: "uuid-" + string(b.id), UserAgent: "board/2.4.2", Language: "zh-CN",
		Serial: "SN", Body: []byte(`{"mac_address":"02:00:00:00:00:01"}`)})
	fleettest.Eventually(t, "the poll is repeated", func() bool { return len(o.Polls()) == 1 })
	p := o.Polls()[0]
	for name, want := range map[string]string{"Device-Id": "02:00:00:00:00:01", "Client-Id": "uuid-020000000001",
		"User-Agent": "board/2.4.2", "Accept-Language": "zh-CN", "Activation-Version": "2", "Serial-Number": "SN"} {
		if got := p.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if p.Body != `{"mac_address":"02:00:00:00:00:01"}` {
		t.Errorf("body %s", p.Body)
	}

	o.Set(voicetest.OTAAnswer{URL: up.URL(false), Token: "second"})
	b.talk(w.Relay, boardHello)
	b.open()
	if up.Refused() != 1 || len(o.Polls()) != 2 || len(up.Sessions()) != 2 {
		t.Errorf("refused %d, asked %d times, %d sessions", up.Refused(), len(o.Polls()), len(up.Sessions()))
	}
	b.conversation.End(fleet.EndedByNewHello)
	again := newBoard(t, 1)
	again.talk(w.Relay, boardHello)
	again.open()
	if len(o.Polls()) != 2 {
		t.Errorf("asked %d times", len(o.Polls()))
	}
	for _, a := range accounts.store.saved {
		if strings.HasPrefix(string(a.Token), "second") || a.URL != up.URL(false) {
			t.Errorf("stored %+v", a)
		}
	}

	// If a server refuses every token, the OTA address is queried once more and no further.
	o.Set(voicetest.OTAAnswer{URL: up.URL(false), Token: "third"})
	accounts.pass(tokenAge + time.Hour) // the next conversation requests a new token
	again.conversation.End(fleet.EndedByNewHello)
	aged := newBoard(t, 1)
	aged.talk(w.Relay, boardHello)
	aged.open()
	fleettest.Eventually(t, "an old token is replaced", func() bool { return len(o.Polls()) == 3 })
	aged.conversation.End(fleet.EndedByNewHello)
	fleettest.Eventually(t, "it is known", func() bool {
		c, _ := accounts.latest(t.Context(), accounts.choice, Poll{Device: b.id})
		return c.token == "third"
	})
	refused := newBoard(t, 1)
	refused.talk(w.Relay, boardHello)
	fleettest.Eventually(t, "hello, goodbye, alert", func() bool { return len(refused.got()) == 3 })
	fleettest.Eventually(t, "it is on record", func() bool {
		n, _ := w.records.ended(fleet.EndedRefused)
		return n == 1
	})
	if n := len(o.Polls()); n != 4 {
		t.Errorf("asked %d times", n)
	}
}

// A misbehaving OTA address does not delay boot polls, and ends a conversation in time and with
// the reason.
func TestBadOTAAddress(t *testing.T) {
	stall := make(chan struct{})
	defer close(stall)
	html := func(w http.ResponseWriter, r *http.Request) { voicetest.HTML(w, r) }
	text := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }
	}
	tests := []struct {
		name   string
		answer voicetest.OTAAnswer
		want   fleet.ConversationEnd
	}{
		{"never", voicetest.OTAAnswer{Instead: func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-stall:
			case <-r.Context().Done():
			}
		}}, fleet.EndedNoHello},
		{"trickles", voicetest.OTAAnswer{Instead: func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				fmt.Fprint(w, " ")
				w.(http.Flusher).Flush()
				select {
				case <-stall:
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		}}, fleet.EndedNoHello},
		{"HTML", voicetest.OTAAnswer{Instead: html}, fleet.EndedNoWebSocket},
		{"huge", voicetest.OTAAnswer{Instead: text(`{"websocket":{"url":"` + strings.Repeat("x", 1<<20) + `"}}`)},
			fleet.EndedTooLarge},
		{"a list", voicetest.OTAAnswer{Instead: text(`[]`)}, fleet.EndedNoWebSocket},
		{"no WebSocket", voicetest.OTAAnswer{Instead: text(`{"mqtt":{}}`)}, fleet.EndedNoWebSocket},
		{"another type", voicetest.OTAAnswer{Instead: text(`{"websocket":{"url":7}}`)}, fleet.EndedNoWebSocket},
		{"an http address", voicetest.OTAAnswer{URL: "http://127.0.0.1/"}, fleet.EndedNoWebSocket},
		{"credentials", voicetest.OTAAnswer{URL: "ws://a:b@127.0.0.1/"}, fleet.EndedNoWebSocket},
		{"a token of two lines", voicetest.OTAAnswer{URL: "ws://127.0.0.1/", Token: "a\r\nb: c"}, fleet.EndedNoWebSocket},
		{"this machine", voicetest.OTAAnswer{URL: "ws://[::1]:9/"}, fleet.EndedUnreachable},
		{"metadata", voicetest.OTAAnswer{URL: "ws://169.254.169.254/"}, fleet.EndedUnreachable},
		{"refuses", voicetest.OTAAnswer{Instead: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
		}}, fleet.EndedRefused},
		{"redirects", voicetest.OTAAnswer{Instead: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusTemporaryRedirect)
		}}, fleet.EndedNoWebSocket},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := ota(t, tt.answer)
			accounts := newAccountWorld(t, o.URL())
			w := start(t, "ws://127.0.0.1:1/", func(o *Options) {
				o.HelloTimeout = deadline
				if tt.want == fleet.EndedNoHello {
					o.HelloTimeout = 500 * time.Millisecond
				}
				o.Choose = func(context.Context, Hello) (Upstream, bool, error) { return accounts.Of(accounts.choice), true, nil }
			})
			polled := make(chan struct{})
			go func() {
				defer close(polled)
				for i := range 2 * maxAsks {
					accounts.Polled(Poll{Device: fleet.DeviceID(fmt.Sprintf("02000001%04x", i))})
				}
			}()
			select {
			case <-polled:
			case <-time.After(deadline):
				t.Fatal("boot polls wait for the voice server")
			}
			b := newBoard(t, 1)
			b.talk(w.Relay, boardHello)
			fleettest.Eventually(t, "hello, goodbye, alert", func() bool { return len(b.got()) == 3 })
			fleettest.Eventually(t, "it is on record", func() bool { n, _ := w.records.ended(tt.want); return n == 1 })
		})
	}
}

// Concurrent requests for one device cause one request to the OTA address.
func TestOneAskForADevice(t *testing.T) {
	release := make(chan struct{})
	o := ota(t, voicetest.OTAAnswer{Instead: func(w http.ResponseWriter, _ *http.Request) {
		<-release
		fmt.Fprint(w, `{"websocket":{"url":"ws://192.0.2.1/"}}`)
	}})
	w := newAccountWorld(t, o.URL())
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if url, _, err := w.address(t.Context(), w.choice, Poll{Device: "020000000001"}, ""); url != "ws://192.0.2.1/" {
				t.Errorf("%q, %v", url, err)
			}
		})
	}
	fleettest.Eventually(t, "it is asked", func() bool { return len(o.Polls()) == 1 })
	close(release)
	wg.Wait()
	if n := len(o.Polls()); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// The code is shown once for each start, for a limited time, and not after the device is bound.
func TestBindingCode(t *testing.T) {
	o := ota(t, voicetest.OTAAnswer{URL: "ws://192.0.2.1/", Code: "482913"})
	w := newAccountWorld(t, o.URL())
	const id = fleet.DeviceID("020000000001")
	if _, _, ok := w.Show(id); ok {
		t.Error("a code before the first answer")
	}
	w.Polled(Poll{Device: id})
	// A request joins one that is under way, and that is over only when its answer is stored.
	stored := func() bool {
		w.Accounts.mu.Lock()
		defer w.Accounts.mu.Unlock()
		return len(w.Accounts.flights) == 0
	}
	fleettest.Eventually(t, "the code is known", func() bool {
		c, _ := w.Account(t.Context(), w.choice, id)
		return c.Code == "482913" && stored()
	})
	code, message, ok := w.Show(id)
	if !ok || code != "482913" || message != "xiaozhi.example 482913" {
		t.Errorf("%q, %q, %v", code, message, ok)
	}
	if shown, showing := w.Shown(id); !shown || !showing {
		t.Error("it is not shown")
	}
	w.pass(showFor)
	if _, _, ok := w.Show(id); ok {
		t.Error("shown twice at one start")
	}
	if shown, showing := w.Shown(id); !shown || showing {
		t.Error("it is shown for ever")
	}
	w.pass(showAgain)
	if _, _, ok := w.Show(id); !ok {
		t.Error("not shown at the next start")
	}
	for i, code := range []string{"", "12 34", "12345678901", "<b>1</b>"} {
		o.Set(voicetest.OTAAnswer{URL: "ws://192.0.2.1/", Code: code})
		w.pass(showAgain)
		w.Polled(Poll{Device: id})
		fleettest.Eventually(t, "it is asked again", func() bool { return len(o.Polls()) == i+2 })
		fleettest.Eventually(t, "it is known", func() bool {
			c, _ := w.Account(t.Context(), w.choice, id)
			return c.Code == fleet.CleanText(code, 20) && stored()
		})
		if got, _, ok := w.Show(id); ok {
			t.Errorf("%q is shown for %q", got, code)
		}
	}
}

// A voice server on this host may hand out its own address and port, but no other address of this
// host.
func TestHandedOutAddressesDoNotLeadToThisHost(t *testing.T) {
	reached := make(chan string, 8)
	inside := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { reached <- r.URL.Path }))
	defer inside.Close()
	port := inside.Listener.Addr().(*net.TCPAddr).Port
	for _, host := range []string{"127.0.0.1", "localhost", "LOCALHOST", "127.1.2.3", "[::ffff:127.0.0.1]", "0.0.0.0"} {
		o := ota(t, voicetest.OTAAnswer{URL: fmt.Sprintf("ws://%s:%d/metrics", host, port)})
		w := newAccountWorld(t, o.URL())
		if c := Check(t.Context(), w.Of(w.choice), deadline); c.OK || c.Error != fleet.EndedUnreachable {
			t.Errorf("%s: %+v", host, c)
		}
	}
	o := ota(t, voicetest.OTAAnswer{Instead: func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, inside.URL+"/redirected", http.StatusTemporaryRedirect)
	}})
	w := newAccountWorld(t, o.URL())
	if c := Check(t.Context(), w.Of(w.choice), deadline); c.OK {
		t.Errorf("a redirect: %+v", c)
	}
	if len(reached) != 0 {
		t.Errorf("%s of another port of this host was asked for", <-reached)
	}
}
