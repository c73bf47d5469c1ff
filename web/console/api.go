package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// maxWholeOperations is the number of operations that a page shows with all their parts.
const maxWholeOperations = 12

func (s *Server) apiRoutes() []pages.Route {
	return []pages.Route{{Method: http.MethodGet, Pattern: ui.PathAPI, Role: fleet.RoleViewer, Reach: access.Own,
		Page: s.showAPI}}
}

// showAPI shows the operations of REST that match the filter. The document is public, so it is the
// same for everyone.
func (s *Server) showAPI(r *http.Request) (pages.Answer, error) {
	all, err := s.operations()
	if err != nil {
		return pages.Answer{}, err
	}
	query, op := strings.TrimSpace(r.URL.Query().Get("q")), r.URL.Query().Get("op")
	page := ui.APIPage{Query: fleet.CleanText(query, 120), One: op != ""}
	shown := 0
	for _, g := range all {
		g.Operations = slices.DeleteFunc(slices.Clone(g.Operations), func(o ui.APIOperation) bool {
			return op != "" && o.ID != op || op == "" && !o.Matches(query)
		})
		if len(g.Operations) > 0 {
			page.Groups = append(page.Groups, g)
			shown += len(g.Operations)
		}
	}
	if page.One && shown == 0 {
		return pages.Answer{}, pages.ErrNoPage
	}
	page.Whole = shown <= maxWholeOperations
	return pages.Show(page.Page())
}

// openAPI is what the page shows of an OpenAPI document.
type openAPI struct {
	Paths      map[string]map[string]openOperation
	Components struct{ Schemas map[string]openSchema }
}

type openOperation struct {
	OperationID, Summary, Description string
	Tags                              []string
	Parameters                        []openParameter
	RequestBody                       struct {
		Content map[string]struct{ Schema openSchema }
	}
	Responses map[string]json.RawMessage
	Security  []map[string][]string
}

type openParameter struct {
	Name, In, Description string
	Required              bool
	Schema                openSchema
}

type openSchema struct {
	Ref         string `json:"$ref"`
	Type        any    // a name, or a list of names
	Format      string
	Description string
	Properties  map[string]openSchema
	Required    []string
	Items       *openSchema
	Enum        []any
	Examples    []any
	AnyOf       []openSchema
	Minimum     *float64
	Maximum     *float64
}

// readOperations returns the operations of a document by tag, path and method.
func readOperations(document []byte) (groups []ui.APIGroup, err error) {
	var d openAPI
	if err := json.Unmarshal(document, &d); err != nil {
		return nil, fmt.Errorf("OpenAPI document: %w", err)
	}
	byTag := map[string][]ui.APIOperation{}
	for path, methods := range d.Paths {
		for method, o := range methods {
			if o.OperationID != "" && len(o.Tags) > 0 {
				byTag[o.Tags[0]] = append(byTag[o.Tags[0]], d.operation(strings.ToUpper(method), path, o))
			}
		}
	}
	order := []string{"GET", "POST", "PUT", "PATCH", "DELETE"}
	for tag, all := range byTag {
		slices.SortFunc(all, func(a, b ui.APIOperation) int {
			return cmp.Or(strings.Compare(a.Path, b.Path), slices.Index(order, a.Method)-slices.Index(order, b.Method))
		})
		groups = append(groups, ui.APIGroup{Tag: tag, Operations: all})
	}
	slices.SortFunc(groups, func(a, b ui.APIGroup) int { return strings.Compare(a.Tag, b.Tag) })
	return groups, nil
}

