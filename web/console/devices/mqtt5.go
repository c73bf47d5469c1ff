package devices

import (
	"errors"
	"net/http"
	"strconv"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/access"
	"fleetd/web/console/device"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// mqtt5Routes create devices of MCP over MQTT 5 and change their credentials. They show secrets or end
// them, so they require the password.
func (s *Server) mqtt5Routes() []pages.Route {
	const post, device = http.MethodPost, ui.PathDevices + "/{device}"
	return []pages.Route{
		{Method: post, Pattern: ui.PathMQTT5, Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.createMQTT5,
			Confirm: true},
		{Method: post, Pattern: device + "/reissue", Role: fleet.RoleOperator, Reach: access.Device, Page: s.reissueMQTT5,
			Confirm: true},
		{Method: post, Pattern: device + "/revoke", Role: fleet.RoleOperator, Reach: access.Device, Page: s.revokeMQTT5,
			Confirm: true},
	}
}

// createMQTT5 returns the page with the credentials itself: they are shown only once, and must not be
// stored for a next page.
func (s *Server) createMQTT5(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	f := ui.MQTT5Form{ID: fleet.CleanText(r.PostFormValue("id"), 80), Name: fleet.CleanText(r.PostFormValue("name"), 200)}
	c, err := s.Enrolments.CreateMQTT5(ctx, pages.ViewerOf(ctx).Actor(), r.PostFormValue("id"), r.PostFormValue("name"))
	if errors.Is(err, fleet.ErrInvalid) || errors.Is(err, fleet.ErrConflict) {
		page, readErr := s.claimPage(ctx)
		if readErr != nil {
			return pages.Answer{}, readErr
		}
		f.Problem = pages.Explain(ctx, err)
		page.MQTT5 = f
		return pages.ShowAgain(page.Page())
	}
	if err != nil {
		return pages.Answer{}, err
	}
	return s.showCredentials(c, f.Name, false)
}

func (s *Server) reissueMQTT5(r *http.Request) (pages.Answer, error) {
	d, version, err := s.mqtt5Form(r)
	if err != nil {
		return pages.Answer{}, err
	}
	c, err := s.Enrolments.ReissueMQTT5(r.Context(), pages.ViewerOf(r.Context()).Actor(), d.ID, version)
	if err != nil {
		return s.credentialsKept(r, d, err)
	}
	return s.showCredentials(c, d.Name, true)
}

func (s *Server) revokeMQTT5(r *http.Request) (pages.Answer, error) {
	d, version, err := s.mqtt5Form(r)
	if err != nil {
		return pages.Answer{}, err
	}
	if err = s.Enrolments.RevokeMQTT5(r.Context(), pages.ViewerOf(r.Context()).Actor(), d.ID, version); err != nil {
		return s.credentialsKept(r, d, err)
	}
	s.Flash(r.Context(), ui.Flash{Text: pages.Text(r.Context(), "flash.credentials_revoked", "device", d.Title())})
	return pages.GoTo(ui.DevicePath(d.ID, device.TabConfiguration))
}

// mqtt5Form reads the device in the address, and the version of the credentials that its form showed.
func (s *Server) mqtt5Form(r *http.Request) (d fleet.Device, version int32, err error) {
	if d, err = s.device.Device(r); err == nil && d.Kind != fleet.DeviceMQTT5 {
		err = pages.ErrNoPage
	}
	if err != nil {
		return d, 0, err
	}
	n, err := strconv.ParseInt(r.PostFormValue("version"), 10, 32)
	if err != nil || n < 1 {
		return d, 0, fleet.Refuse(fleet.ErrInvalid, "invalid_form.version")
	}
	return d, int32(n), nil
}

func (s *Server) showCredentials(c enrolment.MQTT5Credentials, name string, replaced bool) (pages.Answer, error) {
	page := ui.CredentialsPage{Credentials: c, Name: name, Broker: s.MQTTEndpoint, Replaced: replaced}
	return pages.Answer{Page: page.Page(), Whole: true}, nil
}

// credentialsKept leads back to the device's settings with the reason why nothing changed.
func (s *Server) credentialsKept(r *http.Request, d fleet.Device, err error) (pages.Answer, error) {
	if !errors.Is(err, fleet.ErrConflict) {
		return pages.Answer{}, err
	}
	s.Flash(r.Context(), ui.Flash{Bad: true, Text: pages.Explain(r.Context(), err)})
	return pages.GoTo(ui.DevicePath(d.ID, device.TabConfiguration))
}
