package console_test

import (
	"encoding/csv"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// A change is listed with its author, found by each filter, and exported without formulas that a
// spreadsheet would compute.
func TestAudit(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	ctx := t.Context()
	name := "=HYPERLINK(1)"
	if _, err := c.devices.Update(ctx, anna, "a085e3112233", fleet.DevicePatch{Name: &name}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.devices.Hold(ctx, anna, "a085e3112233", `<b>"wet"</b>`, nil); err != nil {
		t.Fatal(err)
	}
	b := c.as(fleet.RoleViewer)
	b.get("/audit?subject=a085e3112233").wantStatus(200).wantText("#list", "Put on hold").wantText("#list", `<b>"wet"</b>`)
	for query, want := range map[string]bool{
		"action=device.hold": true, "action=device.retire": false, "actor=anna": true, "actor=bert": false,
		"since=" + time.Now().Add(-time.Hour).UTC().Format(time.RFC3339): true,
		"until=" + time.Now().Add(-time.Hour).UTC().Format(time.RFC3339): false,
	} {
		p := b.get("/audit?subject=a085e3112233&" + query).wantStatus(200)
		if got := strings.Contains(p.text("#list"), "Put on hold"); got != want {
			t.Errorf("%s lists the hold: %v, want %v", query, got, want)
		}
	}
	b.get("/audit?since=yesterday").wantStatus(200).wantText("#list", "yesterday")
	b.get("/audit?cursor=x").wantRedirect("/audit")

	p := b.get("/audit/export?subject=a085e3112233").wantStatus(200)
	rows, err := csv.NewReader(strings.NewReader(p.body)).ReadAll()
	if err != nil || len(rows) < 3 || p.header.Get("Content-Type") != "text/csv; charset=utf-8" {
		t.Fatalf("%d rows, %v, %v", len(rows), err, p.header)
	}
	if b.get("/audit/export?since=yesterday").status == http.StatusOK {
		t.Error("a time that cannot be read is left out of the filter")
	}
}

// The record shows the names of things with a UUID, also after they are gone, and announces new
// entries.
func TestAuditNamesWhatWasChanged(t *testing.T) {
	c := newConsole(t)
	c.enrol(unit)
	admin := c.as(fleet.RoleAdmin)
	live := admin.stream("/events?view=audit&action=device.hold")
	other := admin.stream("/events?view=audit&action=device.retire")
	if _, err := c.devices.Update(t.Context(), anna, unit, fleet.DevicePatch{Name: new("kitchen")}); err != nil {
		t.Fatal(err)
	}
	admin.post("/devices/"+string(unit)+"/hold", url.Values{"reason": {"wet"}, "hours": {"0"}}).wantStatus(303)
	live.want("new", "1")
	if len(other.events) > 0 {
		t.Errorf("an entry outside of the filter is announced: %v", <-other.events)
	}
	admin.get("/audit?action=device.hold").wantText("#list", "kitchen")

	by := fleet.Principal{Kind: fleet.KindSystem, Name: "test", Role: fleet.RoleAdmin}
	token, _, err := c.operators.NewToken(t.Context(), by, operator.TokenRequest{Name: "builder", Role: fleet.RoleViewer})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.operators.Revoke(t.Context(), by, token.ID); err != nil {
		t.Fatal(err)
	}
	admin.get("/audit?action=token.revoke").wantText("#list", "builder")
	c.exec("DELETE FROM audit_entries WHERE action = 'token.create'")
	admin.get("/audit?action=token.revoke").wantText("#list", "builder")
	c.exec("INSERT INTO audit_entries SELECT gen_random_uuid(), created_at, actor_kind, actor_id, actor_name, actor_role,"+
		" 'webhook.'||v, $1, d::jsonb FROM audit_entries, (VALUES ('create', '{\"name\": \"pager\"}'), ('delete', '{}')) w (v, d)"+
		" WHERE action = 'token.revoke'", uuid.NewString())
	admin.get("/audit?action=webhook.delete").wantText("#list", "pager")
}
