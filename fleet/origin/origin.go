// Package origin describes where a request came from: the address of the client, the program that sent it, and the
// trace that it belongs to. Calls and audit entries have the origin of the request that asked for them; what no request
// asked for has none.
//
// An address and a trace are statements of the client or of a proxy, not proofs. The package holds no state.
package origin

import (
	"context"
	"encoding/hex"
	"net"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxClient is the maximum length of [Origin.Client] in bytes.
const MaxClient = 200

// A TraceID is the trace id of W3C Trace Context; zero means that there is no trace.
type TraceID [16]byte

// String returns 32 hexadecimal digits, or "" for no trace.
func (t TraceID) String() string {
	if t == (TraceID{}) {
		return ""
	}
	return hex.EncodeToString(t[:])
}

// ParseTraceID reads 32 hexadecimal digits.
func ParseTraceID(s string) (t TraceID, ok bool) {
	if len(s) != 2*len(t) || strings.ToLower(s) != s {
		return TraceID{}, false
	}
	_, err := hex.Decode(t[:], []byte(s))
	if err != nil || t == (TraceID{}) {
		return TraceID{}, false
	}
	return t, true
}

// ParseTraceParent returns the trace id in a traceparent (W3C Trace Context, version 00 and later); zero if it is not
// valid.
func ParseTraceParent(s string) TraceID {
	// version "-" trace id "-" parent id "-" flags; later versions may append more.
	if len(s) < 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' || len(s) > 55 && (s[:2] == "00" || s[55] != '-') ||
		s[:2] == "ff" || !isHex(s[:2]) || !isHex(s[36:52]) || s[36:52] == "0000000000000000" || !isHex(s[53:55]) {
		return TraceID{}
	}
	t, _ := ParseTraceID(s[3:35])
	return t
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

// An Origin is where a request came from. Fields that are zero are unknown.
type Origin struct {
	Address string // IP address of the client, as the trusted proxies report it
	Client  string // User-Agent, or name and version of an MCP client; at most [MaxClient] bytes
	Trace   TraceID
}

// Unknown reports whether neither address nor client are known.
func (o Origin) Unknown() bool { return o.Address == "" && o.Client == "" }

// FromRequest returns the origin of an HTTP request whose RemoteAddr is that of the client.
func FromRequest(r *http.Request) Origin {
	o := Origin{Address: r.RemoteAddr}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		o.Address = host
	}
	if agent := r.Header["User-Agent"]; len(agent) > 0 {
		o.Client = CleanClient(agent[0])
	}
	if parent := r.Header["Traceparent"]; len(parent) == 1 {
		o.Trace = ParseTraceParent(parent[0])
	}
	return o
}

// CleanClient returns a client's description of itself, cut to [MaxClient] bytes, without invalid, incomplete and
// invisible characters.
func CleanClient(s string) string {
	if len(s) <= MaxClient && strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) < 0 {
		return s // as nearly all are
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return -1
		}
		return r
	}, s[:min(len(s), MaxClient)])
}

type key struct{}

// With returns a context for work that a request asked for.
func With(ctx context.Context, o Origin) context.Context { return context.WithValue(ctx, key{}, &o) }

// Of returns the origin of the request that asked for the work; the zero value if no request did.
func Of(ctx context.Context) Origin {
	if o, ok := ctx.Value(key{}).(*Origin); ok {
		return *o
	}
	return Origin{}
}
