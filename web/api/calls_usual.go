package api

import (
	"net/http"
	"slices"
	"strconv"

	"fleetd/fleet"
	"fleetd/fleet/origin"
	"fleetd/internal/jsonscan"
)

// usualCall serves calls in the usual form: plain JSON without anything unusual in header or body.
// Most calls have this form. huma parses a body twice and processes it by reflection, which takes
// longer than the call itself. All other requests, including all invalid ones, go to next, which is
// huma.
func (a *api) usualCall(next guarded) guarded {
	return func(w http.ResponseWriter, r *http.Request, who principal) {
		var in makeCallInput
		if !in.readUsual(r) {
			next(w, r, who)
			return
		}
		var c fleet.Call
		request, err := in.request(who.actor)
		if err == nil {
			c, err = a.Calls.Make(origin.With(r.Context(), origin.FromRequest(r)), request)
		}
		if err != nil {
			p := a.problemOf(withPrincipal(r.Context(), who), err, "device", in.ID)
			for name, values := range p.GetHeaders() {
				w.Header()[name] = values
			}
			writeJSON(w, p.Status, p.ContentType(""), p)
			return
		}
		view := viewOfCall(c)
		writeJSON(w, http.StatusOK, "application/json", &view)
	}
}

// readUsual reads a call if it has the usual form.
func (in *makeCallInput) readUsual(r *http.Request) bool {
	body, ok := r.Body.(*bufferedBody)
	in.ID = r.PathValue("id")
	if !ok || in.ID == "" || len(in.ID) > 80 || r.URL.RawPath != "" || len(r.Header[keyHeader]) > 0 ||
		len(r.Header["Prefer"]) > 0 || !is(r.Header["Accept"], "", "*/*", "application/json") ||
		!is(r.Header["Content-Type"], "", "application/json", "application/json; charset=utf-8") {
		return false
	}
	return in.readUsualBody(body.data)
}

// is reports whether a header has one of the values, in one line. The value of an absent header is
// "".
func is(header []string, values ...string) bool {
	switch len(header) {
	case 0:
		return slices.Contains(values, "")
	case 1:
		return slices.Contains(values, header[0])
	}
	return false
}

// readUsualBody reads a body that fits the document and contains each field at most once, by its
// exact name, with a tool name without escapes. It must accept nothing that huma refuses or reads
// differently.
func (in *makeCallInput) readUsualBody(data []byte) bool {
	return jsonscan.PlainMembers(data, func(key, value []byte) bool {
		switch string(key) {
		case "tool":
			tool, ok := jsonscan.PlainString(value)
			in.Body.Tool = string(tool)
			return ok && len(tool) <= 200
		case "arguments":
			in.Body.Arguments = value[:len(value):len(value)]
			return value[0] == '{'
		case "timeout_ms":
			n, err := strconv.ParseUint(string(value), 10, 32)
			in.Body.TimeoutMs = int64(n)
			return err == nil && n <= 300_000
		}
		return false
	}) && in.Body.Tool != ""
}