func (d openAPI) operation(method, path string, o openOperation) ui.APIOperation {
	op := ui.APIOperation{ID: o.OperationID, Method: method, Path: path, Summary: o.Summary, About: o.Description,
		Example: forms.Equivalent{Method: method, Path: strings.NewReplacer("{", "", "}", "").Replace(upperNames(path))}}
	var required []string // in the query
	for _, p := range o.Parameters {
		op.Parameters = append(op.Parameters, ui.APIValue{Name: p.Name, In: p.In, Type: d.kind(p.Schema),
			About: p.Description, Required: p.Required})
		if p.In == "query" && p.Required {
			required = append(required, p.Name+"="+strings.ToUpper(p.Name))
		}
	}
	if len(required) > 0 {
		op.Example.Path += "?" + strings.Join(required, "&")
	}
	if body, ok := o.RequestBody.Content["application/json"]; ok {
		schema := d.resolve(body.Schema)
		op.Body = d.members(schema, 0)
		op.Example.Body, _ = d.example(schema, 0).(map[string]any)
		if op.Example.Body == nil {
			op.Example.Body = map[string]any{}
		}
	}
	for status := range o.Responses {
		if status >= "400" {
			op.Errors = append(op.Errors, status)
		}
	}
	slices.Sort(op.Errors)
	return op
}

// upperNames writes the parameters of a path in capitals.
func upperNames(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if strings.Contains(p, "{") {
			parts[i] = strings.ToUpper(p)
		}
	}
	return strings.Join(parts, "/")
}

func (d openAPI) resolve(s openSchema) openSchema {
	if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
		about := s.Description
		s = d.resolve(d.Components.Schemas[name])
		s.Description = cmp.Or(about, s.Description)
	}
	return s
}

// maxDepth is the depth to which a body is shown.
const maxDepth = 2

func (d openAPI) members(s openSchema, depth int) (all []ui.APIValue) {
	names := make([]string, 0, len(s.Properties))
	for name := range s.Properties {
		names = append(names, name)
	}
	rank := func(name string) int { // required members first
		if slices.Contains(s.Required, name) {
			return 0
		}
		return 1
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(rank(a)-rank(b), strings.Compare(a, b)) })
	for _, name := range names {
		p := d.resolve(s.Properties[name])
		all = append(all, ui.APIValue{Name: name, Depth: depth, Type: d.kind(p), About: p.Description,
			Required: rank(name) == 0})
		if p.Items != nil {
			p = d.resolve(*p.Items)
		}
		if depth < maxDepth {
			all = append(all, d.members(p, depth+1)...)
		}
	}
	return all
}

// kind returns the type of a value in a few words.
func (d openAPI) kind(s openSchema) string {
	s = d.resolve(s)
	if len(s.AnyOf) > 0 {
		return d.kind(s.AnyOf[0])
	}
	var names []string
	switch v := s.Type.(type) {
	case string:
		names = []string{v}
	case []any:
		for _, name := range v {
			names = append(names, fmt.Sprint(name))
		}
	}
	kind := cmp.Or(strings.Join(names, " or "), "any")
	if s.Items != nil {
		kind = "array of " + d.kind(*s.Items)
	}
	if len(s.Enum) > 0 {
		var values []string
		for _, v := range s.Enum {
			values = append(values, fmt.Sprintf("%q", fmt.Sprint(v)))
		}
		return kind + ": " + strings.Join(values, ", ")
	}
	switch {
	case s.Format == "uuid", s.Format == "date-time":
		kind += ", " + s.Format
	case s.Minimum != nil && s.Maximum != nil:
		kind += fmt.Sprintf(", %.0f to %.0f", *s.Minimum, *s.Maximum)
	}
	return kind
}

// example returns a value with the required members.
func (d openAPI) example(s openSchema, depth int) any {
	s = d.resolve(s)
	switch {
	case len(s.Examples) > 0:
		return s.Examples[0]
	case len(s.Enum) > 0:
		return s.Enum[0]
	case s.Items != nil:
		return []any{d.example(*s.Items, depth+1)}
	}
	kind, _, _ := strings.Cut(d.kind(s), ",")
	switch kind {
	case "object":
		object := map[string]any{}
		for _, name := range s.Required {
			if depth <= maxDepth+1 {
				object[name] = d.example(s.Properties[name], depth+1)
			}
		}
		return object
	case "integer", "number":
		if s.Minimum != nil {
			return *s.Minimum
		}
		return 1
	case "boolean":
		return true
	}
	if s.Format != "" {
		return strings.ToUpper(s.Format)
	}
	return "TEXT"
}
