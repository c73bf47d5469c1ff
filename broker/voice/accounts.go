package voice

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/outbound"
	"fleetd/fleet/upstream"
	"fleetd/internal/bounded"
)

// Limits of requests to an upstream's OTA address.
const (
	askTimeout      = 10 * time.Second
	maxOTAAnswer    = 64 << 10
	maxAccountToken = 4000
	maxAccountText  = 200
	askers          = 8    // concurrent requests for boot polls
	maxAsks         = 4096 // boot polls waiting to be repeated
	askAgain        = 10 * time.Second
	tokenAge        = 24 * time.Hour // afterwards the next conversation requests another token
)

// A Poll contains the contents of a device's boot poll. Without a body, a body is made from the
// ids alone.
type Poll struct {
	Device    fleet.DeviceID
	ClientID  string
	UserAgent string
	Language  string
	Serial    string
	Body      json.RawMessage
}

// A Sealer encrypts tokens that are stored in the database.
type Sealer interface {
	Seal(name string, key []byte) []byte
	Open(name string, sealed []byte) ([]byte, error)
}

// AccountsOptions configures [Accounts]. Store, Sealer and Choose are required.
type AccountsOptions struct {
	Store  upstream.AccountStore
	Sealer Sealer
	Choose func(ctx context.Context, id fleet.DeviceID) (upstream.Choice, bool)
	Guard  *outbound.Guard // default: one without options
	Log    *slog.Logger
	Now    func() time.Time // default: time.Now, in UTC
}

// Accounts repeats boot polls to the OTA addresses of upstreams and stores their answers: the
// address to connect to, its token, and the code that binds a device to an account there.
// Firmware that they offer is not read.
//
// A boot poll does not wait for this: [Accounts.Polled] queues it, and goroutines of
// [Accounts.Run] send the requests. A conversation waits if no account is stored yet, or if the
// upstream refused the token.
type Accounts struct {
	o      AccountsOptions
	client *http.Client
	polls  chan Poll

	mu      sync.Mutex
	flights map[accountKey]*flight
	known   *bounded.Cache[accountKey, account] // the latest of some; all are stored
	codes   *bounded.Cache[fleet.DeviceID, *binding]
}

type accountKey struct {
	upstream uuid.UUID
	device   fleet.DeviceID
}

// An account is a [upstream.Account] with its token decrypted.
type account struct {
	upstream.Account
	token string
}

type flight struct {
	done    chan struct{}
	account account
	err     error
}

// maxKnown bounds the cached accounts.
const maxKnown = 20_000

// NewAccounts returns an Accounts with the given options.
func NewAccounts(o AccountsOptions) *Accounts {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().UTC() }
	}
	return &Accounts{o: o, polls: make(chan Poll, maxAsks), flights: make(map[accountKey]*flight),
		known: bounded.New[accountKey, account](maxKnown), codes: bounded.New[fleet.DeviceID, *binding](maxKnown),
		client: o.Guard.Client(askTimeout, &http.Transport{
			DisableCompression: true, MaxResponseHeaderBytes: maxOTAAnswer, MaxIdleConnsPerHost: askers,
			IdleConnTimeout: 30 * time.Second, Proxy: http.ProxyFromEnvironment})}
}

// Run repeats boot polls until ctx ends.
func (a *Accounts) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for range askers {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case p := <-a.polls:
					a.repeat(ctx, p)
				}
			}
		})
	}
	wg.Wait()
	a.client.CloseIdleConnections()
	return nil
}

// Polled queues the boot poll of an authenticated device. It does not wait. If the queue is full,
// the poll is dropped; the device's next conversation requests the account then.
func (a *Accounts) Polled(p Poll) {
	select {
	case a.polls <- p:
	default:
	}
}

func (a *Accounts) repeat(ctx context.Context, p Poll) {
	u, ok := a.o.Choose(ctx, p.Device)
	if !ok || u.Kind != upstream.OTA {
		a.bind(p.Device, "", "")
		return
	}
	known, ok := a.latest(ctx, u, p)
	if ok && a.o.Now().Sub(known.AskedAt) < askAgain {
		return
	}
	if _, err := a.ask(ctx, u, p, known); err != nil && ctx.Err() == nil {
		a.o.Log.Warn("the OTA address of a voice server did not answer a device", "device", p.Device, "upstream", u.Name,
			"err", err)
	}
}

// latest returns the cached or stored account of a device at an upstream, if it answers for the
// current address and client.
func (a *Accounts) latest(ctx context.Context, u upstream.Choice, p Poll) (account, bool) {
	key := accountKey{u.ID, p.Device}
	known, ok := a.known.Get(key)
	if !ok {
		stored, err := a.o.Store.UpstreamAccount(ctx, u.ID, p.Device)
		if err != nil {
			return account{}, false // no account, or the store is unavailable: the caller requests one
		}
		known = account{Account: stored}
		if stored.Token != nil {
			token, err := a.o.Sealer.Open(sealedAccount(key), stored.Token)
			if err != nil {
				return account{}, false
			}
			known.token = string(token)
		}
		a.known.Add(key, known)
	}
	return known, known.answers(u, p)
}

