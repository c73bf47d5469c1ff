package api

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
)

// document returns the part of the OpenAPI document that is independent of the operations.
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

// schemaName returns the name of a type in the document: deviceView is Device, and list[deviceView]
// is DeviceList.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	if item, ok := strings.CutPrefix(name, "List"); ok && item != "" {
		name = item + "List"
	}
	return strings.ReplaceAll(name, "View", "")
}

// serveDocument serves the document to everyone. It is generated on the first request: as YAML this
// takes longer than everything else at the start.
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
			_, _ = w.Write(data) // the client may have gone
		}
	}
	a.router.Get("/openapi.json", serve("application/json", func() ([]byte, error) { return json.Marshal(doc) }))
	a.router.Get("/openapi.yaml", serve("application/yaml", doc.YAML))
}

// Document returns the OpenAPI document as JSON, without a server: it depends only on the
// declarations of the operations.
func Document(version string) ([]byte, error) {
	return json.Marshal(newAPI(Options{Version: version}).huma.OpenAPI())
}

// orNull marks object properties as nullable in the document.
func orNull(s *huma.Schema, names ...string) *huma.Schema {
	for _, name := range names {
		s.Properties[name] = &huma.Schema{AnyOf: []*huma.Schema{s.Properties[name], {Type: "null"}}}
	}
	return s
}

// also documents a response with a status and type other than the usual ones.
func also[T any](a *api, h *huma.Operation, status, description string) {
	if h.Responses == nil {
		h.Responses = map[string]*huma.Response{}
	}
	h.Responses[status] = &huma.Response{Description: description, Content: map[string]*huma.MediaType{
		"application/json": {Schema: a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), true, "")}}}
}
