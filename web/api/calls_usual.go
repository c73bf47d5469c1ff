package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"fleetd/fleet"
)

// usualCall answers calls that come in the usual form: plain JSON, in which all
// is as the document has it. Calls are most of all requests, and huma parses the
// body of each twice and goes through it by reflection, which takes
// longer than the call itself. All other requests, and so everything that is at
// fault, are next's, which is huma.
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
			c, err = a.Calls.Make(r.Context(), request)
		}
		if err != nil {
			p := a.problemOf(withPrincipal(r.Context(), who), err, "device", in.ID)
			for name, values := range p.GetHeaders() {
				w.Header()[name] = values
			}
			writeJSON(w, p.Status, p.ContentType(""), p)
			return
		}
		view := call(c)
		writeJSON(w, http.StatusOK, "application/json", &view)
	}
}

// readUsual reads a call, if it has the usual form.
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

// is reports whether a header has one of the values, in one line. Without the
// header its value is "".
func is(header []string, values ...string) bool {
	switch len(header) {
	case 0:
		return slices.Contains(values, "")
	case 1:
		return slices.Contains(values, header[0])
	}
	return false
}

// readUsualBody reads a body that fits the document and has each field at most
// once, by its exact name, the tool's without escapes. It must accept nothing
// that huma refuses, or reads otherwise.
func (in *makeCallInput) readUsualBody(data []byte) bool {
	if !json.Valid(data) {
		return false
	}
	t := validJSON{data: data}
	if t.next() != '{' {
		return false
	}
	t.at++
	timed := false
	for t.next() != '}' {
		key, ok := t.plainString()
		if !ok {
			return false
		}
		t.next()
		t.at++ // the colon
		switch first := t.next(); {
		case string(key) == "tool" && in.Body.Tool == "" && first == '"':
			var tool []byte
			if tool, ok = t.plainString(); !ok || len(tool) == 0 || len(tool) > 200 {
				return false
			}
			in.Body.Tool = string(tool)
		case string(key) == "arguments" && in.Body.Arguments == nil && first == '{':
			in.Body.Arguments = t.object()
		case string(key) == "timeout_ms" && !timed && '0' <= first && first <= '9':
			n, err := strconv.ParseUint(string(t.number()), 10, 32)
			if err != nil || n > 300_000 {
				return false
			}
			in.Body.TimeoutMs, timed = int64(n), true
		default:
			return false
		}
		if t.next() == ',' {
			t.at++
		}
	}
	return in.Body.Tool != ""
}

// validJSON is walked through from token to token. It is known to be valid, so
// that every token has its end.
type validJSON struct {
	data []byte
	at   int
}

// next passes over white space and returns the first byte of what follows.
func (t *validJSON) next() byte {
	for {
		switch c := t.data[t.at]; c {
		case ' ', '\t', '\n', '\r':
			t.at++
		default:
			return c
		}
	}
}

// plainString passes over a string. ok is false if it has escapes, or other
// characters than those of ASCII.
func (t *validJSON) plainString() (s []byte, ok bool) {
	t.at++
	for begin := t.at; ; t.at++ {
		switch c := t.data[t.at]; {
		case c == '"':
			t.at++
			return t.data[begin : t.at-1], true
		case c == '\\', c >= 0x7f:
			return nil, false
		}
	}
}

// number passes over a number.
func (t *validJSON) number() []byte {
	begin := t.at
	for {
		switch t.data[t.at] {
		case ',', '}', ' ', '\t', '\n', '\r':
			return t.data[begin:t.at]
		}
		t.at++
	}
}

// object passes over an object with all that is in it.
func (t *validJSON) object() []byte {
	begin := t.at
	for depth, quoted := 0, false; ; t.at++ {
		switch c := t.data[t.at]; {
		case c == '"':
			quoted = !quoted
		case c == '\\': // only strings have them
			t.at++
		case quoted:
		case c == '{':
			depth++
		case c == '}':
			if depth--; depth == 0 {
				t.at++
				return t.data[begin:t.at:t.at]
			}
		}
	}
}
