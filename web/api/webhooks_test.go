package api

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/webhook"
)

// stored returns each row of each table as text.
func (w *world) stored(t *testing.T) (rows []string) {
	t.Helper()
	names, _ := w.db.Query(t.Context(), `SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
		WHERE schemaname NOT IN ('pg_catalog', 'information_schema')`)
	tables, err := pgx.CollectRows(names, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		found, _ := w.db.Query(t.Context(), `SELECT t::text FROM `+table+` t`)
		texts, err := pgx.CollectRows(found, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			rows = append(rows, table+": "+text)
		}
	}
	return rows
}

// wantNowhere fails for a row that contains the secret, as text or as bytes.
func (w *world) wantNowhere(t *testing.T, secrets ...string) {
	t.Helper()
	rows := w.stored(t)
	if len(rows) < 10 {
		t.Fatalf("only %d rows were looked through", len(rows))
	}
	for _, row := range rows {
		for _, secret := range secrets {
			for _, form := range []string{secret, fmt.Sprintf("%x", secret), base64.StdEncoding.EncodeToString([]byte(secret))} {
				if strings.Contains(row, form) {
					t.Errorf("%q is stored: %.300s", secret, row)
				}
			}
		}
	}
}

// The address of a webhook is a secret of its receiver: fleetd posts to it, and never shows it
// again.
func TestWebhookAddressesAreSecrets(t *testing.T) {
	w := newWorld(t)
	asked := make(chan string, 10)
	to := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		asked <- user + " " + password + " " + r.RequestURI
	}))
	defer to.Close()
	host := strings.TrimPrefix(to.URL, "http://")
	secrets := []string{"PLANTEDuser", "PLANTEDpass", "PLANTEDpath", "PLANTEDquery"}
	address := "http://PLANTEDuser:PLANTEDpass@" + host + "/services/PLANTEDpath?token=PLANTEDquery"
	body, _ := json.Marshal(map[string]any{"name": "chat", "url": address})
	made := w.post(t, "/webhooks", string(body))
	hook := decode[newWebhookView](t, made, 201)
	one := "/webhooks/" + hook.ID.String()
	if want := to.URL + "/…"; hook.URL != want {
		t.Errorf("the address is shown as %q, want %q", hook.URL, want)
	}
	// A client may send the shown value back, which changes nothing.
	kept, _ := json.Marshal(map[string]any{"name": "room", "url": hook.URL})
	changed := w.as(t, fleet.RoleAdmin, "PATCH", one, string(kept))
	decode[WebhookView](t, changed, 200)
	if d := decode[deliveryView](t, w.post(t, one+"/test", ""), 200); !d.OK {
		t.Errorf("the test was not delivered: %+v", d)
	}
	if got, want := <-asked, "PLANTEDuser PLANTEDpass /services/PLANTEDpath?token=PLANTEDquery"; got != want {
		t.Errorf("posted to %q, want %q", got, want)
	}
	to.Close()
	failed := w.post(t, one+"/test", "")
	list := w.as(t, fleet.RoleAdmin, "GET", "/webhooks", "")
	audit := w.as(t, fleet.RoleViewer, "GET", "/audit", "")
	if !strings.Contains(string(audit.body), "webhook.create") || !strings.Contains(string(audit.body), host) {
		t.Errorf("the audit has no webhook at its host: %s", audit.body)
	}
	w.wantNowhere(t, append(secrets, hook.Secret)...)
	for _, secret := range secrets {
		for name, text := range map[string]string{"answer": string(made.body), "change": string(changed.body),
			"test": string(failed.body), "list": string(list.body), "audit of a viewer": string(audit.body),
			"log": w.log.String()} {
			if strings.Contains(text, secret) {
				t.Errorf("%s holds %s: %s", name, secret, text)
			}
		}
	}
}

// Addresses that an earlier version stored as plain text are encrypted once, at the start.
func TestStoredWebhookAddressesAreSealed(t *testing.T) {
	w := newWorld(t)
	asked := make(chan string, 10)
	to := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.RequestURI }))
	defer to.Close()
	body := fmt.Sprintf(`{"name":"chat","url":"%s/new"}`, to.URL)
	hook := decode[newWebhookView](t, w.post(t, "/webhooks", body), 201)
	if _, err := w.db.Exec(t.Context(), `UPDATE webhooks SET url = $1, address = NULL, shown = ''`,
		to.URL+"/PLANTED"); err != nil {
		t.Fatal(err)
	}
	sealer, err := enrolment.NewSealer(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	hooks := webhook.New(webhook.Options{Store: w.store, Sealer: sealer})
	defer hooks.Close()
	var sealed []byte
	for range 2 {
		if err := hooks.SealStored(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := sealed
		if err := w.db.QueryRow(t.Context(), `SELECT address FROM webhooks WHERE url IS NULL AND shown = $1`,
			to.URL+"/…").Scan(&sealed); err != nil {
			t.Fatal(err)
		}
		if before != nil && string(before) != string(sealed) {
			t.Error("what is sealed was sealed again")
		}
	}
	w.wantNowhere(t, "PLANTED")
	if d := decode[deliveryView](t, w.post(t, "/webhooks/"+hook.ID.String()+"/test", ""), 200); !d.OK {
		t.Errorf("after the sealing: %+v", d)
	}
	if got := <-asked; got != "/PLANTED" {
		t.Errorf("posted to %s", got)
	}
}
