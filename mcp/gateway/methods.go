package gateway

import (
	"bytes"
	"io"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// methods are the methods of the SDK's server. It answers others with plain text and
// status 400, which clients report as a broken connection.
var methods = map[string]bool{
	"initialize": true, "ping": true, "server/discover": true, "subscriptions/listen": true,
	"tools/list": true, "tools/call": true, "prompts/list": true, "prompts/get": true,
	"resources/list": true, "resources/templates/list": true, "resources/read": true,
	"resources/subscribe": true, "resources/unsubscribe": true,
	"completion/complete": true, "logging/setLevel": true,
	"notifications/initialized": true, "notifications/cancelled": true, "notifications/progress": true,
	"notifications/roots/list_changed": true,
}

// unknownMethod returns the message in the body if no handler serves its method, nil
// otherwise, also if the body is not a message.
func unknownMethod(body []byte) *jsonrpc.Request {
	m, err := jsonrpc.DecodeMessage(body)
	r, is := m.(*jsonrpc.Request)
	if err != nil || !is || methods[r.Method] {
		return nil
	}
	return r
}

// methodNotFound is the answer to a request of an unknown method.
func methodNotFound(r *jsonrpc.Request) *jsonrpc.Response {
	return &jsonrpc.Response{ID: r.ID, Error: &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound,
		Message: "unknown method " + r.Method}}
}

// servedMethods answers messages with unknown methods before they reach the SDK. The
// status is 404 since 2026-07-28; before, it is the same as for other answers.
// Notifications of later versions have no effect.
func servedMethods(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		unknown := unknownMethod(body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		switch {
		case err != nil || unknown == nil:
			next.ServeHTTP(w, r)
		case !unknown.IsCall():
			w.WriteHeader(http.StatusAccepted)
		default:
			data, err := jsonrpc.EncodeMessage(methodNotFound(unknown))
			if err != nil {
				panic(err) // cannot fail: the id was parsed, and the text is constant
			}
			status := http.StatusOK
			if r.Header.Get(versionHeader) >= firstStateless {
				status = http.StatusNotFound
			}
			w.Header()["Content-Type"] = jsonType
			w.WriteHeader(status)
			_, _ = w.Write(data) // the client may be gone
		}
	})
}
