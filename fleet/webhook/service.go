package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/outbound"
)

// Limits of webhooks.
const (
	MaxWebhooks    = 50
	maxURLBytes    = 2000
	minSecret      = 16
	maxSecret      = 200
	postTimeout    = 10 * time.Second
	maxAnswerBytes = 64 << 10 // read from a response, so that its connection can be reused
)

// Headers of a delivery.
const (
	SignatureHeader = "X-Fleetd-Signature" // "sha256=" and the HMAC-SHA256 of the body in hexadecimal
	TimestampHeader = "X-Fleetd-Timestamp" // Unix seconds; the body's sent_at
	EventHeader     = "X-Fleetd-Event"
)

// A Sealer encrypts the secrets in the database.
type Sealer interface {
	Seal(name string, key []byte) []byte
	Open(name string, sealed []byte) ([]byte, error)
}

// Options configures a [Service]. All but Text, Guard, Log and Now are required.
type Options struct {
	Store     Store
	Sealer    Sealer
	PublicURL string // prefix of the links in deliveries
	// Text writes the message about a job for a chat service. If it is nil, only [Fleetd] can be chosen.
	Text  func(lang string, j Job) Text
	Guard *outbound.Guard
	Log   *slog.Logger
	Now   func() time.Time
}

// Service manages webhooks for admins and delivers to them.
type Service struct {
	o      Options
	client *http.Client

	mu     sync.Mutex
	paused map[uuid.UUID]time.Time // webhooks whose receiver asked to wait, and until when
}

// New returns the service.
func New(o Options) *Service {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().UTC() }
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxResponseHeaderBytes = maxAnswerBytes
	transport.MaxIdleConnsPerHost = 1
	transport.IdleConnTimeout = 30 * time.Second
	return &Service{o: o, paused: make(map[uuid.UUID]time.Time), client: o.Guard.Client(postTimeout, transport)}
}

// Close closes idle connections.
func (s *Service) Close() { s.client.CloseIdleConnections() }

// A Request creates or changes a webhook. In a change, nil fields stay unchanged.
type Request struct {
	Name    *string
	URL     *string
	Events  []EventKind
	Secret  *string // nil or "" for a new webhook generates one
	Enabled *bool
	Shape   *Shape
	Chat    *string
	Lang    *string
	Route   *alert.Route
}

// List returns all webhooks, by name.
func (s *Service) List(ctx context.Context, by fleet.Principal) ([]Webhook, error) {
	if err := by.May(fleet.RoleAdmin, "manage_webhooks"); err != nil {
		return nil, err
	}
	return s.o.Store.Webhooks(ctx)
}

// Create adds a webhook and returns it with its secret.
func (s *Service) Create(ctx context.Context, by fleet.Principal, r Request) (Webhook, string, error) {
	list, err := s.List(ctx, by)
	if err != nil {
		return Webhook{}, "", err
	}
	if len(list) >= MaxWebhooks {
		return Webhook{}, "", fleet.Refuse(fleet.ErrConflict, "too_many_webhooks", "limit", MaxWebhooks)
	}
	if r.Secret == nil || *r.Secret == "" {
		secret := rand.Text()
		r.Secret = &secret
	}
	w := Webhook{ID: uuid.Must(uuid.NewV7()), Enabled: true, Events: slices.Clone(EventKinds), CreatedBy: by.Name,
		CreatedAt: s.o.Now(), Shape: Fleetd, Lang: alert.MailLangs[0], Route: alert.Route{Least: alert.Warning}}
	if err := s.apply(&w, r); err != nil {
		return Webhook{}, "", err
	}
	return w, *r.Secret, s.o.Store.CreateWebhook(ctx, by, w)
}

// Update changes a webhook.
func (s *Service) Update(ctx context.Context, by fleet.Principal, id uuid.UUID, r Request) (Webhook, error) {
	if err := by.May(fleet.RoleAdmin, "manage_webhooks"); err != nil {
		return Webhook{}, err
	}
	w, err := s.o.Store.Webhook(ctx, id)
	if err != nil {
		return Webhook{}, err
	}
	if err := s.apply(&w, r); err != nil {
		return Webhook{}, err
	}
	return w, s.o.Store.UpdateWebhook(ctx, by, w)
}

