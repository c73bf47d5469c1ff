package api

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/endpoint"
)

// noConnections has no connections of endpoints.
type noConnections struct{}

func (noConnections) ApplyEndpoints([]endpoint.Endpoint)             {}
func (noConnections) EndpointStatus(name string) (s endpoint.Status) { return s }

func TestEndpoints(t *testing.T) {
	w := newWorld(t)
	made := decode[newEndpointView](t, w.post(t, "/endpoints", `{"name":"pc","tools":["get_*"]}`), 201)
	if !strings.HasPrefix(made.Token, "fep_") || made.Path != "/mcp_endpoint/mcp/?token="+made.Token ||
		made.SecondConnection != endpoint.Replace || made.Audience != "model" || made.ConsumerToken != nil {
		t.Errorf("created: %+v", made)
	}
	got := w.as(t, fleet.RoleAdmin, http.MethodGet, "/endpoints/pc", "")
	if bytes.Contains(got.body, []byte(made.Token)) {
		t.Error("the token is shown again")
	}
	view := decode[EndpointView](t, got, 200)
	if view.ProviderToken == nil || view.ProviderToken.Hint != made.Token[len(made.Token)-4:] {
		t.Errorf("endpoint: %+v", view)
	}
	for body, code := range map[string]string{
		`{"name":"pc"}`:                "endpoint_exists",
		`{"name":"PC"}`:                "endpoint_name",
		`{"name":"a","tools":["a*b"]}`: "endpoint_field",
		`{"name":"a","audience":"user","offer_to_voice":true}`: "endpoint_field",
	} {
		if r := w.post(t, "/endpoints", body); !strings.Contains(string(r.body), code) {
			t.Errorf("%s: %d %s", body, r.status, r.body)
		}
	}
	consumer := decode[newEndpointView](t, w.post(t, "/endpoints/pc/token", `{"kind":"consumer"}`), 201)
	if e, err := w.endpoints.Authenticate(endpoint.Consumer, consumer.Token); err != nil || e.Name != "pc" {
		t.Errorf("consumer: %+v %v", e, err)
	}
	if _, err := w.endpoints.Authenticate(endpoint.Provider, consumer.Token); err == nil {
		t.Error("the consumer's token is a provider's")
	}
	again := decode[newEndpointView](t, w.post(t, "/endpoints/pc/token", `{}`), 201)
	if _, err := w.endpoints.Authenticate(endpoint.Provider, made.Token); err == nil {
		t.Error("the first token is still valid")
	}
	if _, err := w.endpoints.Authenticate(endpoint.Provider, again.Token); err != nil {
		t.Errorf("the second token: %v", err)
	}
}
