package pages

import (
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
)

// A Route is one address of the console: its permissions, its subject and its handler. Routes
// without a role are open to all.
type Route struct {
	Method, Pattern string
	Role            fleet.Role
	Reach           access.Reach
	Page            Handler          // returns a page, or
	Raw             http.HandlerFunc // writes the response itself
	Body            int64            // bytes; 0 means [FormBytes]
	Wait            time.Duration    // additional time for the response
	Heavy           heavy.Work       // its cost
	Confirm         bool             // requires the password again
}
