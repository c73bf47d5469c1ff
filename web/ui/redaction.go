package ui

import (
	"net/url"

	"fleetd/fleet/redaction"
)

// PathRedaction is the list of redaction rules, for admins: GET; POST adds one. POST to
// [PathRedactionDigest] shows the digest of a value.
const (
	PathRedaction       = "/settings/redaction"
	PathRedactionDigest = PathRedaction + "/digest"
)

// RedactionPath is a redaction rule: POST changes it, and with the act "delete" removes it.
func RedactionPath(id string, act ...string) string {
	path := PathRedaction + "/" + url.PathEscape(id)
	for _, a := range act {
		path += "/" + a
	}
	return path
}

// A RedactionForm contains the fields of a rule as they were typed.
type RedactionForm struct {
	ID               string // "" for a new rule
	Tool, Path, Note string
	Revision         int64
}

// A RedactionPage lists the rules, adds and changes them, and shows the digest of a value.
type RedactionPage struct {
	Rules         []redaction.Rule
	Form          RedactionForm
	Problem       string // why the last change failed, in the page's language
	Digest        string // of the value that was entered
	DigestProblem string
}

// form returns the form of a rule: as it was typed, if its change failed.
func (v RedactionPage) form(r redaction.Rule) RedactionForm {
	if id := r.ID.String(); v.Form.ID == id {
		return v.Form
	}
	return RedactionForm{ID: r.ID.String(), Tool: r.Tool, Path: r.Path, Note: r.Note, Revision: r.Revision}
}

// added returns the form of a new rule.
func (v RedactionPage) added() RedactionForm {
	if v.Form.ID == "" {
		return v.Form
	}
	return RedactionForm{}
}
