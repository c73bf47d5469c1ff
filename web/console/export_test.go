package console

import (
	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/console/pages"
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
	s, err := New(Options{PublicURL: "http://localhost"})
	if err != nil {
		panic(err)
	}
	for _, r := range s.table() {
		all = append(all, Route{r.Method, r.Pattern, r.Role, r.Reach, r.Confirm})
	}
	return all
}

var LocalPath = pages.LocalPath
