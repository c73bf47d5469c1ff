// Command gen prints the OpenAPI document of the REST interface, in the same form as a server
// serves it, for generators of clients.
//
// It starts no server and opens no database: the document depends only on the declarations in
// package api. scripts/generate runs it.
package main

import (
	"fmt"
	"os"

	"fleetd/web/api"
)

func main() {
	document, err := api.Document("")
	if err != nil {
		fmt.Fprintln(os.Stderr, "gen: the document cannot be made:", err)
		os.Exit(1)
	}
	_, _ = os.Stdout.Write(document)
}
