package logstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"fleetd/fleet"
	"fleetd/fleet/outbound"
	"fleetd/fleet/record"
)

const (
	sendTimeout    = 15 * time.Second
	maxAnswerBytes = 64 << 10 // read of a response
	maxRetryAfter  = time.Hour
)

// A receiver gets events in their order.
type receiver interface {
	// send sends events. After an error, the receiver may have got any of them.
	send(ctx context.Context, list []event) (status int, err error)
	// settled is how long after send without an error the events count as received.
	settled() time.Duration
	// check returns an error if events that were sent may have been lost.
	check() error
	close()
}

// A failure is why a receiver did not confirm events.
type failure struct {
	reason     fleet.Reason
	status     int           // HTTP status; 0 without one
	retryAfter time.Duration // that the receiver asked for
	gone       bool          // the receiver wants no more
}

func (f *failure) Error() string { return fmt.Sprintf("%s %v", f.reason.Code, f.reason.Params) }

// failed returns why there was no response. The error of net/http contains the URL, which may
// include a secret of the receiver, so failed returns only the cause.
func failed(err error) *failure {
	if at, ok := errors.AsType[*url.Error](err); ok {
		if at.Timeout() {
			return &failure{reason: fleet.Because("log_stream_timeout", "timeout_ms", sendTimeout)}
		}
		err = at.Err
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return &failure{reason: fleet.Because("log_stream_timeout", "timeout_ms", sendTimeout)}
	}
	return &failure{reason: fleet.Because("log_stream_failed", "detail", err.Error())}
}

// secrets are what a stream needs to be accepted by its receiver, stored sealed.
type secrets struct {
	Signing     string `json:"signing,omitempty"` // of a webhook: "whsec_" and base64
	Headers     string `json:"headers,omitempty"` // lines "Name: value" for HTTP
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"` // of the certificate that fleetd shows, in PEM
}

// tlsConfig returns how the receiver is checked, and what fleetd shows it.
func tlsConfig(ca string, s secrets) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM([]byte(ca)) {
			return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_certificate.authority").At("ca_certificates")
		}
	}
	if s.Certificate != "" || s.Key != "" {
		pair, err := tls.X509KeyPair([]byte(s.Certificate), []byte(s.Key))
		if err != nil {
			return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_certificate.client").At("client_certificate")
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// open returns the receiver of a stream.
func (s *Service) open(st Stream) (receiver, error) {
	address, secret, err := s.unseal(st)
	if err != nil {
		return nil, &failure{reason: fleet.Because("log_stream_sealed")}
	}
	config, err := tlsConfig(st.CA, secret)
	if err != nil {
		return nil, &failure{reason: fleet.Because("log_stream_sealed")}
	}
	if st.Kind == Syslog {
		return newSyslog(s.o.Guard, address, config, s.syslogSettled), nil
	}
	poster := poster{client: httpClient(s.o.Guard, config), address: address, headers: parseHeaders(secret.Headers)}
	if st.Kind == OTLP {
		return &otlp{poster}, nil
	}
	signer, err := standardwebhooks.NewWebhook(secret.Signing)
	if err != nil {
		return nil, &failure{reason: fleet.Because("log_stream_sealed")}
	}
	return &webhook{poster, signer, st.Batch > 1}, nil
}

func httpClient(guard *outbound.Guard, config *tls.Config) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = config
	transport.MaxResponseHeaderBytes = maxAnswerBytes
	transport.MaxIdleConnsPerHost = 1
	transport.IdleConnTimeout = 90 * time.Second
	return guard.Client(sendTimeout, transport)
}

func parseHeaders(lines string) http.Header {
	h := http.Header{}
	for line := range strings.Lines(lines) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			h.Set(strings.TrimSpace(name), strings.TrimSpace(value))
		}
	}
	return h
}

// A poster sends events in POST requests. An answer below 300 confirms them.
type poster struct {
	client  *http.Client
	address string
	headers http.Header
}

