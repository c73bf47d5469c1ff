package settings

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"

	"github.com/a-h/templ"
	"github.com/go-chi/chi/v5"

	"fleetd/fleet"
	"fleetd/web/console/pages"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

// programName returns the plug-in or endpoint in the address. The name of a file that cannot be a
// plug-in may contain any character, escaped.
func programName(r *http.Request, param string) string {
	name := chi.URLParam(r, param)
	if r.URL.RawPath != "" {
		if plain, err := url.PathUnescape(name); err == nil {
			return plain
		}
	}
	return name
}

// fieldProblems returns an error with its field, if the form has one with that name.
func fieldProblems(ctx context.Context, err error, fields []string) (ui.FieldProblems, bool) {
	if pages.StatusOf(err) >= http.StatusInternalServerError || errors.Is(err, fleet.ErrForbidden) ||
		errors.Is(err, fleet.ErrNotFound) {
		return nil, false
	}
	field := ""
	if e, ok := errors.AsType[*fleet.Error](err); ok && slices.Contains(fields, e.Field) {
		field = e.Field
	}
	return ui.FieldProblems{field: pages.Explain(ctx, err)}, true
}

// programChanged redirects to the page of a plug-in or endpoint, and shows there that the act
// succeeded, or why it failed.
func (s *Server) programChanged(r *http.Request, path, done string, err error) (pages.Answer, error) {
	ctx := r.Context()
	switch {
	case errors.Is(err, fleet.ErrConflict), errors.Is(err, fleet.ErrInvalid):
		s.Flash(ctx, ui.Flash{Bad: true, Text: i18n.Unmarked(pages.Explain(ctx, err))})
	case err != nil:
		return pages.Answer{}, err
	default:
		s.Flash(ctx, ui.Flash{Text: done})
	}
	return pages.GoTo(path)
}

// sentParts are the components that a page has, by name: a component is sent again if it changed.
type sentParts map[string][]byte

func (p sentParts) add(ctx context.Context, u *pages.Updates, name string, c templ.Component) error {
	return p.addIf(ctx, u, name, c, c)
}

// addIf sends a component if another one changed.
func (p sentParts) addIf(ctx context.Context, u *pages.Updates, name string, changed, c templ.Component) error {
	var b bytes.Buffer
	if err := changed.Render(ctx, &b); err != nil {
		return err
	}
	if !bytes.Equal(p[name], b.Bytes()) {
		p[name] = b.Bytes()
		u.Patches = append(u.Patches, c)
	}
	return nil
}