func (s *Service) apply(w *Webhook, r Request) error {
	if r.Name != nil {
		name, err := fleet.CleanLine("name", *r.Name, fleet.MaxNameLength)
		if err != nil {
			return err
		}
		w.Name = name
	}
	if w.Name == "" {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_name.webhook").At("name")
	}
	if err := s.setURL(w, r.URL); err != nil {
		return err
	}
	if err := s.setShape(w, r); err != nil {
		return err
	}
	if r.Route != nil {
		route, err := r.Route.Check()
		if err != nil {
			return err
		}
		w.Route = route
	}
	if r.Events != nil {
		w.Events = slices.Compact(slices.Sorted(slices.Values(r.Events)))
	}
	if len(w.Events) == 0 {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_webhook_events.none").At("events")
	}
	for _, e := range w.Events {
		if !slices.Contains(EventKinds, e) {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_webhook_events.unknown", "value", string(e)).
				At("events")
		}
	}
	if r.Secret != nil && *r.Secret != "" {
		if len(*r.Secret) < minSecret || len(*r.Secret) > maxSecret {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_webhook_secret", "least", minSecret, "limit", maxSecret).At("secret")
		}
		w.Secret = s.o.Sealer.Seal(sealedAs(w.ID), []byte(*r.Secret))
	}
	if r.Enabled != nil {
		w.Enabled = *r.Enabled
	}
	return nil
}

// setURL sets the webhook's address. nil leaves it unchanged, and so does the shown form of
// the current address, which a client may send back.
func (s *Service) setURL(w *Webhook, given *string) error {
	if given == nil && w.Address != nil {
		return nil
	}
	text := ""
	if given != nil {
		text = strings.TrimSpace(*given)
	}
	if w.Address != nil && text == w.Shown {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || len(text) > maxURLBytes ||
		fleet.CleanText(text, maxURLBytes) != text || strings.Contains(text, hidden) {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_webhook_url", "limit", maxURLBytes).At("url")
	}
	w.Shown, w.Address = s.seal(w.ID, text)
	return nil
}

// setShape sets the format of the deliveries, with its chat and its language.
func (s *Service) setShape(w *Webhook, r Request) error {
	if r.Shape != nil {
		w.Shape = *r.Shape
	}
	if r.Lang != nil {
		w.Lang = *r.Lang
	}
	if r.Chat != nil {
		w.Chat = strings.TrimSpace(*r.Chat)
	}
	if !slices.Contains(Shapes, w.Shape) || w.Shape != Fleetd && s.o.Text == nil {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_webhook_shape", "value", string(w.Shape)).At("shape")
	}
	if !slices.Contains(alert.MailLangs, w.Lang) {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_mail_language", "value", w.Lang).At("language")
	}
	switch {
	case w.Shape != Telegram && r.Chat != nil && w.Chat != "":
		return fleet.Refuse(fleet.ErrInvalid, "invalid_webhook_chat.other").At("chat_id")
	case w.Shape != Telegram:
		w.Chat = ""
	case !chatID.MatchString(w.Chat):
		return fleet.Refuse(fleet.ErrInvalid, "invalid_webhook_chat").At("chat_id")
	}
	return nil
}

// chatID matches the id of a Telegram chat, or the public name of a channel.
var chatID = regexp.MustCompile(`^(-?[0-9]{1,19}|@[A-Za-z][A-Za-z0-9_]{3,31})$`)

// hidden replaces the secret part of a shown address.
const hidden = "…"

// seal returns the shown form of a URL, and the sealed URL.
func (s *Service) seal(id uuid.UUID, text string) (shown string, address []byte) {
	if u, err := url.Parse(text); err == nil {
		shown = u.Scheme + "://" + u.Host
		if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
			shown += "/" + hidden
		}
	}
	return shown, s.o.Sealer.Seal(addressAs(id), []byte(text))
}

// SealStored seals the addresses that an earlier version stored unsealed. Call it before the
// first delivery.
func (s *Service) SealStored(ctx context.Context) error {
	n, err := s.o.Store.SealWebhooks(ctx, s.seal)
	if n > 0 {
		s.o.Log.Info("sealed addresses of webhooks", "webhooks", n)
	}
	return err
}

func sealedAs(id uuid.UUID) string { return "webhook/" + id.String() }

func addressAs(id uuid.UUID) string { return "webhook-address/" + id.String() }

// Delete removes a webhook and drops its waiting deliveries.
func (s *Service) Delete(ctx context.Context, by fleet.Principal, id uuid.UUID) error {
	if err := by.May(fleet.RoleAdmin, "manage_webhooks"); err != nil {
		return err
	}
	return s.o.Store.DeleteWebhook(ctx, by, id)
}

// Test posts a test event now, once, and returns the outcome. A failure is a result, not an
// error.
func (s *Service) Test(ctx context.Context, by fleet.Principal, id uuid.UUID) (Delivery, error) {
	if err := by.May(fleet.RoleAdmin, "manage_webhooks"); err != nil {
		return Delivery{}, err
	}
	w, err := s.o.Store.Webhook(ctx, id)
	if err != nil {
		return Delivery{}, err
	}
	d, _ := s.post(ctx, w, Job{ID: uuid.Must(uuid.NewV7()), Event: Test, At: s.o.Now(), Path: "/approvals"})
	return d, s.o.Store.SetWebhookDelivery(ctx, id, d)
}

// A RetryLater is the error of a delivery that the receiver has not accepted because it gets too many.
type RetryLater struct {
	After time.Duration
	Why   error
}

