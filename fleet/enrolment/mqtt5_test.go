package enrolment_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
)

var wholeFleet = fleet.Principal{Kind: fleet.KindOperator, ID: "9", Name: "ruth", Role: fleet.RoleAdmin}

// A mqtt5Bench is the service over a database.
type mqtt5Bench struct {
	*enrolment.Service
	t      *testing.T
	store  *postgres.Store
	keys   *enrolment.SigningKeys
	kicked []fleet.DeviceID
}

func newMQTT5Bench(t *testing.T) *mqtt5Bench {
	b := &mqtt5Bench{t: t, store: postgres.New(pgtest.New(t), postgres.Options{})}
	b.restart()
	return b
}

// restart replaces the service by one that reads the database.
func (b *mqtt5Bench) restart() {
	b.t.Helper()
	var err error
	b.keys, err = enrolment.NewSigningKeys(b.store, testKey, nil)
	must(b.t, err)
	must(b.t, b.keys.Load(b.t.Context()))
	b.Service, err = enrolment.New(enrolment.Options{Store: b.store, Mode: fleet.EnrolOpen, Keys: b.keys,
		Device: b.store.Device, Kick: func(id fleet.DeviceID, _ fleet.Cause) { b.kicked = append(b.kicked, id) }})
	must(b.t, err)
	must(b.t, b.Load(b.t.Context()))
}

func (b *mqtt5Bench) create(id string) enrolment.MQTT5Credentials {
	b.t.Helper()
	c, err := b.CreateMQTT5(b.t.Context(), wholeFleet, id, " Desk lamp ")
	must(b.t, err)
	return c
}

// auth returns the reason why the credentials are refused under the client id, or "".
func (b *mqtt5Bench) auth(clientID string, c enrolment.MQTT5Credentials) enrolment.CredentialsError {
	id, err := b.Authenticate(clientID, c.Username, []byte(c.Password), "192.0.2.9")
	var why enrolment.CredentialsError
	if errors.As(err, &why); err == nil && id != c.Device {
		b.t.Errorf("credentials of %s belong to %s", c.Device, id)
	}
	return why
}

func (b *mqtt5Bench) wants(what, clientID string, c enrolment.MQTT5Credentials, want enrolment.CredentialsError) {
	b.t.Helper()
	if why := b.auth(clientID, c); why != want {
		b.t.Errorf("%s: %q, want %q", what, why, want)
	}
}

// audit returns the actions on record, latest first.
func (b *mqtt5Bench) audit() (actions []string) {
	b.t.Helper()
	page, err := b.store.AuditEntries(b.t.Context(), audit.Filter{Limit: 50})
	must(b.t, err)
	for _, e := range page.Items {
		actions = append(actions, e.Action+" "+e.Subject)
		if text := fmt.Sprint(e); strings.Contains(text, "mcp.") {
			b.t.Errorf("the audit record shows credentials: %s", text)
		}
	}
	return actions
}

func code(err error) string {
	var known *fleet.Error
	if errors.As(err, &known) {
		return known.Code
	}
	return fmt.Sprint(err)
}

func TestMQTT5Create(t *testing.T) {
	b := newMQTT5Bench(t)
	c := b.create("Lamp-1") // ids are in lower case
	if c.Device != "lamp-1" || c.ClientID != "lamp-1" || !strings.HasPrefix(c.Username, "mcp.") || c.Password == "" {
		t.Errorf("credentials %+v", c)
	}
	if text := fmt.Sprintf("%v %s %+v", c, c, c); strings.Contains(text, c.Password) {
		t.Errorf("printing the credentials shows the password: %s", text)
	}
	d, err := b.store.Device(t.Context(), "lamp-1")
	if err != nil || d.Kind != fleet.DeviceMQTT5 || d.Name != "Desk lamp" || d.Enrolment != fleet.EnrolmentEnrolled {
		t.Errorf("device %+v, %v", d, err)
	}
	b.wants("its own", "lamp-1", c, "")
	b.wants("another client id", "lamp-2", c, enrolment.CredentialsOtherDevice)
	b.wants("an upper-case client id", "Lamp-1", c, enrolment.CredentialsOtherDevice)
	forged := c
	forged.Password = b.create("lamp-9").Password
	b.wants("another's password", "lamp-1", forged, enrolment.CredentialsForged)
	if got := b.audit(); len(got) != 2 || got[1] != "device.create lamp-1" {
		t.Errorf("audit %q", got)
	}

	b.restart()
	b.wants("after a restart", "lamp-1", c, "")
}