// answers reports whether the account is for the upstream's address and the polling client.
func (a account) answers(u upstream.Choice, p Poll) bool {
	return a.OTAURL == u.URL && (p.ClientID == "" || a.ClientID == p.ClientID)
}

func sealedAccount(k accountKey) string {
	return "upstream/" + k.upstream.String() + "/" + string(k.device)
}

// ask requests the device's account from the OTA address now. Concurrent calls for the same
// device return the same answer. So does a call whose caller saw an older account because the
// answer arrived between its read and its call.
func (a *Accounts) ask(ctx context.Context, u upstream.Choice, p Poll, seen account) (account, error) {
	key := accountKey{u.ID, p.Device}
	a.mu.Lock()
	if newest, _ := a.known.Get(key); newest.AskedAt.After(seen.AskedAt) && newest.answers(u, p) {
		a.mu.Unlock()
		return newest, nil
	}
	f := a.flights[key]
	if f == nil {
		f = &flight{done: make(chan struct{})}
		a.flights[key] = f
		go a.fly(context.WithoutCancel(ctx), f, key, u, p)
	}
	a.mu.Unlock()
	select {
	case <-f.done:
		return f.account, f.err
	case <-ctx.Done():
		return account{}, failed(fleet.EndedNoHello, ctx.Err())
	}
}

func (a *Accounts) fly(ctx context.Context, f *flight, key accountKey, u upstream.Choice, p Poll) {
	defer func() {
		a.mu.Lock()
		delete(a.flights, key)
		a.mu.Unlock()
		close(f.done)
	}()
	ctx, cancel := context.WithTimeout(ctx, askTimeout+recordTimeout)
	defer cancel()
	if f.account, f.err = a.post(ctx, u.URL, p); f.err != nil {
		return
	}
	f.account.Upstream, f.account.Device = u.ID, p.Device
	a.bind(p.Device, f.account.Code, f.account.Message)
	if f.account.token != "" {
		f.account.Token = a.o.Sealer.Seal(sealedAccount(key), []byte(f.account.token))
	}
	a.known.Add(key, f.account)
	if err := a.o.Store.SaveUpstreamAccount(ctx, f.account.Account); err != nil {
		a.o.Log.Warn("answer of a voice server's OTA address not stored", "device", p.Device, "upstream", u.Name, "err", err)
	}
}

// post repeats a boot poll to an OTA address. The error is an upstreamError.
func (a *Accounts) post(ctx context.Context, address string, p Poll) (account, error) {
	id := nameOf(p.Device)
	body := p.Body
	if len(body) == 0 {
		body, _ = json.Marshal(map[string]any{"version": 2, "mac_address": id, "uuid": p.ClientID}) // strings only
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return account{}, failed(fleet.EndedUnreachable, err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Device-Id", id)
	r.Header.Set("Client-Id", p.ClientID)
	r.Header.Set("User-Agent", cmp.Or(p.UserAgent, "fleetd"))
	r.Header.Set("Activation-Version", "1")
	if p.Language != "" {
		r.Header.Set("Accept-Language", p.Language)
	}
	if p.Serial != "" {
		r.Header.Set("Activation-Version", "2")
		r.Header.Set("Serial-Number", p.Serial)
	}
	answer, err := a.client.Do(r)
	if err != nil {
		if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
			return account{}, failed(fleet.EndedNoHello, err)
		}
		return account{}, failed(fleet.EndedUnreachable, err)
	}
	defer answer.Body.Close()
	switch {
	case answer.StatusCode == http.StatusUnauthorized, answer.StatusCode == http.StatusForbidden:
		return account{}, failed(fleet.EndedRefused, errors.New(answer.Status))
	case answer.StatusCode != http.StatusOK:
		return account{}, failed(fleet.EndedNoWebSocket, errors.New(answer.Status))
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxOTAAnswer+1))
	switch {
	case err != nil && ctx.Err() != nil:
		return account{}, failed(fleet.EndedNoHello, err)
	case err != nil:
		return account{}, failed(fleet.EndedLost, err)
	case len(text) > maxOTAAnswer:
		return account{}, failed(fleet.EndedTooLarge, errTooLarge)
	}
	known, err := parseOTAAnswer(text)
	if err != nil {
		return account{}, failed(fleet.EndedNoWebSocket, err)
	}
	known.OTAURL, known.ClientID, known.AskedAt = address, p.ClientID, a.o.Now()
	return known, nil
}

