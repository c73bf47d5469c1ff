package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

func TestIdempotency(t *testing.T) {
	w := newWorld(t)
	first := w.post(t, callPath, volume50, "Idempotency-Key", "k1")
	again := w.post(t, callPath, volume50, "Idempotency-Key", "k1")
	if first.status != 200 || string(again.body) != string(first.body) ||
		again.header.Get("Idempotent-Replayed") != "true" ||
		first.header.Get("Idempotent-Replayed") != "" || again.header.Get("Content-Type") != "application/json" {
		t.Errorf("first %d %s, then %d %v %s", first.status, first.body, again.status, again.header, again.body)
	}
	for _, r := range []reply{
		w.post(t, callPath, `{"tool":"self.reboot"}`, "Idempotency-Key", "k1"),
		w.post(t, "/devices/a085e3112244/calls", volume50, "Idempotency-Key", "k1"),
		w.post(t, callPath, volume50, "Idempotency-Key", "k1", "Prefer", "respond-async"),
	} {
		if p := r.problem(t); p.Status != 422 || p.Code != "idempotency_key_reused" {
			t.Errorf("another request under the key is answered %s", r.body)
		}
	}
	w.as(t, fleet.RoleOperator, http.MethodPost, callPath, volume50, "Idempotency-Key", "k1") // another token's k1
	if got := decode[list[callView]](t, w.get(t, "/calls"), 200); len(got.Items) != 2 {
		t.Errorf("%d calls were made, want 2", len(got.Items))
	}
	for _, key := range []string{"two words", strings.Repeat("k", 256), "schlüssel"} {
		if p := w.post(t, callPath, volume50, "Idempotency-Key", key).problem(t); p.Status != 422 ||
			p.Code != "invalid_idempotency_key" {
			t.Errorf("key %.20q is answered %+v", key, p)
		}
	}
}

func TestIdempotencyKeepsLocation(t *testing.T) {
	w := newWorld(t)
	first := w.post(t, callPath, volume50, "Idempotency-Key", "k", "Prefer", "respond-async")
	again := w.post(t, callPath, volume50, "Idempotency-Key", "k", "Prefer", "respond-async")
	if again.status != 202 || again.header.Get("Location") == "" || again.header.Get("Location") != first.header.Get(
		"Location") {
		t.Errorf("first %v, then %d %v", first.header, again.status, again.header)
	}
	var c callView
	_ = json.Unmarshal(first.body, &c)
	w.api.Calls.Shutdown() // the call's outcome is stored before the test ends
}

// A refusal has no effect, and frees the key.
func TestIdempotencyAfterRefusal(t *testing.T) {
	w := newWorld(t)
	if r := w.post(t, "/tokens", `{"name":""}`, "Idempotency-Key", "k"); r.status != 422 {
		t.Fatalf("answered %d", r.status)
	}
	if r := w.post(t, "/tokens", `{"name":"ci"}`, "Idempotency-Key", "k"); r.status != 201 {
		t.Errorf("after a refusal the key is answered %d %s", r.status, r.body)
	}
}

func TestIdempotencyWhileAtWork(t *testing.T) {
	w := newWorld(t)
	asked, answer := make(chan struct{}), make(chan struct{})
	w.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
		close(asked)
		<-answer
		return fleettest.Text("true"), nil
	})
	done := make(chan reply)
	go func() { done <- w.post(t, callPath, volume50, "Idempotency-Key", "k") }()
	<-asked
	r := w.post(t, callPath, volume50, "Idempotency-Key", "k")
	if p := r.problem(t); p.Status != 409 || p.Code != "request_in_progress" || r.header.Get("Retry-After") == "" {
		t.Errorf("answered %s", r.body)
	}
	close(answer)
	first := <-done
	if again := w.post(t, callPath, volume50, "Idempotency-Key", "k"); string(again.body) != string(first.body) ||
		first.status != 200 {
		t.Errorf("first %d %s, then %s", first.status, first.body, again.body)
	}
}

// The stored form of a response with a secret does not contain the secret.
func TestKeptAnswersAreSealed(t *testing.T) {
	w := newWorld(t)
	kept := &keepingStore{IdempotencyStore: w.store}
	w.api.Idempotency = kept
	r := w.post(t, "/tokens", `{"name":"ci"}`, "Idempotency-Key", "k")
	secret := decode[newTokenView](t, r, 201).Secret
	if len(kept.body) == 0 || strings.Contains(string(kept.body), "flt_") || strings.Contains(string(kept.body), `"ci"`) {
		t.Errorf("kept %q", kept.body)
	}
	again := w.post(t, "/tokens", `{"name":"ci"}`, "Idempotency-Key", "k")
	if decode[newTokenView](t, again, 201).Secret != secret || !strings.HasPrefix(secret, "flt_") {
		t.Errorf("the repetition is answered %s", again.body)
	}
}

type keepingStore struct {
	fleet.IdempotencyStore
	body []byte
}

func (k *keepingStore) SaveIdempotent(ctx context.Context, actor, key string, r fleet.SavedResponse) error {
	k.body = r.Body
	return k.IdempotencyStore.SaveIdempotent(ctx, actor, key, r)
}
