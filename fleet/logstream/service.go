package logstream

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"golang.org/x/net/http/httpguts"

	"fleetd/fleet"
	"fleetd/fleet/outbound"
)

// Limits of streams.
const (
	MaxStreams    = 20
	MaxBatch      = 500
	otlpBatch     = 500
	maxURLBytes   = 2000
	maxPEMBytes   = 64 << 10
	maxHeaders    = 4 << 10
	maxListItems  = 100
	maxItemBytes  = 200
	secretBytes   = 32
	keptDelivered = 200 // deliveries that Deliveries returns
)

// A Sealer encrypts the secrets in the database.
type Sealer interface {
	Seal(name string, key []byte) []byte
	Open(name string, sealed []byte) ([]byte, error)
}

// Options configures a [Service]. All but Guard and Logger are required.
type Options struct {
	Store  Store
	Log    Log
	Sealer Sealer
	Guard  *outbound.Guard
	Logger *slog.Logger
}

// A Service manages streams for admins, and sends to them.
type Service struct {
	o     Options
	state atomic.Pointer[State]

	mu      sync.Mutex
	life    context.Context       // of Run
	running map[uuid.UUID]*sender // nil if this process does not send

	// Tests shorten these.
	retry         time.Duration // pause after the first failure
	syslogSettled time.Duration
}

// New returns a service that sends nothing before [Service.Run].
func New(o Options) *Service {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Service{o: o, retry: time.Second, syslogSettled: 5 * time.Second}
}

// A Request creates or changes a stream. In a change, nil fields stay unchanged.
type Request struct {
	Name        *string
	Kind        Kind // of a new stream
	URL         *string
	Secret      *string // of a webhook; nil or "" for a new one generates it
	Headers     *string // lines "Name: value", for HTTP
	Certificate *string // that fleetd shows the receiver, and its key, in PEM
	Key         *string
	CA          *string
	Filter      *Filter
	Batch       *int
	Enabled     *bool
	From        string // where a new stream starts: see [Service.Replay]; "" is now
}

func may(by fleet.Principal) error { return by.May(fleet.RoleAdmin, "manage_log_streams") }

// List returns all streams, by name, and the size of the log.
func (s *Service) List(ctx context.Context, by fleet.Principal) ([]Stream, int64, error) {
	if err := may(by); err != nil {
		return nil, 0, err
	}
	list, err := s.o.Store.LogStreams(ctx)
	return list, s.Size(), err
}

// Get returns a stream, its latest deliveries, and the size of the log.
func (s *Service) Get(ctx context.Context, by fleet.Principal, id uuid.UUID) (Stream, []Delivery, int64, error) {
	if err := may(by); err != nil {
		return Stream{}, nil, 0, err
	}
	st, err := s.o.Store.LogStream(ctx, id)
	if err != nil {
		return Stream{}, nil, 0, err
	}
	list, err := s.o.Store.LogStreamDeliveries(ctx, id, keptDelivered)
	return st, list, s.Size(), err
}

// Size returns the number of entries of the log.
func (s *Service) Size() int64 { return s.o.Log.Status().Latest.Size }

// Create adds a stream and returns it with the secret of a webhook.
func (s *Service) Create(ctx context.Context, by fleet.Principal, r Request) (st Stream, secret string, err error) {
	list, _, err := s.List(ctx, by)
	if err != nil {
		return st, "", err
	}
	if len(list) >= MaxStreams {
		return st, "", fleet.Refuse(fleet.ErrConflict, "too_many_log_streams", "limit", MaxStreams)
	}
	if !slices.Contains(Kinds, r.Kind) {
		return st, "", fleet.Refuse(fleet.ErrInvalid, "invalid_log_stream_kind", "value", string(r.Kind)).At("kind")
	}
	st = Stream{ID: uuid.Must(uuid.NewV7()), Kind: r.Kind, Enabled: true, Batch: 1, CreatedBy: by.Name,
		CreatedAt: time.Now().UTC(), Revision: 1}
	switch {
	case r.Kind == OTLP:
		st.Batch = otlpBatch
	case r.Kind == Syslog:
		st.Batch = MaxBatch
	case r.Secret == nil || *r.Secret == "":
		key := make([]byte, secretBytes)
		_, _ = rand.Read(key) // never fails
		secret = "whsec_" + base64.StdEncoding.EncodeToString(key)
		r.Secret = &secret
	}
	if st.Next, err = s.entry(ctx, r.From); err != nil {
		return st, "", err
	}
	if err := s.apply(&st, r); err != nil {
		return st, "", err
	}
	return st, secret, s.changed(ctx, s.o.Store.CreateLogStream(ctx, by, st))
}