func (e *RetryLater) Error() string { return fmt.Sprintf("%v; again in %v", e.Why, e.After) }

func (e *RetryLater) Unwrap() error { return e.Why }

// maxPause bounds how long a receiver can ask to wait; pause is for receivers that name no time.
const (
	maxPause = time.Hour
	pause    = time.Minute
)

// pausedFor returns how long the receiver of a webhook has asked to wait.
func (s *Service) pausedFor(id uuid.UUID, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	until, ok := s.paused[id]
	if ok && !now.Before(until) {
		delete(s.paused, id)
	}
	return max(0, until.Sub(now))
}

func (s *Service) setPause(id uuid.UUID, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused[id] = until
}

// Deliver makes one attempt at a job. An error requests another attempt, a [RetryLater] not before a
// time.
func (s *Service) Deliver(ctx context.Context, j Job) error {
	w, err := s.o.Store.Webhook(ctx, j.Webhook)
	if errors.Is(err, fleet.ErrNotFound) || err == nil && !w.Enabled {
		return nil
	}
	if err != nil {
		return err
	}
	if after := s.pausedFor(w.ID, s.o.Now()); after > 0 {
		return &RetryLater{after, fmt.Errorf("webhook %q: its receiver gets too many requests", w.Name)}
	}
	d, after := s.post(ctx, w, j)
	if after > 0 {
		s.setPause(w.ID, s.o.Now().Add(after))
	}
	if err := s.o.Store.SetWebhookDelivery(context.WithoutCancel(ctx), w.ID, d); err != nil &&
		!errors.Is(err, fleet.ErrNotFound) {
		s.o.Log.Warn("could not store the outcome of a delivery", "webhook", w.Name, "err", err)
	}
	if d.Reason.Code == "" {
		return nil
	}
	err = fmt.Errorf("webhook %q: %v", w.Name, d.Reason)
	if after > 0 {
		return &RetryLater{after, err}
	}
	return err
}

// post makes one attempt. after is how long the receiver wants no further request, 0 if it did not
// say.
func (s *Service) post(ctx context.Context, w Webhook, j Job) (d Delivery, after time.Duration) {
	now := s.o.Now()
	d = Delivery{Event: j.Event, At: &now}
	secret, err := s.o.Sealer.Open(sealedAs(w.ID), w.Secret)
	address, addressErr := s.o.Sealer.Open(addressAs(w.ID), w.Address)
	if err != nil || addressErr != nil {
		d.Reason = fleet.Because("webhook_secret_sealed")
		return d, 0
	}
	body, err := s.body(w, j, now)
	if err != nil {
		d.Reason = fleet.Because("webhook_failed", "detail", err.Error())
		return d, 0
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, string(address), bytes.NewReader(body))
	if err != nil {
		d.Reason = fleet.Because("webhook_failed", "detail", "the URL cannot be used")
		return d, 0
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "fleetd")
	if w.Shape == Fleetd {
		r.Header.Set(EventHeader, string(j.Event))
		r.Header.Set(TimestampHeader, strconv.FormatInt(now.Unix(), 10))
		r.Header.Set(SignatureHeader, Sign(secret, body))
	}
	answer, err := s.client.Do(r)
	if err != nil {
		d.Reason = failure(err)
		return d, 0
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswerBytes))
	d.Status = answer.StatusCode
	if err != nil && w.Shape != Fleetd { // the answer of a chat service says whether it accepted the message
		d.Reason = failure(err)
		return d, 0
	}
	d.Reason, after = w.Shape.judge(answer, text, now)
	return d, min(after, maxPause)
}

// body returns the body of a delivery.
func (s *Service) body(w Webhook, j Job, now time.Time) ([]byte, error) {
	link := strings.TrimSuffix(s.o.PublicURL, "/") + j.Path
	if w.Shape != Fleetd {
		if s.o.Text == nil {
			return nil, errors.New("there are no texts")
		}
		t := s.o.Text(w.Lang, j)
		t.Link = link
		return w.Shape.encode(t, w.Chat)
	}
	message := map[string]any{"event": j.Event, "at": j.At.UTC(), "sent_at": now, "delivery_id": j.ID, "url": link}
	if j.Subject != "" {
		message[j.Subject] = json.RawMessage(j.Body)
	}
	return json.Marshal(message)
}

// failure returns why there was no response. The error of net/http contains the URL, which
// may include a secret of the receiver, so failure returns only the cause.
func failure(err error) fleet.Reason {
	var at *url.Error
	if errors.As(err, &at) {
		if at.Timeout() {
			return fleet.Because("webhook_timeout", "timeout_ms", postTimeout)
		}
		err = at.Err
	}
	return fleet.Because("webhook_failed", "detail", err.Error())
}

// Sign returns the signature of a body.
func Sign(secret, body []byte) string {
	h := hmac.New(sha256.New, secret)
	h.Write(body)
	return "sha256=" + hex.EncodeToString(h.Sum(nil))
}
