package console

import (
	"fleetd/fleet"
	"fleetd/web/access"
)

// A Route is a row of the table of routes, for the test of permissions.
type Route struct {
	Method, Pattern string
	Role            fleet.Role
	Reach           access.Reach
	Confirm         bool
}

// Routes lists the table of routes.
func Routes() (all []Route) {
	for _, r := range new(Server).table() {
		all = append(all, Route{r.method, r.pattern, r.role, r.reach, r.confirm})
	}
	return all
}

var LocalPath = localPath
