package ui

import (
	"context"
	"net/url"
	"time"
)

// PathAccount is the viewer's own page: GET. PathOperators accepts POST name, role, scope, rest,
// password from admins, and by the id of an operator: GET, POST "disable", "enable", "password"
// (password), "access" (role, scope, rest). Below both of them, POST "sessions/end" ends all
// sessions but the present one, and "sessions/ID/end" ends one.
const (
	PathAccount   = "/settings/account"
	PathOperators = "/settings/operators"
)

// An OperatorPage shows the access of one operator, and their sessions.
type OperatorPage struct {
	Row      OperatorRow
	Sessions []SessionRow // most recently used first
	Fleet    bool         // the viewer sees the whole fleet
	Problem  string       // why the last change failed, in the page's language
}

// A SessionRow is a browser in which the operator is signed in.
type SessionRow struct {
	ID      string
	Browser string // "Firefox · Linux"; "" if unknown
	Since   time.Time
	Seen    time.Time
	Ends    time.Time // if no further request follows
	Address string
	Here    bool // the viewer's present session
}

func (v OperatorPage) title(ctx context.Context) string {
	if v.Row.Self {
		return t(ctx, "account.title")
	}
	return v.Row.Name
}

// Path returns the address of the page.
func (v OperatorPage) Path() string { return v.Row.path() }

func (o OperatorRow) path() string {
	if o.Self {
		return PathAccount
	}
	return PathOperators + "/" + url.PathEscape(o.ID)
}

// others returns the number of sessions besides the present one.
func (v OperatorPage) others() (n int) {
	for _, s := range v.Sessions {
		if !s.Here {
			n++
		}
	}
	return n
}
