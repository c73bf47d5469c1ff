package forms

import (
	"net/url"
	"strconv"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/endpoint"
)

// Endpoint is the form of an endpoint, as typed.
type Endpoint struct {
	New     bool  // the form has a name
	Version int64 // of the endpoint that was shown
	Name    string

	Second       string // an [endpoint.SecondPolicy]
	Tools        string // patterns
	Audience     string
	OfferToVoice bool
	Disabled     bool
}

// NewEndpoint returns the empty form.
func NewEndpoint() Endpoint {
	return Endpoint{New: true, Second: string(endpoint.Replace), Audience: string(fleet.AudienceModel)}
}

// FillEndpoint returns the form of an endpoint.
func FillEndpoint(e endpoint.Endpoint) Endpoint {
	return Endpoint{Version: e.Version, Name: e.Name, Second: string(e.Second), Tools: strings.Join(e.Tools, ", "),
		Audience: string(e.Audience), OfferToVoice: e.OfferToVoice, Disabled: e.Disabled}
}

// PostedEndpoint returns the form as posted.
func PostedEndpoint(v url.Values) Endpoint {
	f := Endpoint{Name: strings.TrimSpace(v.Get("name")), Second: v.Get("second_connection"), Tools: v.Get("tools"),
		Audience: v.Get("audience"), OfferToVoice: v.Get("offer_to_voice") != "", Disabled: v.Get("disabled") != ""}
	f.Version, _ = strconv.ParseInt(v.Get("version"), 10, 64)
	return f
}

// Change changes settings to what the form says. A choice that is missing stays as it is.
func (f Endpoint) Change(s *endpoint.Settings) {
	s.Tools, s.OfferToVoice, s.Disabled = words(f.Tools), f.OfferToVoice, f.Disabled
	if f.Second != "" {
		s.Second = endpoint.SecondPolicy(f.Second)
	}
	if f.Audience != "" {
		s.Audience = fleet.Audience(f.Audience)
	}
}
