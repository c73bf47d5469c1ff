package ui

import (
	"context"
	"net/url"
	"time"
)

// PathAccount is the viewer's own page: GET. PathOperators takes POST name, role,
// scope, rest, password from admins, and by the id of an operator: GET, POST
// "disable", "enable", "password" (password), "access" (role, scope, rest). Below
// both of them, POST "sessions/end" ends all sessions but the present one, and
// "sessions/ID/end" one.
const (
	PathAccount   = "/settings/account"
	PathOperators = "/settings/operators"
)

// An OperatorPage shows what one operator may do, and where they are signed in.
type OperatorPage struct {
	Row      OperatorRow
	Sessions []SessionRow // the latest used first
	Fleet    bool         // the viewer sees the whole fleet
	Problem  string       // why the last change was not made, in the page's language
}

// A SessionRow is a browser in which the operator is signed in.
type SessionRow struct {
	ID      string
	Browser string // "Firefox · Linux"; "" if it is not known
	Since   time.Time
	Seen    time.Time
	Ends    time.Time // without a further request
	Address string
	Here    bool // the viewer's present one
}

func (v OperatorPage) title(ctx context.Context) string {
	if v.Row.Self {
		return t(ctx, "account.title")
	}
	return v.Row.Name
}

// Path is the address of the page.
func (v OperatorPage) Path() string { return v.Row.path() }

func (o OperatorRow) path() string {
	if o.Self {
		return PathAccount
	}
	return PathOperators + "/" + url.PathEscape(o.ID)
}

// others counts the sessions that are not the present one.
func (v OperatorPage) others() (n int) {
	for _, s := range v.Sessions {
		if !s.Here {
			n++
		}
	}
	return n
}