// parseOTAAnswer reads the WebSocket and the binding code from the answer to a boot poll. It
// ignores the answer's firmware, MQTT and time.
func parseOTAAnswer(text []byte) (account, error) {
	var b struct {
		WebSocket *struct{ URL, Token string } `json:"websocket"`
		// Servers send the code as a string or as a number.
		Activation *struct {
			Code               json.RawMessage
			Message, Challenge string
		} `json:"activation"`
	}
	if err := json.Unmarshal(text, &b); err != nil {
		return account{}, err
	}
	var known account
	if w := b.WebSocket; w != nil && w.URL != "" {
		if err := upstream.CheckURL(w.URL, "ws", "wss"); err != nil {
			return account{}, fmt.Errorf("the WebSocket address from the OTA address: %w", err)
		}
		if !plainToken(w.Token, maxAccountToken) {
			return account{}, errors.New("the token from the OTA address is too long or not plain text")
		}
		known.URL, known.token = w.URL, w.Token
	}
	if act := b.Activation; act != nil {
		var code string
		if json.Unmarshal(act.Code, &code) != nil {
			code = string(act.Code)
		}
		known.Code = fleet.CleanText(code, 20)
		known.Message = fleet.CleanText(strings.Join(strings.Fields(act.Message), " "), maxAccountText)
		known.Challenge = fleet.CleanText(act.Challenge, maxAccountText)
	}
	return known, nil
}

// Account returns the cached or stored account of a device at its upstream, without a request to
// the upstream.
func (a *Accounts) Account(ctx context.Context, u upstream.Choice, id fleet.DeviceID) (upstream.Account,
	bool) {
	known, ok := a.latest(ctx, u, Poll{Device: id})
	return known.Account, ok
}

var errNoAddress = errors.New("the voice server's OTA address returns no WebSocket address")

// address returns the address and token with which a device connects to its upstream. It requests
// them from the OTA address if none are stored or if the token was refused.
func (a *Accounts) address(ctx context.Context, u upstream.Choice, p Poll, refused string) (url, token string,
	err error) {
	known, ok := a.latest(ctx, u, p)
	if !ok || known.URL == "" || refused != "" && known.token == refused {
		if known, err = a.ask(ctx, u, p, known); err != nil {
			return "", "", err
		}
	} else if a.o.Now().Sub(known.AskedAt) > tokenAge {
		a.Polled(p)
	}
	if known.URL == "" {
		return "", "", failed(fleet.EndedNoWebSocket, errNoAddress)
	}
	return known.URL, known.token, nil
}

// Of returns the upstream of a device whose address comes from these accounts.
func (a *Accounts) Of(c upstream.Choice) Upstream {
	return Upstream{ID: c.ID, Changed: c.UpdatedAt, Name: c.Name, NoTools: !c.Tools, URL: c.URL,
		Guard: a.o.Guard,
		Find: func(ctx context.Context, p Poll, refused string) (string, string, error) {
			return a.address(ctx, c, p, refused)
		},
		findNew: func(ctx context.Context, p Poll) (string, string, error) {
			known, err := a.post(ctx, c.URL, p)
			if err == nil && known.URL == "" {
				err = failed(fleet.EndedNoWebSocket, errNoAddress)
			}
			return known.URL, known.token, err
		}}
}

// A binding is the code that a device can show to be bound to an account.
type binding struct {
	code, message string
	shown         time.Time // the latest time
}

// A device shows the code for showFor after it started, and then continues: while it shows a code
// it is not connected (protocol 1.5). Another request within showAgain counts as the same start.
const (
	showFor   = 30 * time.Second
	showAgain = 5 * time.Minute
)

var spokenCode = regexp.MustCompile(`^[0-9]{1,10}$`) // devices have sounds for digits only

// bind records the binding code of a device; "" means that it has none.
func (a *Accounts) bind(id fleet.DeviceID, code, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, _ := a.codes.Get(id)
	switch {
	case !spokenCode.MatchString(code) && b == nil:
	case !spokenCode.MatchString(code):
		b.code = ""
	case b != nil:
		b.code, b.message = code, cmp.Or(message, code)
	default:
		a.codes.Add(id, &binding{code: code, message: cmp.Or(message, code)})
	}
}

// Show returns the code that a starting device must show, and records that it shows the code. ok
// is false if the device has no code to show. Show does not wait.
func (a *Accounts) Show(id fleet.DeviceID) (code, message string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.o.Now()
	b, _ := a.codes.Get(id)
	if b == nil || b.code == "" || now.Sub(b.shown) < showAgain {
		return "", "", false
	}
	b.shown = now
	return b.code, b.message, true
}

// Shown reports whether a device that requests its activation state was sent a code of its
// upstream since it started, and whether it must continue to show the code.
func (a *Accounts) Shown(id fleet.DeviceID) (shown, showing bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, _ := a.codes.Get(id)
	if b == nil {
		return false, false
	}
	since := a.o.Now().Sub(b.shown)
	return since < showAgain, since < showFor
}
