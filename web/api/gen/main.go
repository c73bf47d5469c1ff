// Command gen prints the OpenAPI document of the REST interface, as a server
// shows it, for generators of clients.
//
// It starts no server and opens no database: the document follows from the
// declarations of package api alone. scripts/generate runs it.
package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"

	"fleetd/web/api"
)

func main() {
	w := httptest.NewRecorder()
	api.New(api.Options{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	if w.Code != http.StatusOK {
		fmt.Fprintln(os.Stderr, "gen: the document cannot be made:", w.Body)
		os.Exit(1)
	}
	_, _ = w.Body.WriteTo(os.Stdout)
}
