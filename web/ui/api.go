package ui

import (
	"context"
	"net/url"
	"strings"

	"fleetd/web/forms"
)

// PathAPI lists the operations of REST: GET q filters them, op shows one of them.
const PathAPI = "/api"

// An APIPage shows the OpenAPI document of this server.
type APIPage struct {
	Query  string
	Groups []APIGroup
	Whole  bool // each operation with its parameters, body, errors and an example
	One    bool // the page is about one operation
}

// An APIGroup has the operations of one tag.
type APIGroup struct {
	Tag        string
	Operations []APIOperation
}

// An APIOperation is one operation of REST. Its texts are those of the document, in English.
type APIOperation struct {
	ID, Method, Path string
	Summary, About   string
	Role             string
	Parameters       []APIValue
	Body             []APIValue
	Errors           []string // statuses
	Example          forms.Equivalent
}

// An APIValue is a parameter, or a member of a body.
type APIValue struct {
	Name     string
	Depth    int    // of a member within members
	In       string // of a parameter: "path", "query" or "header"
	Type     string
	About    string
	Required bool
}

// Matches reports whether the operation has all words of the text in its method, path, id or texts.
func (o APIOperation) Matches(text string) bool {
	all := strings.ToLower(o.Method + " " + o.Path + " " + o.ID + " " + o.Summary + " " + o.About)
	for _, word := range strings.Fields(strings.ToLower(text)) {
		if !strings.Contains(all, word) {
			return false
		}
	}
	return true
}

func (o APIOperation) path() string { return PathAPI + "?" + url.Values{"op": {o.ID}}.Encode() }

func (v APIPage) empty() bool { return len(v.Groups) == 0 }

func (v APIPage) head(ctx context.Context) head {
	if !v.One {
		return head{Title: t(ctx, "api.title")}
	}
	return head{Title: v.Groups[0].Operations[0].ID, Crumbs: []link{{t(ctx, "api.title"), PathAPI}}}
}