func TestMQTT5CreateRefused(t *testing.T) {
	b := newMQTT5Bench(t)
	b.create("lamp-1")
	b.create("lamp-2")
	must(t, b.store.RetireDevice(t.Context(), wholeFleet, "lamp-2", time.Now()))
	b.Retired("lamp-2")
	if _, err := b.Poll(enrolment.BootPoll{Device: unit, ClientID: uuid1, At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	must(t, b.Stored(t.Context()))
	scoped := wholeFleet
	q, err := fleet.ParseQuery("tag:lab")
	must(t, err)
	scoped.Scope = &fleet.Scope{Filter: q}
	before := b.audit()
	for name, c := range map[string]struct {
		by             fleet.Principal
		id, name, want string
	}{
		"existing":             {id: "lamp-1", want: "device_exists"},
		"existing, upper case": {id: "LAMP-1", want: "device_exists"},
		"retired":              {id: "lamp-2", want: "device_exists"},
		"a board":              {id: unit.MAC(), want: "device_exists"},
		"a plug-in":            {id: "plugin.weather", want: "invalid_mqtt5_id"},
		"an endpoint":          {id: "Endpoint.home", want: "invalid_mqtt5_id"},
		"of the protocol":      {id: "presence", want: "invalid_mqtt5_id"},
		"of the broker":        {id: "inline", want: "invalid_mqtt5_id"},
		"topics":               {id: "lamp/1", want: "invalid_mqtt5_id"},
		"wildcards":            {id: "lamp+", want: "invalid_mqtt5_id"},
		"empty":                {id: "", want: "invalid_mqtt5_id"},
		"too long":             {id: strings.Repeat("x", 65), want: "invalid_mqtt5_id"},
		"long name":            {id: "lamp-3", name: strings.Repeat("x", fleet.MaxNameLength+1), want: "invalid_name"},
		"name of two lines":    {id: "lamp-3", name: "a\nb", want: "invalid_name"},
		"operator":             {by: ann, id: "lamp-3", want: "forbidden"},
		"scoped admin":         {by: scoped, id: "lamp-3", want: "forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.by.Kind == "" {
				c.by = wholeFleet
			}
			got, err := b.CreateMQTT5(t.Context(), c.by, c.id, c.name)
			if why := code(err); !strings.HasPrefix(why, c.want) || got != (enrolment.MQTT5Credentials{}) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
	if after := b.audit(); len(after) != len(before) {
		t.Errorf("audit %q", after)
	}
	b.create("lamp-3") // nothing kept its place
}

func TestMQTT5Reissue(t *testing.T) {
	b := newMQTT5Bench(t)
	ctx, first := t.Context(), b.create("lamp-1")
	second, err := b.ReissueMQTT5(ctx, ann, "lamp-1", 0)
	must(t, err)
	b.wants("previous", "lamp-1", first, enrolment.CredentialsRevoked)
	b.wants("new", "lamp-1", second, "")
	if len(b.kicked) != 1 || b.kicked[0] != "lamp-1" {
		t.Errorf("connections ended: %q", b.kicked)
	}
	b.restart()
	b.wants("previous, after a restart", "lamp-1", first, enrolment.CredentialsRevoked)
	b.wants("new, after a restart", "lamp-1", second, "")

	must(t, b.RevokeMQTT5(ctx, ann, "lamp-1", 0))
	b.wants("revoked", "lamp-1", second, enrolment.CredentialsRevoked)
	b.restart()
	if st, ok := b.MQTT5State("lamp-1"); !ok || !st.Revoked {
		t.Error("after a restart the device does not count as revoked")
	}
	b.wants("revoked, after a restart", "lamp-1", second, enrolment.CredentialsRevoked)
	third, err := b.ReissueMQTT5(ctx, ann, "lamp-1", 0)
	must(t, err)
	b.wants("issued again", "lamp-1", third, "")
	st, ok := b.MQTT5State("lamp-1")
	if !ok || st.Revoked {
		t.Errorf("the device has credentials, and its state is %+v", st)
	}
	if _, err := b.ReissueMQTT5(ctx, ann, "lamp-1", st.Version-1); code(err) != "credentials_changed" {
		t.Errorf("replacing credentials that were replaced meanwhile: %v", err)
	}
	if err := b.RevokeMQTT5(ctx, ann, "lamp-1", st.Version+1); code(err) != "credentials_changed" {
		t.Errorf("revoking credentials that were replaced meanwhile: %v", err)
	}
	b.wants("after stale acts", "lamp-1", third, "")
	const lamp = " lamp-1 "
	if got := fmt.Sprint(b.audit()); got != "[device.reissue"+lamp+"device.revoke"+lamp+"device.reissue"+lamp+"device.create lamp-1]" {
		t.Errorf("audit %s", got)
	}
}

func TestMQTT5ReissueRefused(t *testing.T) {
	b := newMQTT5Bench(t)
	ctx, c := t.Context(), b.create("lamp-1")
	if _, err := b.Poll(enrolment.BootPoll{Device: unit, ClientID: uuid1, At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	must(t, b.Stored(ctx))
	viewer := fleet.Principal{Kind: fleet.KindOperator, ID: "3", Name: "vic", Role: fleet.RoleViewer}
	for _, act := range []func(fleet.Principal, fleet.DeviceID) error{
		func(by fleet.Principal, id fleet.DeviceID) error {
			_, err := b.ReissueMQTT5(ctx, by, id, 0)
			return err
		},
		func(by fleet.Principal, id fleet.DeviceID) error { return b.RevokeMQTT5(ctx, by, id, 0) },
	} {
		for want, err := range map[string]error{"forbidden": act(viewer, "lamp-1"), "not_mqtt5": act(bob, unit),
			"unknown_device": act(bob, "lamp-7"), "not_a_board": act(bob, "plugin.weather")} {
			if got := code(err); !strings.HasPrefix(got, want) && !errors.Is(err, fleet.ErrNotFound) {
				t.Errorf("%v, want %s", err, want)
			}
		}
	}
	if err := b.Rotate(ctx, bob, "lamp-1"); code(err) != "only_by_hand" {
		t.Errorf("rotating its credentials: %v", err)
	}
	b.wants("after refused acts", "lamp-1", c, "")

	must(t, b.Reject(ctx, ann, "lamp-1"))
	b.wants("rejected", "lamp-1", c, enrolment.CredentialsNotEnrolled)
	if _, err := b.ReissueMQTT5(ctx, ann, "lamp-1", 0); code(err) != "not_enrolled" {
		t.Errorf("credentials for a rejected device: %v", err)
	}
	must(t, b.store.RetireDevice(ctx, wholeFleet, "lamp-1", time.Now()))
	b.Retired("lamp-1")
	b.wants("retired", "lamp-1", c, enrolment.CredentialsNotEnrolled)
	if _, err := b.ReissueMQTT5(ctx, bob, "lamp-1", 0); code(err) != "device_retired" {
		t.Errorf("credentials for a retired device: %v", err)
	}
}

// The device's place is its own: a board that polls under its id gets nothing and changes nothing.
func TestMQTT5BootPoll(t *testing.T) {
	b := newMQTT5Bench(t)
	c := b.create(string(unit))
	before, err := b.store.Device(t.Context(), unit)
	must(t, err)
	for range 2 {
		a, err := b.Poll(enrolment.BootPoll{Device: unit, ClientID: uuid1, Board: "bread-compact", Version: "9.9",
			RemoteAddr: "192.0.2.66", At: time.Now()})
		if err != nil || a != (enrolment.PollAnswer{}) {
			t.Errorf("a boot poll got %+v, %v", a, err)
		}
		must(t, b.Stored(t.Context()))
		after, err := b.store.Device(t.Context(), unit)
		if err != nil || after.Version != before.Version || after.Board != before.Board ||
			after.LastPoll != before.LastPoll || after.NewClientID != "" {
			t.Errorf("it became %+v, %v", after, err)
		}
		b.wants("after the poll", string(unit), c, "")
		must(t, b.Reject(t.Context(), ann, unit)) // a rejected one gets nothing either
		must(t, b.Approve(t.Context(), ann, unit, ""))
		c, err = b.ReissueMQTT5(t.Context(), ann, unit, 0)
		must(t, err)
	}
}

// The end of a rotation of the signing key ends credentials that were issued before it.
func TestMQTT5KeyRotation(t *testing.T) {
	b := newMQTT5Bench(t)
	ctx, old := t.Context(), b.create("lamp-1")
	kept := b.create("lamp-2")
	_, err := b.keys.Start(ctx, wholeFleet, "rotate")
	must(t, err)
	b.wants("during the rotation", "lamp-1", old, "")
	fresh, err := b.ReissueMQTT5(ctx, ann, "lamp-1", 0)
	must(t, err)
	b.wants("of the new key", "lamp-1", fresh, "")
	counts, err := b.keys.Counts(ctx)
	must(t, err)
	_, err = b.keys.Finish(ctx, wholeFleet, fmt.Sprint(counts.Left(b.keys.Rotation())))
	must(t, err)
	b.wants("of the new key, after its end", "lamp-1", fresh, "")
	b.wants("of the old key, after its end", "lamp-2", kept, enrolment.CredentialsOldKey)
	b.restart()
	b.wants("of the old key, after a restart", "lamp-2", kept, enrolment.CredentialsOldKey)
	if got, err := b.ReissueMQTT5(ctx, ann, "lamp-2", 0); err != nil || b.auth("lamp-2", got) != "" {
		t.Errorf("new credentials: %v", err)
	}
}
