package console

import (
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
)

// A route is one address of the console: its permissions, its subject and its handler. Routes
// without a role are open to all.
type route struct {
	method, pattern string
	role            fleet.Role
	reach           access.Reach
	page            handler          // returns a page, or
	raw             http.HandlerFunc // writes the response itself
	body            int64            // bytes; 0 means formBytes
	wait            time.Duration    // additional time for the response
	heavy           heavy.Work       // its cost
	confirm         bool             // requires the password again, see [Server.confirming]
}
