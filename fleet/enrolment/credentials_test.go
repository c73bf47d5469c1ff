package enrolment_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

func TestCredentialsEndAndRotate(t *testing.T) {
	e := newEnrolments(t, new(admissionStore), fleet.EnrolOpen, nil)
	first := poll(t, e, uuid1).Session
	must(t, e.Rotate(t.Context(), ann, unit))
	if why := auth(e, first); why != "" {
		t.Fatalf("refused before the device could fetch new ones: %s", why)
	}
	if err := e.Rotate(t.Context(), ann, unit); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("a second rotation would lock the device out: %v", err)
	}
	second := poll(t, e, uuid1).Session
	if auth(e, first) != "" || auth(e, second) != "" {
		t.Error("one of the overlapping credentials is refused")
	}
	if why := auth(e, first); why != enrolment.CredentialsRevoked {
		t.Errorf("the old ones, after the new were used: %q", why)
	}
	must(t, e.Revoke(t.Context(), ann, unit))
	if why := auth(e, second); why != enrolment.CredentialsRevoked {
		t.Errorf("revoked ones: %q", why)
	}
	third := poll(t, e, uuid1).Session
	must(t, e.Reject(t.Context(), ann, unit))
	if why := auth(e, third); why != enrolment.CredentialsNotEnrolled || poll(t, e, uuid1) != (enrolment.PollAnswer{}) {
		t.Errorf("a rejected device: %q", why)
	}
	must(t, e.Approve(t.Context(), ann, unit, ""))
	if why := auth(e, third); why != enrolment.CredentialsRevoked {
		t.Errorf("credentials from before the rejection: %q", why)
	}
	fourth := poll(t, e, uuid1).Session
	e.Retired(unit)
	if auth(e, fourth) != enrolment.CredentialsNotEnrolled || poll(t, e, uuid1) != (enrolment.PollAnswer{}) {
		t.Error("a retired device is let in")
	}
	if err := e.Approve(t.Context(), ann, unit, ""); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("approving a retired device: %v", err)
	}
}

func TestAuthenticateRefuses(t *testing.T) {
	e := newEnrolments(t, new(admissionStore), fleet.EnrolOpen, nil)
	good := *poll(t, e, uuid1).Session
	elsewhere := newEnrolments(t, new(admissionStore), fleet.EnrolByCode, nil) // same key, another database
	foreign := newEnrolments(t, new(admissionStore), fleet.EnrolOpen, func(o *enrolment.Options) {
		o.Key = make([]byte,
			32)
	})
	with := func(change func(*enrolment.Credentials)) *enrolment.Credentials { c := good; change(&c); return &c }
	tests := []struct {
		name string
		at   *enrolment.Service
		c    *enrolment.Credentials
		want enrolment.CredentialsError
	}{
		{"good", e, &good, ""},
		{"not in this database", elsewhere, &good, enrolment.CredentialsNotEnrolled},
		{"another key", foreign, &good, enrolment.CredentialsForged},
		{"no password", e, with(func(c *enrolment.Credentials) { c.Password = "" }), enrolment.CredentialsForged},
		{"another username", e, with(func(c *enrolment.Credentials) { c.Username += "A" }), enrolment.CredentialsForged},
		{"another device", e, with(func(c *enrolment.Credentials) {
			c.ClientID = strings.Replace(c.ClientID, "33", "34",
				1)
		}), enrolment.CredentialsForged},
		{"the same device, in capitals", e, with(func(c *enrolment.Credentials) {
			c.ClientID = strings.Replace(c.ClientID,
				"a0", "A0", 1)
		}), enrolment.CredentialsMalformed},
		{"another group", e, with(func(c *enrolment.Credentials) {
			c.ClientID = strings.Replace(c.ClientID, "default",
				"other", 1)
		}), enrolment.CredentialsMalformed},
		{"two parts", e, with(func(c *enrolment.Credentials) { c.ClientID = "GID_default@@@a0_85_e3_11_22_33" }),
			enrolment.CredentialsMalformed},
		{"nothing", e, &enrolment.Credentials{}, enrolment.CredentialsMalformed},
		{"inline", e, &enrolment.Credentials{ClientID: "inline"}, enrolment.CredentialsMalformed},
	}
	for _, tt := range tests {
		if got := auth(tt.at, tt.c); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	if n := len(good.ClientID) + len(good.Username) + len(good.Password); n >= 900 {
		t.Errorf("the CONNECT needs %d bytes", n)
	}
}

func FuzzAuthenticate(f *testing.F) {
	f.Add("GID_default@@@a0_85_e3_11_22_33@@@"+uuid1, "eyJ2IjoxLCJuIjowfQ", "sYIbzk126UY0mnj1yuW/rKRMSZbpQTuyYcrIuyt4dlY=")
	e, err := enrolment.New(enrolment.Options{Store: new(admissionStore), Mode: fleet.EnrolOpen, Key: testKey})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, client, user, password string) {
		if _, err := e.Authenticate(client, user, []byte(password), ""); err == nil {
			t.Errorf("%q was let in", client)
		}
	})
}

func TestCredentialsPrintWithoutTheirPassword(t *testing.T) {
	c := *poll(t, newEnrolments(t, new(admissionStore), fleet.EnrolOpen, nil), uuid1).Session
	for _, text := range []string{fmt.Sprint(c), fmt.Sprintf("%+v", &c), c.LogValue().String()} {
		if strings.Contains(text, c.Password) || !strings.Contains(text, uuid1) {
			t.Errorf("printed as %s", text)
		}
	}
}

// The token of a WebSocket is bound to the device and its Client-Id and ends with the
// credentials. A token is not accepted as a password, nor a password as a token.
func TestTokens(t *testing.T) {
	e := newEnrolments(t, new(admissionStore), fleet.EnrolOpen, nil)
	c := poll(t, e, uuid1).Session
	id, err := e.AuthenticateToken(unit, uuid1, c.Token, "")
	if err != nil || id != c.ClientID {
		t.Fatalf("%q, %v", id, err)
	}
	username, mac, _ := strings.Cut(c.Token, ".")
	for name, try := range map[string]struct {
		device        fleet.DeviceID
		client, token string
	}{
		"another device":    {"a085e3112299", uuid1, c.Token},
		"another Client-Id": {unit, uuid2, c.Token},
		"no Client-Id":      {unit, "", c.Token},
		"no token":          {unit, uuid1, ""},
		"half of it":        {unit, uuid1, username},
		"no claim":          {unit, uuid1, "." + mac},
		"a longer one":      {unit, uuid1, c.Token + "A"},
		"a password":        {unit, uuid1, c.Username + "." + strings.TrimRight(c.Password, "=")},
		"a huge one":        {unit, uuid1, strings.Repeat("A", 1<<20)},
	} {
		if _, err := e.AuthenticateToken(try.device, try.client, try.token, ""); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	asPassword := *c
	asPassword.Username, asPassword.Password = username, strings.NewReplacer("-", "+", "_", "/").Replace(mac)+"="
	if why := auth(e, &asPassword); why != enrolment.CredentialsForged {
		t.Errorf("a token as a password: %q", why)
	}
	must(t, e.Revoke(t.Context(), ann, unit))
	if _, err := e.AuthenticateToken(unit, uuid1, c.Token, ""); !errors.Is(err, enrolment.CredentialsRevoked) {
		t.Errorf("a revoked token: %v", err)
	}
	if strings.Contains(fmt.Sprint(c, *c), c.Token) {
		t.Error("a token is printed")
	}
}
