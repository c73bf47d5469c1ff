package migrations_test

import (
	"testing"

	"fleetd/migrations"
)

// Audit entries about webhooks keep only the host of an address.
func TestAuditLosesWebhookAddresses(t *testing.T) {
	db := upTo(t, 37)
	for id, url := range map[string]string{"a": "https://hooks.example.org/services/T0/SEKRET",
		"b": "http://user:SEKRET@chat.example.org:8443/?token=SEKRET", "c": "https://plain.example.org"} {
		exec(t, db, `INSERT INTO audit_entries (id, created_at, actor_kind, actor_id, actor_name, actor_role, action, subject,
				detail)
			VALUES (gen_random_uuid(), now(), 'operator', '1', 'ana', 'admin', 'webhook.create', $1,
				jsonb_build_object('name', 'chat', 'url', $2::text))`, id, url)
	}
	exec(t, db, `INSERT INTO webhooks (id, name, url, events, secret, enabled, created_by, created_at)
		VALUES (gen_random_uuid(), 'chat', 'https://hooks.example.org/x', '{alert.opened}', '', true, 'ana', now())`)
	if err := migrations.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{"a": "hooks.example.org", "b": "chat.example.org:8443", "c": "plain.example.org"} {
		got := text(t, db, `SELECT detail::text FROM audit_entries WHERE subject = $1`, id)
		if got != `{"host": "`+want+`", "name": "chat"}` {
			t.Errorf("the audit entry is now %s", got)
		}
	}
	if got := text(t, db, `SELECT url FROM webhooks`); got != "https://hooks.example.org/x" {
		t.Errorf("the address that waits to be sealed is %s", got)
	}
}
