package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/httprate"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/heavy"
	"fleetd/fleet/origin"
	"fleetd/fleet/outcome"
	"fleetd/fleet/picture"
	"fleetd/web/access"
	"fleetd/web/request"
)

// principal is the principal of a request. Its secret encrypts the data stored for the request.
type principal struct {
	actor   fleet.Principal
	secret  string
	request string // id of the request from package web; may be ""
}

type principalKey struct{}

func principalOf(ctx context.Context) principal {
	p, _ := ctx.Value(principalKey{}).(principal)
	return p
}

func withPrincipal(ctx context.Context, who principal) context.Context {
	return context.WithValue(ctx, principalKey{}, who)
}

// A guarded handler serves a request whose principal has been admitted.
type guarded func(w http.ResponseWriter, r *http.Request, who principal)

// guard passes an operation's requests to next if they have a valid token, a sufficient role on
// what the operation reaches, a permitted kind of principal, and a body of bounded size. It runs
// each act once per Idempotency-Key.
func (a *api) guard(op *huma.Operation, next http.Handler) http.Handler {
	need, ok := op.Metadata[roleKey].(fleet.Role)
	if !ok || !need.Valid() {
		panic("operation " + op.OperationID + " declares no role")
	}
	reach, _ := op.Metadata[reachKey].(access.Reach)
	if !reach.Valid() {
		panic("operation " + op.OperationID + " declares no reach")
	}
	models, _ := op.Metadata[modelsKey].(fleet.ForModels)
	if !models.Valid() {
		panic("operation " + op.OperationID + " does not say whether a language model may")
	}
	noun, _ := op.Metadata[nounKey].(string)
	work, _ := op.Metadata[heavyKey].(heavy.Work)
	if !work.Valid() {
		panic("operation " + op.OperationID + " declares work that is not known")
	}
	door := door{need, reach, models, work, op.Summary, noun, a.collection(op.Path)}
	streams, _ := op.Metadata[streamsKey].(bool)
	if streams || op.Method == http.MethodGet || op.Method == http.MethodDelete {
		return a.authenticated(door, knowing(next))
	}
	if op.Method == http.MethodPost {
		next = a.once(next)
	}
	limit := op.MaxBodyBytes - 1
	form := int64(0)
	if takesPicture, _ := op.Metadata[pictureKey].(bool); takesPicture {
		next, form = openForm(limit, next), limit+picture.MaxSnapshotBytes+formExtra
	}
	act := knowing(next)
	if usual, _ := op.Metadata[usualKey].(func(guarded) guarded); usual != nil {
		act = usual(act)
	}
	return a.authenticated(door, readBody(limit, form, act))
}

// knowing adds the principal and the origin to the request's context for next.
func knowing(next http.Handler) guarded {
	return func(w http.ResponseWriter, r *http.Request, who principal) {
		ctx := origin.With(r.Context(), origin.FromRequest(r))
		next.ServeHTTP(w, r.WithContext(withPrincipal(ctx, who)))
	}
}

// A door is the guard's data about an operation.
type door struct {
	need      fleet.Role
	reach     access.Reach
	models    fleet.ForModels
	work      heavy.Work
	operation string // as text
	noun      string
	find      func(context.Context, uuid.UUID) error // finds the campaign, fan-out or schedule in the address; nil: none
}

// collection returns the function that finds the campaign, fan-out or schedule in an address.
func (a *api) collection(path string) func(context.Context, uuid.UUID) error {
	switch {
	case strings.HasPrefix(path, "/campaigns/{id}"):
		return a.eventSources().Campaign
	case strings.HasPrefix(path, "/fanouts/{id}"):
		return a.eventSources().FanOut
	case strings.HasPrefix(path, "/schedules/{id}"):
		return func(ctx context.Context, id uuid.UUID) error { _, err := a.Schedules.Get(ctx, id); return err }
	}
	return nil
}

func (a *api) authenticated(d door, next guarded) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secret, ok := bearer(r)
		if !ok {
			a.unauthenticated(w, r, fleet.Refuse(fleet.ErrForbidden, "token_missing"))
			return
		}
		actor, err := a.Operators.Authenticate(r.Context(), secret)
		if errors.Is(err, fleet.ErrForbidden) {
			a.unauthenticated(w, r, outcome.Of(err).Refusal)
			return
		}
		if err == nil {
			err = a.admit(r, d, actor)
		}
		done := func() {}
		if err == nil {
			done, err = a.Heavy.Begin(r.Context(), actor, d.work) // before the body is read
		}
		if err != nil {
			p := a.problemOf(r.Context(), err, d.noun, r.PathValue("id"))
			if errors.Is(err, fleet.ErrTooMany) {
				p.retryAfter = nextRequest(p)
			}
			p.write(w)
			return
		}
		defer done()
		if ctx := fleet.WithScope(r.Context(), actor); ctx != r.Context() {
			r = r.WithContext(ctx)
		}
		next(w, r, principal{actor, secret, request.ID(w)})
	})
}

