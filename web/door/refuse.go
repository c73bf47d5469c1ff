package door

import (
	"encoding/json"
	"errors"
	"html"
	"net/http"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/web/i18n"
)

// A refusal is the door's answer to a request that no core answered.
type refusal struct {
	status int
	*fleet.Error
}

// The codes are part of the contract with programs. See [errNoLeader] and the others.
var (
	refusedNoLeader   = fleet.Refuse(fleet.ErrUnavailable, "no_leader")
	refusedNoRoom     = fleet.Refuse(fleet.ErrUnavailable, "no_leader.full")
	refusedStopping   = fleet.Refuse(fleet.ErrUnavailable, "edge_stopping")
	refusedNotHandled = fleet.Refuse(fleet.ErrUnavailable, "request_not_handled")
	refusedExpired    = fleet.Refuse(fleet.ErrUnavailable, "edge_certificate_expired")
	refusedUnknown    = fleet.Refuse(fleet.ErrUnavailable, "outcome_unknown")
)

// refusalOf returns the answer for an error of the gate or the carrier.
func refusalOf(err error) (r refusal, ok bool) {
	for _, row := range []struct {
		err error
		refusal
	}{
		{errNoLeader, refusal{http.StatusServiceUnavailable, refusedNoLeader}},
		{errNoRoom, refusal{http.StatusServiceUnavailable, refusedNoRoom}},
		{errStopping, refusal{http.StatusServiceUnavailable, refusedStopping}},
		{errNotHandled, refusal{http.StatusServiceUnavailable, refusedNotHandled}},
		{errExpired, refusal{http.StatusServiceUnavailable, refusedExpired}},
		{errUnknown, refusal{http.StatusBadGateway, refusedUnknown}},
	} {
		if errors.Is(err, row.err) {
			return row.refusal, true
		}
	}
	return refusal{}, false
}

// retrySeconds is the Retry-After of requests that were not handled.
const retrySeconds = 2

// write answers r in the form of its kind.
func (f refusal) write(w http.ResponseWriter, r *http.Request, k Kind) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	again := f.status == http.StatusServiceUnavailable
	if again {
		h.Set("Retry-After", strconv.Itoa(retrySeconds))
		// The body was not read. A connection that waits for nothing is better closed; devices close first.
		if k != Poll && k != Device {
			h.Set("Connection", "close")
		}
	}
	var body []byte
	switch {
	case k == API || k == MCP:
		h.Set("Content-Type", "application/problem+json")
		body, _ = json.Marshal(map[string]any{"title": http.StatusText(f.status), "status": f.status, "code": f.Code,
			"detail": i18n.ErrorDetail(f.Error)}) // only texts and a number
		body = append(body, '\n')
	case k == Page && strings.Contains(r.Header.Get("Accept"), "text/html"):
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Vary", "Accept-Language, Cookie")
		body = f.page(r, again && (r.Method == http.MethodGet || r.Method == http.MethodHead))
	default:
		h.Set("Content-Type", "text/plain; charset=utf-8")
		body = []byte(f.Code + ": " + i18n.ErrorDetail(f.Error) + "\n")
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(f.status)
	_, _ = w.Write(body) // the client may have gone
}

// page returns a page that needs no other address: style sheets come from the core, too.
func (f refusal) page(r *http.Request, reload bool) []byte {
	choice := ""
	if c, err := r.Cookie("fleetd_lang"); err == nil { // of the console
		choice = c.Value
	}
	l := i18n.Match(choice, r)
	var b strings.Builder
	b.WriteString(`<!DOCTYPE html><html lang="` + string(l) + `"><head><meta charset="utf-8">` +
		`<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">`)
	if reload {
		b.WriteString(`<meta http-equiv="refresh" content="` + strconv.Itoa(retrySeconds) + `">`)
	}
	title := html.EscapeString(i18n.Text(l, "error.failed"))
	b.WriteString("<title>" + title + "</title></head><body><h1>" + title + "</h1><p>" +
		html.EscapeString(i18n.Error(l, time.UTC, f.Error)) + "</p></body></html>\n")
	return []byte(b.String())
}