// Update changes a stream. Its cursor stays.
func (s *Service) Update(ctx context.Context, by fleet.Principal, id uuid.UUID, r Request) (Stream, error) {
	if err := may(by); err != nil {
		return Stream{}, err
	}
	st, err := s.o.Store.LogStream(ctx, id)
	if err != nil {
		return Stream{}, err
	}
	if err := s.apply(&st, r); err != nil {
		return Stream{}, err
	}
	if err := s.changed(ctx, s.o.Store.UpdateLogStream(ctx, by, st)); err != nil {
		return Stream{}, err
	}
	st.Revision++
	return st, nil
}

// Delete removes a stream.
func (s *Service) Delete(ctx context.Context, by fleet.Principal, id uuid.UUID) error {
	if err := may(by); err != nil {
		return err
	}
	return s.changed(ctx, s.o.Store.DeleteLogStream(ctx, by, id))
}

// Replay sends the entries again from a place on, or skips to it: "start", "now", the number of an
// entry, or a time.
func (s *Service) Replay(ctx context.Context, by fleet.Principal, id uuid.UUID, from string) (int64, error) {
	if err := may(by); err != nil {
		return 0, err
	}
	next, err := s.entry(ctx, from)
	if err != nil {
		return 0, err
	}
	return next, s.changed(ctx, s.o.Store.ReplayLogStream(ctx, by, id, next))
}

// entry returns the number of the entry at a place; see [Service.Replay].
func (s *Service) entry(ctx context.Context, from string) (int64, error) {
	size := s.Size()
	switch from {
	case "", "now":
		return size, nil
	case "start":
		return 0, nil
	}
	var n json.Number
	if json.Unmarshal([]byte(from), &n) == nil {
		if i, err := n.Int64(); err == nil && i >= 0 && i <= size {
			return i, nil
		}
		return 0, fleet.Refuse(fleet.ErrInvalid, "invalid_log_stream_start.number", "size", size).At("from")
	}
	at, err := time.Parse(time.RFC3339, from)
	if err != nil {
		return 0, fleet.Refuse(fleet.ErrInvalid, "invalid_log_stream_start.form").At("from")
	}
	return s.o.Log.EntryAt(ctx, at)
}

// Test sends an entry of the kind "test" now, once, and returns the outcome. A failure is a
// result, not an error.
func (s *Service) Test(ctx context.Context, by fleet.Principal, id uuid.UUID) (Delivery, error) {
	if err := may(by); err != nil {
		return Delivery{}, err
	}
	st, err := s.o.Store.LogStream(ctx, id)
	if err != nil {
		return Delivery{}, err
	}
	d := Delivery{At: time.Now().UTC(), Entries: 1, Requests: 1}
	ev := newEvent(s.o.Log.Status().Origin, testEntry(d.At))
	to, err := s.open(st)
	if err == nil {
		defer to.close()
		d.Status, err = to.send(ctx, []event{ev})
	}
	d.Took, d.Reason = time.Since(d.At), reasonOf(err)
	return d, nil
}

// apply makes the changes of a request.
func (s *Service) apply(st *Stream, r Request) (err error) {
	if r.Name != nil {
		if st.Name, err = fleet.CleanLine("name", *r.Name, fleet.MaxNameLength); err != nil {
			return err
		}
	}
	if st.Name == "" {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_name.log_stream").At("name")
	}
	if err := s.applyURL(st, r.URL); err != nil {
		return err
	}
	if err := s.applySecrets(st, r); err != nil {
		return err
	}
	if r.Filter != nil {
		if st.Filter, err = checkFilter(*r.Filter); err != nil {
			return err
		}
	}
	if r.Batch != nil {
		st.Batch = *r.Batch
	}
	if st.Batch < 1 || st.Batch > MaxBatch {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_log_stream_batch", "limit", MaxBatch).At("batch")
	}
	if r.Enabled != nil {
		st.Enabled = *r.Enabled
	}
	return nil
}

// hidden replaces the secret part of a shown address.
const hidden = "…"

// applyURL sets the address. nil leaves it unchanged, and so does the shown form of the current
// address, which a client may send back.
func (s *Service) applyURL(st *Stream, given *string) error {
	if st.Address != nil && (given == nil || strings.TrimSpace(*given) == st.Shown) {
		return nil
	}
	var address string
	if given != nil {
		address = strings.TrimSpace(*given)
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || len(address) > maxURLBytes || fleet.CleanText(address, maxURLBytes) != address ||
		strings.Contains(address, hidden) {
		return errURL(st.Kind)
	}
	switch {
	case st.Kind == Syslog && u.Scheme == "tls" && u.User == nil && strings.Trim(u.Path, "/") == "" && u.RawQuery == "":
		if u.Port() == "" {
			u.Host += ":6514"
		}
	case st.Kind != Syslog && (u.Scheme == "https" || u.Scheme == "http"):
		if st.Kind == OTLP && strings.Trim(u.Path, "/") == "" {
			u.Path = "/v1/logs"
		}
	default:
		return errURL(st.Kind)
	}
	st.Shown = u.Scheme + "://" + u.Host
	if st.Kind == Webhook && strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		st.Shown += "/" + hidden
	}
	st.Address = s.o.Sealer.Seal("log-stream-address/"+st.ID.String(), []byte(u.String()))
	return nil
}