// admit refuses a principal without the required role on what the operation reaches, and a language
// model if the operation is not for models. An object hidden from the principal is not found.
func (a *api) admit(r *http.Request, d door, actor fleet.Principal) error {
	role := d.reach.RoleOf(actor)
	if actor.Scope != nil && role.Allows(d.need) {
		var err error
		if role, err = a.roleOn(r, d, actor); err != nil {
			return err
		}
	}
	if role.Allows(d.need) {
		return d.models.Admit(actor, d.operation)
	}
	return fleet.Refuse(fleet.ErrForbidden, "forbidden.operation", "operation", d.operation, "need", d.need,
		"actor", actor.Name, "role", cmp.Or(role, fleet.RoleViewer))
}

// roleOn returns the principal's role on the device or devices in the address. It leaves an invalid
// id to the operation, which reports the error.
func (a *api) roleOn(r *http.Request, d door, actor fleet.Principal) (fleet.Role, error) {
	ctx, text := r.Context(), r.PathValue("id")
	switch {
	case d.reach == access.Device:
		id, err := fleet.ParseDeviceID(text)
		if err != nil {
			return actor.Role, nil
		}
		device, err := a.Devices.Known(ctx, id)
		if err == nil && !actor.Sees(device) {
			err = fleet.ErrNotFound
		}
		return actor.RoleOn(device), err
	case d.reach == access.Audience && d.find != nil:
		id, err := uuid.Parse(text)
		if err != nil {
			return actor.Role, nil
		}
		return actor.RoleOnAll(ctx, func(ctx context.Context) error { return d.find(ctx, id) })
	}
	return d.reach.RoleOf(actor), nil
}

// nextRequest returns after how many seconds a token that used up its rate may make another
// request.
func nextRequest(p *problem) int {
	limit, _ := p.Params["limit"].(int64)
	limit = max(limit, 1)
	return int((60 + limit - 1) / limit)
}

func bearer(r *http.Request) (string, bool) {
	scheme, secret, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(secret), ok && strings.EqualFold(scheme, "Bearer")
}

// unauthenticated refuses a request, and limits repeated failures.
func (a *api) unauthenticated(w http.ResponseWriter, r *http.Request, why *fleet.Error) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="fleetd"`)
	if a.failures.OnLimit(w, r, httprate.CanonicalizeIP(host)) {
		refused(http.StatusTooManyRequests, fleet.Refuse(fleet.ErrTooMany, "too_many_attempts.token")).write(w)
		return
	}
	refused(http.StatusUnauthorized, why).write(w)
}

// Limits of a request's body.
const (
	maxBody     = 64 << 10
	maxPlan     = 2 << 20 // a campaign may list its devices one by one
	bodyTimeout = 10 * time.Second
	formTimeout = time.Minute // a picture over a modem
)

// A bufferedBody is a request's body that has arrived completely.
type bufferedBody struct {
	bytes.Reader
	data []byte
}

func (*bufferedBody) Close() error { return nil }

// readBody reads the whole body before anything else happens. Then the read deadline ends: a call
// may well take longer than its arguments took to arrive. If the operation accepts forms, a form
// may be larger, and take longer.
func readBody(limit, form int64, next guarded) guarded {
	return func(w http.ResponseWriter, r *http.Request, who principal) {
		body := new(bufferedBody)
		if r.Body != nil && r.Body != http.NoBody {
			most, timeout := limit, bodyTimeout
			if form > 0 && isForm(r) {
				most, timeout = form, formTimeout
			}
			var p *problem
			if body.data, p = readAll(w, r, most, timeout); p != nil {
				p.write(w)
				return
			}
		}
		body.Reset(body.data)
		r.Body = body
		next(w, r, who)
	}
}

func readAll(w http.ResponseWriter, r *http.Request, limit int64, timeout time.Duration) ([]byte, *problem) {
	// Some writers have no connection. At the end of the body net/http lifts the deadline.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(timeout))
	var data []byte
	var err error
	if n := r.ContentLength; n > 0 && n <= min(limit, maxBody) {
		data = make([]byte, n)
		_, err = io.ReadFull(r.Body, data)
	} else {
		data, err = io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	}
	var large *http.MaxBytesError
	switch {
	case err == nil:
		return data, nil
	case errors.As(err, &large):
		return nil, refused(http.StatusRequestEntityTooLarge,
			fleet.Refuse(fleet.ErrInvalid, "body_too_large.body", "limit", limit>>10))
	}
	return nil, refused(http.StatusBadRequest, fleet.Refuse(fleet.ErrInvalid, "broken_body.time", "timeout_ms", timeout))
}