func (p *poster) settled() time.Duration { return 0 }
func (p *poster) check() error           { return nil }
func (p *poster) close()                 { p.client.CloseIdleConnections() }

func (p *poster) post(ctx context.Context, mediaType string, body []byte, more map[string]string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.address, bytes.NewReader(body))
	if err != nil {
		return 0, &failure{reason: fleet.Because("log_stream_failed", "detail", "the URL cannot be used")}
	}
	for name, values := range p.headers {
		r.Header[name] = values
	}
	r.Header.Set("Content-Type", mediaType)
	r.Header.Set("User-Agent", "fleetd")
	for name, value := range more {
		r.Header.Set(name, value)
	}
	answer, err := p.client.Do(r)
	if err != nil {
		return 0, failed(err)
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswerBytes))
	if answer.StatusCode >= 300 {
		return answer.StatusCode, &failure{reason: fleet.Because("log_stream_status", "status", answer.StatusCode),
			status: answer.StatusCode, gone: answer.StatusCode == http.StatusGone,
			retryAfter: retryAfter(answer.Header.Get("Retry-After"))}
	}
	return answer.StatusCode, nil
}

// retryAfter reads a number of seconds or a date.
func retryAfter(text string) time.Duration {
	if n, err := strconv.Atoi(text); err == nil {
		return min(max(0, time.Duration(n)*time.Second), maxRetryAfter)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(0, time.Until(at)), maxRetryAfter)
	}
	return 0
}

// A webhook posts CloudEvents, signed as Standard Webhooks defines.
type webhook struct {
	poster
	signer  *standardwebhooks.Webhook
	batched bool
}

func (w *webhook) send(ctx context.Context, list []event) (int, error) {
	events := make([]cloudevents.Event, len(list))
	for i := range list {
		events[i] = list[i].cloud()
	}
	var body []byte
	var err error
	id, mediaType := events[0].ID(), cloudevents.ApplicationCloudEventsJSON
	if w.batched {
		id += "-" + events[len(events)-1].ID()
		mediaType = cloudevents.ApplicationCloudEventsBatchJSON
		body, err = json.Marshal(events)
	} else {
		body, err = json.Marshal(events[0])
	}
	if err != nil {
		return 0, failed(err)
	}
	now := time.Now()
	signature, err := w.signer.Sign(id, now, body)
	if err != nil {
		return 0, failed(err)
	}
	return w.post(ctx, mediaType, body, map[string]string{standardwebhooks.HeaderWebhookID: id,
		standardwebhooks.HeaderWebhookTimestamp: strconv.FormatInt(now.Unix(), 10),
		standardwebhooks.HeaderWebhookSignature: signature})
}

// CloudEvent returns an entry of the log with this name in the form that webhooks get. Its data is the line, byte for
// byte, which json.Marshal would compact.
func CloudEvent(source string, e record.Entry) ([]byte, error) {
	ev := newEvent(source, e)
	return ev.cloud().MarshalJSON()
}

// cloud returns the event in the form of CloudEvents 1.0. Its id is the number of the entry, and its source
// the name of the log.
func (e *event) cloud() cloudevents.Event {
	c := cloudevents.New()
	c.SetID(strconv.FormatInt(e.Number, 10))
	c.SetExtension("sequence", fmt.Sprintf("%020d", e.Number)) // the extension "sequence" is ordered as text
	if e.Kind == testKind {
		c.SetID(testKind + "-" + strconv.FormatInt(e.At.UnixNano(), 10))
		c.SetExtension("sequence", nil)
	}
	c.SetSource(e.source)
	c.SetType("fleetd." + e.Kind)
	c.SetSubject(e.subject())
	c.SetTime(e.At)
	if trace := e.trace(); trace != "" {
		c.SetExtension("traceid", trace)
	}
	c.SetDataContentType(cloudevents.ApplicationJSON)
	c.DataEncoded = e.Line
	return c
}
