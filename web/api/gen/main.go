// Command gen prints the OpenAPI document of the REST interface, in the same form as a server
// serves it, for generators of clients.
//
// It starts no server and opens no database: the document depends only on the declarations in
// package api. scripts/generate runs it.
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
