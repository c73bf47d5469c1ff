package api

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
)

// A call that waits for its device reaches each of its ends: sent once when the device is back,
// expired, or canceled by permitted principals and no others.
func TestWaitingCallOverREST(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	var sent []string
	w.link.Sending = func(i fleet.Invocation) { mu.Lock(); defer mu.Unlock(); sent = append(sent, string(i.Arguments)) }
	token := func(r operator.TokenRequest) (uuid.UUID, string) {
		if r.Name = t.Name() + r.Name; r.Role == "" {
			r.Role = fleet.RoleOperator
		}
		made, secret, err := w.operators.NewToken(t.Context(), root, r)
		if err != nil {
			t.Fatal(err)
		}
		return made.ID, "Bearer " + secret
	}
	at := func(id uuid.UUID) string { return "/calls/" + id.String() }
	makes := func(volume int, more string, header ...string) callView {
		body := fmt.Sprintf(`{"tool":%q,"arguments":{"volume":%d},"offline":"wait"%s}`, fleet.ToolSetVolume, volume, more)
		return decode[callView](t, w.post(t, "/devices/"+string(other)+"/calls", body, header...), 200)
	}
	wait := func(volume int, header ...string) callView {
		c := makes(volume, "", header...)
		if c.State != fleet.CallPendingDevice || c.Waits == nil || c.WaitUntil == nil || c.SentAt != nil {
			t.Fatalf("the call is %+v", c)
		}
		return c
	}
	state := func(id uuid.UUID) callView { return decode[callView](t, w.get(t, at(id)), 200) }

	_, model := token(operator.TokenRequest{Name: "model", Kind: fleet.KindModel, Tools: []string{"*"}})
	makerID, maker := token(operator.TokenRequest{Name: "maker"})
	stays, own, others := wait(11), wait(12, "Authorization", model), wait(13)
	orphan := wait(14, "Authorization", maker)
	revokedID, revoked := token(operator.TokenRequest{Name: "revoked", Role: fleet.RoleAdmin})
	if err := w.operators.Revoke(t.Context(), root, revokedID); err != nil {
		t.Fatal(err)
	}
	bearer := func(r operator.TokenRequest) string { _, secret := token(r); return secret }
	for _, tt := range []struct {
		authorization string
		status        int
		code          string
	}{
		{bearer(operator.TokenRequest{Name: "reads", Role: fleet.RoleViewer}), 403, "forbidden"},
		{bearer(operator.TokenRequest{Name: "elsewhere", Scope: "id:" + string(unit)}), 404, "unknown_call"},
		{bearer(operator.TokenRequest{Name: "reads elsewhere", Scope: "id:" + string(unit), Role: fleet.RoleViewer}), 403,
			"forbidden"},
		{bearer(operator.TokenRequest{Name: "other tools", Tools: []string{"self.get_*"}}), 403, "tool_not_allowed"},
		{bearer(operator.TokenRequest{Name: "no tools", Role: fleet.RoleAdmin, Tools: []string{"self.none"}}), 403,
			"tool_not_allowed"},
		{model, 403, "person_needed"},
		{bearer(operator.TokenRequest{Name: "tools", Kind: fleet.KindModel, Tools: []string{"self.get_*"}}), 404, "unknown_call"},
		{revoked, 401, "invalid_token"},
		{"Bearer x", 401, "invalid_token"},
	} {
		p := w.post(t, at(stays.ID)+"/cancel", "", "Authorization", tt.authorization).problem(t)
		if p.Status != tt.status || p.Code != tt.code {
			t.Errorf("answered %d %s, want %d %s", p.Status, p.Code, tt.status, tt.code)
		}
		if got := state(stays.ID); got.State != fleet.CallPendingDevice {
			t.Fatalf("after %s the call is %s", tt.code, got.State)
		}
	}
	for id, authorization := range map[uuid.UUID]string{own.ID: model, others.ID: maker} {
		c := decode[callView](t, w.post(t, at(id)+"/cancel", "", "Authorization", authorization), 200)
		if c.State != fleet.CallCanceled || c.Error == nil || c.Error.Code != fleet.CodeWithdrawn || c.FinishedAt == nil {
			t.Errorf("canceled: %+v", c)
		}
		if p := w.post(t, at(id)+"/cancel", "").problem(t); p.Status != 409 || p.Code != "call_not_waiting" {
			t.Errorf("a second time: %+v", p)
		}
	}
	brief := makes(15, `,"offline_wait_ms":50`)
	fleettest.Eventually(t, "the call was canceled", func() bool { return state(brief.ID).State == fleet.CallCanceled })
	if c := state(brief.ID); c.Error == nil || c.Error.Code != fleet.CodeWaitExpired {
		t.Errorf("its time over: %+v", c.Error)
	}
	remove := w.askFirst(t, fleet.ToolSetVolume)
	asks := makes(16, "")
	if p := w.post(t, at(asks.ID)+"/cancel", "").problem(t); p.Code != "call_not_waiting" ||
		fmt.Sprint(p.Params["approval"]) != fmt.Sprint(*asks.ApprovalID) {
		t.Errorf("a call that waits for an approval: %+v", p)
	}
	remove()

	if err := w.operators.Revoke(t.Context(), root, makerID); err != nil {
		t.Fatal(err)
	}
	w.connect(other)
	fleettest.Eventually(t, "the last waiting call ended", func() bool {
		return state(orphan.ID).State.Final()
	}) // the last waiting call
	for id, want := range map[uuid.UUID]fleet.CallState{stays.ID: fleet.CallSucceeded, orphan.ID: fleet.CallCanceled,
		own.ID: fleet.CallCanceled, others.ID: fleet.CallCanceled} {
		if got := state(id); got.State != want {
			t.Errorf("the call with %s is %s, want %s", got.Arguments, got.State, want)
		}
	}
	if c := state(orphan.ID); c.Error == nil || c.Error.Code != fleet.CodeActorGone {
		t.Errorf("the call of a token that was revoked ends with %+v", c.Error)
	}
	if p := w.as(t, fleet.RoleOperator, http.MethodPost, at(stays.ID)+"/cancel", "").problem(t); p.Code != "call_not_waiting" {
		t.Errorf("after it was sent: %+v", p)
	}
	after := makes(18, "") // the device is connected
	fleettest.Eventually(t, "the call succeeded", func() bool { return state(after.ID).State == fleet.CallSucceeded })
	mu.Lock()
	defer mu.Unlock()
	if want := []string{`{"volume":11}`, `{"volume":18}`}; !slices.Equal(sent, want) {
		t.Errorf("sent %v, want %v", sent, want)
	}
}
