package client

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A server that is busy or restarts does not end a follower; one that refuses does.
func TestFollowOutlastsABusyServer(t *testing.T) {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		refuse := func(status int, code string) {
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"code":%q,"detail":"no"}`, code)
		}
		switch requests {
		case 1:
			refuse(http.StatusTooManyRequests, "heavy_rate")
		case 2:
			refuse(http.StatusServiceUnavailable, "unavailable")
		case 3:
			fmt.Fprint(w, `{"number":0}`+"\n"+`{"number":1}`+"\n"+`{"number`)
		case 4:
			if from := r.URL.Query().Get("from"); from != "2" {
				t.Errorf("continued from %s", from)
			}
			fmt.Fprint(w, `{"number":2}`+"\n")
		default:
			refuse(http.StatusForbidden, "forbidden")
		}
	}))
	defer server.Close()
	out := filepath.Join(t.TempDir(), "out")
	c := auditFollow{Server: Server{URL: server.URL, Token: "flt_x"}, Output: out, Every: time.Millisecond}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := c.Run(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("a refusal ended it with %v after %d requests", err, requests)
	}
	data, err := os.ReadFile(out)
	if want := `{"number":0}` + "\n" + `{"number":1}` + "\n" + `{"number":2}` + "\n"; err != nil || string(data) != want {
		t.Errorf("wrote %q, %v", data, err)
	}
}
