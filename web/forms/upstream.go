package forms

import (
	"net/url"

	"fleetd/fleet/upstream"
)

// An Upstream is a voice server as typed. A secret is never filled in.
type Upstream struct {
	Name, Kind, URL, Auth, Devices string
	SecretSet, Tools, Enabled      bool

	secret string
}

// PostedUpstream returns the form as posted.
func PostedUpstream(v url.Values) Upstream {
	return Upstream{Name: v.Get("name"), Kind: v.Get("kind"), URL: v.Get("url"), Auth: v.Get("auth"),
		Devices: v.Get("devices"), Tools: v.Get("tools") != "", Enabled: v.Get("enabled") != "", secret: v.Get("secret")}
}

// Values returns the fields of the form, without the secret.
func (f Upstream) Values() url.Values {
	v := url.Values{"name": {f.Name}, "kind": {f.Kind}, "url": {f.URL}, "auth": {f.Auth}, "devices": {f.Devices}}
	check(v, "tools", f.Tools)
	check(v, "enabled", f.Enabled)
	return v
}

// Change returns what the form changes. An empty secret leaves the old one unchanged.
func (f Upstream) Change() upstream.Change {
	kind, auth, secret := upstream.Kind(f.Kind), upstream.Auth(f.Auth), f.secret
	if kind != upstream.WebSocket { // whatever the form contains
		auth, secret = upstream.AuthNone, ""
	}
	return upstream.Change{Name: &f.Name, Kind: &kind, URL: &f.URL, Auth: &auth, Secret: &secret,
		Devices: &f.Devices, Tools: &f.Tools, Enabled: &f.Enabled}
}
