// Package ui defines the look of the console: templ components and their view structs. It depends
// neither on stores nor on requests. A handler fills a view struct and renders its Page method:
//
//	ctx = ui.WithPage(ctx, page)
//	ui.DevicesPage{...}.Page().Render(ctx, w)
//
// Package forms defines the fields of forms, and reads them.
//
// Every page is rendered as a whole. If htmx requests a page it picks the part that it needs by id
// (hx-select), so handlers have one response for both. Live streams send components with an id
// (DeviceRow, CallRow, ...) as the data of an event named "patch"; see static/assets/app.js.
//
// All visible text comes from package i18n. The pages run under Content-Security-Policy: no inline
// script, no inline style, no evaluation.
//
// A component is a function of its view struct and the context: there is no lock and no goroutine.
package ui

import (
	"context"
	"net/url"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/web/i18n"
)

// CSP is the content security policy of all pages.
const CSP = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; " +
	"connect-src 'self'; form-action 'self'; manifest-src 'self'; base-uri 'none'; frame-ancestors 'none'"

// A Page is the data about the request that every component may use. The zero value renders an
// English page for a visitor without a session.
type Page struct {
	Lang    i18n.Lang
	Theme   string         // "light" or "dark"; "" follows the system
	Density string         // of lists, [DensityCompact] or normal
	Zone    *time.Location // of the viewer; nil is UTC
	Now     time.Time      // zero means the present

	Operator  *Operator // the signed-in operator; nil before sign-in
	Admin     bool      // the operator is an admin of the whole fleet
	InCluster bool      // fleetd is a node of a cluster
	URL       *url.URL  // of the request: marks the current place, and is the page that a language switch returns to
	Open      bool      // enrolment is "open": every page shows it
	Waiting   int       // devices waiting for a decision: shown at Devices
	Approvals int       // requests waiting for a decision
	Alerts    alert.Summary
	Flash     *Flash // outcome of the last act
}

// Densities of lists: the height of their rows.
const (
	DensityNormal  = "normal"
	DensityCompact = "compact"
)

// An Operator is the signed-in person.
type Operator struct {
	Name string
	Role fleet.Role
}

// A Flash shows the outcome of an act on the next page. Text is shown unchanged: create it with
// [T].
type Flash struct {
	Bad  bool
	Text string
	Link string // record of the act; "" for none
	Undo string // address that takes the act back; "" for none
}

type pageKey struct{}

// WithPage returns a context for rendering a page's components.
func WithPage(ctx context.Context, p Page) context.Context {
	if p.Lang == "" {
		p.Lang = i18n.English
	}
	if p.Zone == nil {
		p.Zone = time.UTC
	}
	if p.Now.IsZero() {
		p.Now = time.Now()
	}
	return context.WithValue(ctx, pageKey{}, &p)
}

func page(ctx context.Context) *Page {
	if p, ok := ctx.Value(pageKey{}).(*Page); ok {
		return p
	}
	return &Page{Lang: i18n.English, Zone: time.UTC, Now: time.Now()}
}

// T returns a message in the language of the page; see [i18n.Text].
func T(ctx context.Context, key string, args ...any) string { return t(ctx, key, args...) }

func t(ctx context.Context, key string, args ...any) string {
	p := page(ctx)
	for i, a := range args {
		if at, ok := a.(time.Time); ok {
			args[i] = at.In(p.Zone)
		}
	}
	return i18n.Text(p.Lang, key, args...)
}

func num(ctx context.Context, n int) string { return i18n.Number(page(ctx).Lang, int64(n)) }

func duration(ctx context.Context, d time.Duration) string {
	return i18n.Duration(page(ctx).Lang, d)
}

func exact(ctx context.Context, at time.Time) string {
	p := page(ctx)
	return i18n.DateTime(p.Lang, at.In(p.Zone))
}

func relative(ctx context.Context, at time.Time) string {
	p := page(ctx)
	return i18n.Relative(p.Lang, at, p.Now)
}

func lasting(ctx context.Context, since time.Time) string {
	p := page(ctx)
	return i18n.Lasting(p.Lang, since, p.Now)
}

func clock(ctx context.Context, at time.Time) string {
	p := page(ctx)
	return i18n.Clock(p.Lang, at.In(p.Zone))
}

// refusalText returns the text of a refusal's code.
func refusalText(ctx context.Context, r fleet.Reason) string {
	p := page(ctx)
	return i18n.Because(p.Lang, p.Zone, "error.code.", r)
}
