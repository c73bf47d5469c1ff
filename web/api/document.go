package api

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
)

// document is the part of the OpenAPI document that no operation adds to.
func document(version string) huma.Config {
	if version == "" {
		version = "dev"
	}
	schemas := huma.NewMapRegistry("#/components/schemas/", schemaName)
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{Title: "fleetd", Version: version,
				Description: "Devices that are MCP servers: who they are, what they offer, and calls to them. " +
					"Every failure is a problem (RFC 9457) with a stable code."},
			Servers: []*huma.Server{{URL: prefix}},
			Components: &huma.Components{Schemas: schemas, SecuritySchemes: map[string]*huma.SecurityScheme{
				"token": {Type: "http", Scheme: "bearer",
					Description: "An API token, flt_..., of the role that the operation names or a higher one: viewer, operator, admin."},
			}},
		},
		Formats:       huma.DefaultFormats,
		DefaultFormat: "application/json",
	}
}

// schemaName names a type in the document: deviceView is Device, and
// list[deviceView] is DeviceList.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	if item, ok := strings.CutPrefix(name, "List"); ok && item != "" {
		name = item + "List"
	}
	return strings.ReplaceAll(name, "View", "")
}

// serveDocument answers with the document to everyone. It is written when it is
// first asked for: as YAML that takes longer than all else in a start.
func (a *api) serveDocument() {
	doc := a.huma.OpenAPI()
	serve := func(mediaType string, write func() ([]byte, error)) http.HandlerFunc {
		text := sync.OnceValues(write)
		return func(w http.ResponseWriter, _ *http.Request) {
			data, err := text()
			if err != nil {
				a.Log.Error("the API's document cannot be written", "err", err)
				internalProblem("").write(w)
				return
			}
			w.Header().Set("Content-Type", mediaType)
			w.Header().Set("Cache-Control", "no-cache")
			_, _ = w.Write(data) // the client may be gone
		}
	}
	a.router.Get("/openapi.json", serve("application/json", func() ([]byte, error) { return json.Marshal(doc) }))
	a.router.Get("/openapi.yaml", serve("application/yaml", doc.YAML))
}

// orNull says in the document that a property which is an object may be null.
func orNull(s *huma.Schema, names ...string) *huma.Schema {
	for _, name := range names {
		s.Properties[name] = &huma.Schema{AnyOf: []*huma.Schema{s.Properties[name], {Type: "null"}}}
	}
	return s
}

// also documents an answer of another status and type than the usual one.
func also[T any](a *api, h *huma.Operation, status, description string) {
	if h.Responses == nil {
		h.Responses = map[string]*huma.Response{}
	}
	h.Responses[status] = &huma.Response{Description: description, Content: map[string]*huma.MediaType{
		"application/json": {Schema: a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), true, "")}}}
}
