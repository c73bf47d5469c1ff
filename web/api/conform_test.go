package api

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"
)

// conforms compares a response with the OpenAPI document: its status must be declared for the
// operation, and its body must fit the schema of that status.
func (w *world) conforms(t testing.TB, method, path string, resp *http.Response, body []byte) {
	t.Helper()
	path, _, _ = strings.Cut(path, "?")
	rctx := chi.NewRouteContext()
	doc := w.api.huma.OpenAPI()
	if !w.api.router.Match(rctx, method, path) || doc.Paths[rctx.RoutePattern()] == nil {
		return // not an operation
	}
	op := operationsOf(doc.Paths[rctx.RoutePattern()])[method]
	declared := op.Responses[strconv.Itoa(resp.StatusCode)]
	if declared == nil {
		t.Errorf("%s %s answered %d, which the document does not declare", method, path, resp.StatusCode)
		return
	}
	mediaType := resp.Header.Get("Content-Type")
	content := declared.Content[mediaType]
	if len(declared.Content) > 0 && content == nil {
		t.Errorf("%s %s answered %d with %q, which the document does not declare", method, path, resp.StatusCode, mediaType)
		return
	}
	if content == nil || !strings.HasSuffix(mediaType, "/json") && !strings.HasSuffix(mediaType, "+json") {
		return
	}
	fits(t, doc.Components.Schemas, content.Schema, body)
}

func fits(t testing.TB, schemas huma.Registry, s *huma.Schema, body []byte) {
	t.Helper()
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		t.Errorf("%s: %v", body, err)
		return
	}
	res := &huma.ValidateResult{}
	huma.Validate(schemas, s, huma.NewPathBuffer(nil, 0), huma.ModeReadFromServer, v, res)
	for _, err := range res.Errors {
		t.Errorf("the answer does not fit its schema: %v in %.2000s", err, body)
	}
}

func operationsOf(p *huma.PathItem) map[string]*huma.Operation {
	all := map[string]*huma.Operation{http.MethodGet: p.Get, http.MethodPost: p.Post, http.MethodPut: p.Put,
		http.MethodPatch: p.Patch, http.MethodDelete: p.Delete}
	for method, op := range all {
		if op == nil {
			delete(all, method)
		}
	}
	return all
}
