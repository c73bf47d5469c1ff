package console

import (
	"context"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/operator"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

// A viewer is the reader of the page, with their preferences.
type viewer struct {
	operator *operator.Operator // nil before sign-in
	login    operator.Login     // of the operator in this browser
	lang     i18n.Lang
	theme    string
	density  string
	zone     *time.Location

	newBrowser *http.Cookie // set at a sign-in: the browser is known by it from now on
}

// actor returns the viewer as the principal of calls and audit entries.
func (v *viewer) actor() fleet.Principal {
	if v.operator == nil {
		return fleet.Principal{}
	}
	return v.operator.Principal()
}

type viewerKey struct{}

func viewerOf(ctx context.Context) *viewer {
	if v, ok := ctx.Value(viewerKey{}).(*viewer); ok {
		return v
	}
	return &viewer{lang: i18n.English, zone: time.UTC}
}

func cookie(r *http.Request, name string) string {
	c, err := r.Cookie(name)
	if err != nil {
		return ""
	}
	return c.Value
}

func setPreference(w http.ResponseWriter, r *http.Request, name, value string) {
	http.SetCookie(w, &http.Cookie{Name: name, Value: value, Path: "/", MaxAge: 365 * 24 * 3600,
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: r.TLS != nil})
}

// inLanguage lets components and messages be rendered outside of a page.
func inLanguage(ctx context.Context) context.Context {
	v := viewerOf(ctx)
	return ui.WithPage(ctx, ui.Page{Lang: v.lang, Zone: v.zone, Admin: mayAdmin(ctx)})
}

// text returns a message in the language of the request.
func text(ctx context.Context, key string, args ...any) string {
	return ui.T(inLanguage(ctx), key, args...)
}

// mayAct reports whether the viewer may change and call devices, or some of them.
func mayAct(ctx context.Context) bool { return viewerOf(ctx).actor().Role.Allows(fleet.RoleOperator) }

// mayActOn reports whether the viewer may change and call the device.
func mayActOn(ctx context.Context, d fleet.Device) bool {
	return viewerOf(ctx).actor().RoleOn(d).Allows(fleet.RoleOperator)
}

// mayKeepFirmware reports whether the viewer may change images and releases.
func mayKeepFirmware(ctx context.Context) bool {
	return viewerOf(ctx).actor().FleetRole().Allows(fleet.RoleOperator)
}

// mayAdmin reports whether the viewer may change the fleet as a whole.
func mayAdmin(ctx context.Context) bool {
	return viewerOf(ctx).actor().FleetRole().Allows(fleet.RoleAdmin)
}

// zonesOffered are the time zones that a window can have, in addition to the devices' zones and the
// viewer's.
var zonesOffered = []string{"UTC", "Asia/Shanghai", "Asia/Tokyo", "Asia/Kolkata", "Europe/London", "Europe/Berlin",
	"America/New_York", "America/Los_Angeles", "Australia/Sydney"}

// withViewer returns the context of a request of the viewer.
func withViewer(ctx context.Context, v *viewer) context.Context {
	return context.WithValue(ctx, viewerKey{}, v)
}
