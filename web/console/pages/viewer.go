package pages

import (
	"context"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/operator"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

// A Viewer is the reader of the page, with their preferences.
type Viewer struct {
	Operator *operator.Operator // nil before sign-in
	Login    operator.Login     // of the operator in this browser
	Lang     i18n.Lang
	Theme    string
	Density  string
	Zone     *time.Location

	NewBrowser *http.Cookie // set at a sign-in: the browser is known by it from now on
}

// Actor returns the viewer as the principal of calls and audit entries.
func (v *Viewer) Actor() fleet.Principal {
	if v.Operator == nil {
		return fleet.Principal{}
	}
	return v.Operator.Principal()
}

type viewerKey struct{}

// ViewerOf returns the viewer of the request; outside of a request, a visitor without a session.
func ViewerOf(ctx context.Context) *Viewer {
	if v, ok := ctx.Value(viewerKey{}).(*Viewer); ok {
		return v
	}
	return &Viewer{Lang: i18n.English, Zone: time.UTC}
}

// Cookie returns the value of a cookie; "" without it.
func Cookie(r *http.Request, name string) string {
	c, err := r.Cookie(name)
	if err != nil {
		return ""
	}
	return c.Value
}

// SetPreference makes the browser store a preference for a year.
func SetPreference(w http.ResponseWriter, r *http.Request, name, value string) {
	http.SetCookie(w, &http.Cookie{Name: name, Value: value, Path: "/", MaxAge: 365 * 24 * 3600,
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: r.TLS != nil})
}

// InLanguage lets components and messages be rendered outside of a page.
func InLanguage(ctx context.Context) context.Context {
	v := ViewerOf(ctx)
	return ui.WithPage(ctx, ui.Page{Lang: v.Lang, Zone: v.Zone, Admin: MayAdmin(ctx)})
}

// Text returns a message in the language of the request.
func Text(ctx context.Context, key string, args ...any) string {
	return ui.T(InLanguage(ctx), key, args...)
}

// MayAct reports whether the viewer may change and call devices, or some of them.
func MayAct(ctx context.Context) bool { return ViewerOf(ctx).Actor().Role.Allows(fleet.RoleOperator) }

// MayActOn reports whether the viewer may change and call the device.
func MayActOn(ctx context.Context, d fleet.Device) bool {
	return ViewerOf(ctx).Actor().RoleOn(d).Allows(fleet.RoleOperator)
}

// MayKeepFirmware reports whether the viewer may change images and releases.
func MayKeepFirmware(ctx context.Context) bool {
	return ViewerOf(ctx).Actor().FleetRole().Allows(fleet.RoleOperator)
}

// MayAdmin reports whether the viewer may change the fleet as a whole.
func MayAdmin(ctx context.Context) bool {
	return ViewerOf(ctx).Actor().FleetRole().Allows(fleet.RoleAdmin)
}

// ZonesOffered are the time zones that a window can have, in addition to the devices' zones and the
// viewer's.
var ZonesOffered = []string{"UTC", "Asia/Shanghai", "Asia/Tokyo", "Asia/Kolkata", "Europe/London", "Europe/Berlin",
	"America/New_York", "America/Los_Angeles", "Australia/Sydney"}

// WithViewer returns the context of a request of the viewer.
func WithViewer(ctx context.Context, v *Viewer) context.Context {
	return context.WithValue(ctx, viewerKey{}, v)
}
