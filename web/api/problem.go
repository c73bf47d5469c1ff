package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"fleetd/fleet"
	"fleetd/fleet/outcome"
	"fleetd/web/i18n"
)

// A problem is a failure in the format for programs (RFC 9457). Status is for HTTP, Code for
// branching, Detail for people.
type problem struct {
	Title     string         `json:"title" doc:"The status in words"`
	Status    int            `json:"status" doc:"HTTP status"`
	Code      string         `json:"code" doc:"What failed, stable and in snake_case" example:"unknown_device"`
	Detail    string         `json:"detail" doc:"What happened, to what, and what to do about it"`
	Field     string         `json:"field,omitempty" doc:"The field or parameter at fault"`
	Params    map[string]any `json:"params,omitempty" doc:"Figures and names that belong to the code"`
	Errors    []fieldProblem `json:"errors,omitempty" nullable:"false" doc:"All invalid fields, for invalid_request"`
	RequestID string         `json:"request_id,omitempty" doc:"Names the request in the server's log"`

	retryAfter int // seconds
}

type fieldProblem struct {
	Field   string `json:"field" example:"body.tool"`
	Message string `json:"message"`
}

func (p *problem) Error() string             { return p.Detail }
func (p *problem) GetStatus() int            { return p.Status }
func (p *problem) ContentType(string) string { return "application/problem+json" }

// GetHeaders returns the headers of the response to huma.
func (p *problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	return h
}

// write responds with the problem, outside of huma.
func (p *problem) write(w http.ResponseWriter) {
	if p.Title == "" {
		p.Title = http.StatusText(p.Status)
	}
	for name, values := range p.GetHeaders() {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Type", p.ContentType(""))
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client may have gone
}

// buffers are for responses in progress.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// writeJSON responds in the same way as huma, outside of huma.
func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	b := buffers.Get().(*bytes.Buffer)
	defer func() {
		if b.Cap() <= 64<<10 { // a response with a picture need not stay in memory
			b.Reset()
			buffers.Put(b)
		}
	}()
	if u, ok := v.(interface{ writeUsual(*bytes.Buffer) bool }); ok && u.writeUsual(b) {
		b.WriteByte('\n')
	} else {
		b.Reset()
		e := json.NewEncoder(b)
		e.SetEscapeHTML(false)
		if err := e.Encode(v); err != nil {
			panic(err) // a bug: see recovered
		}
	}
	h := w.Header()
	h["Content-Type"] = []string{contentType}
	h["Content-Length"] = []string{strconv.Itoa(b.Len())}
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the client may have gone
}

// huma uses this function for the errors of requests that do not fit the document.
func init() { huma.NewError = requestProblem }

// msg and the messages of errs come from huma.
func requestProblem(status int, msg string, errs ...error) huma.StatusError {
	if status == http.StatusUnsupportedMediaType {
		return refused(status, fleet.Refuse(fleet.ErrInvalid, "unsupported_media_type"))
	}
	var fields problem
	for _, err := range errs {
		fields.add(err)
	}
	detail, field := msg, ""
	if len(fields.Errors) > 0 {
		field = fields.Errors[0].Field
		detail = field + ": " + fields.Errors[0].Message
	}
	e := fleet.Refuse(fleet.ErrInvalid, "invalid_request.document", "detail", detail)
	if status == http.StatusBadRequest {
		e = fleet.Refuse(fleet.ErrInvalid, "malformed_json", "detail", detail)
	}
	p := refused(status, e.At(field))
	p.Errors = fields.Errors
	return p
}

// refused returns the problem of a refusal.
func refused(status int, e *fleet.Error) *problem {
	return &problem{Status: status, Title: http.StatusText(status), Code: e.Code, Detail: i18n.ErrorDetail(e),
		Field: e.Field, Params: e.Params}
}

// add adds a field at fault. It does not repeat the value, which may be a secret.
func (p *problem) add(err error) {
	var d huma.ErrorDetailer
	if errors.As(err, &d) {
		p.Errors = append(p.Errors, fieldProblem{d.ErrorDetail().Location, d.ErrorDetail().Message})
	}
}

// problemOf returns the problem of a failure. noun and id name the object of the operation.
func (a *api) problemOf(ctx context.Context, err error, noun, id string) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	p = known(err)
	if p == nil {
		p = internalProblem(principalOf(ctx).request)
		a.Log.Error("request failed", "request", p.RequestID, "err", err)
		return p
	}
	if p.Code == "not_found" && id != "" {
		p = refused(p.Status, fleet.Refuse(fleet.ErrNotFound, "unknown_"+noun+".id", "id", id))
	}
	if p.Code == "unavailable" && ctx.Err() == nil {
		a.Log.Warn("request not served", "err", err)
	}
	return p
}

// known returns the problem of an expected failure, or nil.
func known(err error) *problem {
	o := outcome.Of(err)
	if o.Refusal == nil {
		return nil
	}
	p := refused(o.Status, o.Refusal)
	p.retryAfter = o.RetryAfter
	return p
}

// internalProblem returns a problem that only refers to the log. id is the id of the request, if it
// already has one.
func internalProblem(id string) *problem {
	if id == "" {
		id = strings.ToLower(rand.Text()[:12])
	}
	p := refused(http.StatusInternalServerError, fleet.Refuse(nil, "internal", "request", id))
	p.RequestID = id
	return p
}