func errURL(k Kind) error {
	if k == Syslog {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_log_stream_url.syslog").At("url")
	}
	return fleet.Refuse(fleet.ErrInvalid, "invalid_log_stream_url.http", "limit", maxURLBytes).At("url")
}

func secretsAs(id uuid.UUID) string { return "log-stream/" + id.String() }

// unseal returns the address and the secrets of a stream.
func (s *Service) unseal(st Stream) (address string, secret secrets, err error) {
	b, err := s.o.Sealer.Open("log-stream-address/"+st.ID.String(), st.Address)
	if err != nil {
		return "", secret, err
	}
	address = string(b)
	if b, err = s.o.Sealer.Open(secretsAs(st.ID), st.Secrets); err != nil {
		return "", secret, err
	}
	return address, secret, json.Unmarshal(b, &secret)
}

// applySecrets sets the secrets that the request has, and the authorities.
func (s *Service) applySecrets(st *Stream, r Request) error {
	var secret secrets
	if st.Secrets != nil {
		var err error
		if _, secret, err = s.unseal(*st); err != nil {
			return fleet.Refuse(fleet.ErrConflict, "log_stream_sealed")
		}
	}
	if st.Kind == Webhook && r.Secret != nil && *r.Secret != "" {
		secret.Signing = *r.Secret
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(*r.Secret, "whsec_"))
		if _, invalid := standardwebhooks.NewWebhook(*r.Secret); err != nil || invalid != nil || len(key) < 24 ||
			len(key) > 64 {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_log_stream_secret").At("secret")
		}
	}
	if st.Kind != Syslog && r.Headers != nil {
		if err := checkHeaders(*r.Headers); err != nil {
			return err
		}
		secret.Headers = *r.Headers
	}
	for _, text := range []struct{ given, set *string }{{r.Certificate, &secret.Certificate}, {r.Key, &secret.Key},
		{r.CA, &st.CA}} {
		if text.given != nil {
			if len(*text.given) > maxPEMBytes {
				return fleet.Refuse(fleet.ErrInvalid, "invalid_certificate.long", "limit_bytes", maxPEMBytes).At("ca_certificates")
			}
			*text.set = strings.TrimSpace(*text.given)
		}
	}
	if _, err := tlsConfig(st.CA, secret); err != nil {
		return err
	}
	b, err := json.Marshal(secret)
	st.Secrets = s.o.Sealer.Seal(secretsAs(st.ID), b)
	return err
}

// reservedHeaders are set by fleetd.
var reservedHeaders = []string{"Content-Type", "Content-Length", "Host", "Transfer-Encoding", "Connection", "User-Agent",
	"Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"}

func checkHeaders(lines string) error {
	refused := fleet.Refuse(fleet.ErrInvalid, "invalid_log_stream_headers", "limit_bytes", maxHeaders).At("headers")
	if len(lines) > maxHeaders {
		return refused
	}
	for line := range strings.Lines(lines) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(strings.TrimSpace(value)) ||
			slices.ContainsFunc(reservedHeaders, func(r string) bool { return strings.EqualFold(r, name) }) {
			return refused
		}
	}
	return nil
}

// checkFilter returns the filter with sorted lists.
func checkFilter(f Filter) (Filter, error) {
	for _, list := range []struct {
		field string
		items *[]string
		known []string
	}{{"kinds", &f.Kinds, EntryKinds}, {"actions", &f.Actions, nil}, {"outcomes", &f.Outcomes, nil},
		{"devices", &f.Devices, nil}} {
		*list.items = slices.Compact(slices.Sorted(slices.Values(*list.items)))
		if len(*list.items) > maxListItems {
			return f, fleet.Refuse(fleet.ErrInvalid, "invalid_log_stream_filter.many", "limit", maxListItems).At(list.field)
		}
		for _, item := range *list.items {
			if item == "" || len(item) > maxItemBytes || fleet.CleanText(item, maxItemBytes) != item ||
				list.known != nil && !slices.Contains(list.known, item) {
				return f, fleet.Refuse(fleet.ErrInvalid, "invalid_log_stream_filter.value", "value", item).At(list.field)
			}
		}
	}
	return f, nil
}
