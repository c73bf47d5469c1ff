package settings

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/plugin"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// pluginRoutes are the settings of plug-ins. Their changes decide which programs run on fleetd's
// machine, so they require the password.
func (s *Server) pluginRoutes() []pages.Route {
	const get, post, admin = http.MethodGet, http.MethodPost, fleet.RoleAdmin
	one := ui.PathPlugins + "/{plugin}"
	return []pages.Route{
		{Method: get, Pattern: ui.PathPlugins, Role: admin, Reach: access.Fleet, Page: s.listPlugins},
		{Method: post, Pattern: ui.PathPlugins, Role: admin, Reach: access.Fleet, Page: s.createPlugin, Confirm: true},
		{Method: get, Pattern: one, Role: admin, Reach: access.Fleet, Page: s.showPlugin},
		{Method: post, Pattern: one + "/reload", Role: admin, Reach: access.Fleet, Page: s.reloadPlugin},
		{Method: post, Pattern: one + "/edit", Role: admin, Reach: access.Fleet, Page: s.editPlugin, Confirm: true},
		{Method: post, Pattern: one + "/enable", Role: admin, Reach: access.Fleet, Page: s.switchPlugin(true),
			Confirm: true},
		{Method: post, Pattern: one + "/disable", Role: admin, Reach: access.Fleet, Page: s.switchPlugin(false),
			Confirm: true},
		{Method: post, Pattern: one + "/delete", Role: admin, Reach: access.Fleet, Page: s.deletePlugin, Confirm: true},
	}
}

func (s *Server) pluginRows(ctx context.Context) ([]ui.PluginRow, error) {
	list, err := s.Plugins.List(pages.ViewerOf(ctx).Actor())
	if err != nil {
		return nil, err
	}
	rows := make([]ui.PluginRow, len(list))
	for i, p := range list {
		if rows[i], err = s.pluginRow(ctx, p); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

func (s *Server) pluginRow(ctx context.Context, p plugin.Listed) (ui.PluginRow, error) {
	row := ui.PluginRow{Listed: p}
	d, err := s.Devices.Known(ctx, p.Device())
	if err == nil && d.RetiredAt == nil {
		row.Tools = d.ToolsCount
	}
	return row, pages.Unless(err, fleet.ErrNotFound)
}

func (s *Server) pluginsPage(ctx context.Context) (page ui.PluginsPage, err error) {
	page = ui.PluginsPage{Directory: s.PluginsDir, Form: forms.NewPlugin()}
	page.Rows, err = s.pluginRows(ctx)
	return page, err
}

func (s *Server) listPlugins(r *http.Request) (pages.Answer, error) {
	page, err := s.pluginsPage(r.Context())
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// pluginFields are the fields of the form that show their own errors.
var pluginFields = []string{"name", "command", "args", "url", "headers_file", "tools", "audience", "offer_to_voice",
	"limits.memory", "limits.cpu", "limits.open_files", "env", "env_files"}

func (s *Server) createPlugin(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	ctx := r.Context()
	f := forms.PostedPlugin(r.PostForm)
	f.New = true
	m, err := f.Read()
	if err == nil {
		_, err = s.Plugins.Create(ctx, pages.ViewerOf(ctx).Actor(), f.Name, m)
	}
	if err == nil {
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "plugins.added", "name", f.Name)})
		return pages.GoTo(ui.PluginPath(f.Name))
	}
	problems, ok := fieldProblems(ctx, err, pluginFields)
	if !ok {
		return pages.Answer{}, err
	}
	page, err := s.pluginsPage(ctx)
	if err != nil {
		return pages.Answer{}, err
	}
	page.Form, page.Problems = f, problems
	return pages.ShowAgain(page.Page())
}

func (s *Server) pluginPage(r *http.Request) (page ui.PluginPage, err error) {
	ctx := r.Context()
	by, name := pages.ViewerOf(ctx).Actor(), programName(r, "plugin")
	p, err := s.Plugins.Plugin(by, name)
	if err != nil {
		return page, err
	}
	if page.Lines, err = s.Plugins.Lines(by, name); err != nil {
		return page, err
	}
	page.Form = forms.FillPlugin(p.Plugin)
	page.Row, err = s.pluginRow(ctx, p)
	return page, err
}

func (s *Server) showPlugin(r *http.Request) (pages.Answer, error) {
	page, err := s.pluginPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func (s *Server) editPlugin(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	ctx := r.Context()
	page, err := s.pluginPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	f := forms.PostedPlugin(r.PostForm)
	_, err = s.Plugins.Update(ctx, pages.ViewerOf(ctx).Actor(), page.Row.Name, f.Version, f.Change)
	if err == nil {
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.saved")})
		return pages.GoTo(ui.PluginPath(page.Row.Name))
	}
	problems, ok := fieldProblems(ctx, err, pluginFields)
	if !ok {
		return pages.Answer{}, err
	}
	f.Name, f.Variables = page.Row.Name, page.Form.Variables
	page.Form, page.Problems = f, problems
	return pages.ShowAgain(page.Page())
}

func (s *Server) reloadPlugin(r *http.Request) (pages.Answer, error) {
	ctx, name := r.Context(), programName(r, "plugin")
	_, err := s.Plugins.Restart(ctx, pages.ViewerOf(ctx).Actor(), name)
	return s.programChanged(r, ui.PluginPath(name), pages.Text(ctx, "plugins.reloaded", "name", name), err)
}

func (s *Server) switchPlugin(on bool) pages.Handler {
	return func(r *http.Request) (pages.Answer, error) {
		ctx, name := r.Context(), programName(r, "plugin")
		_, err := s.Plugins.Update(ctx, pages.ViewerOf(ctx).Actor(), name, policyVersion(r), func(m *plugin.Manifest) error {
			m.Disabled = !on
			return nil
		})
		return s.programChanged(r, ui.PluginPath(name), pages.Text(ctx, "flash.saved"), err)
	}
}

// deletePlugin requires the typed name, because its device retires.
func (s *Server) deletePlugin(r *http.Request) (pages.Answer, error) {
	ctx, name := r.Context(), programName(r, "plugin")
	if _, err := s.Plugins.Plugin(pages.ViewerOf(ctx).Actor(), name); err != nil {
		return pages.Answer{}, err
	}
	if r.PostFormValue("confirm") != name {
		return pages.Answer{}, pages.ErrNotConfirmed
	}
	if err := s.Plugins.Delete(ctx, pages.ViewerOf(ctx).Actor(), name); err != nil {
		return s.programChanged(r, ui.PluginPath(name), "", err)
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "plugins.was_deleted", "name", name)})
	return pages.GoTo(ui.PathPlugins)
}

// A pluginsView follows the list of plug-ins. No event announces what a program uses.
type pluginsView struct {
	server *Server
	shown  map[string]bool
	sent   sentParts
}

func (s *Server) newPluginsView(r *http.Request) (pages.View, error) {
	if _, err := s.Plugins.List(pages.ViewerOf(r.Context()).Actor()); err != nil {
		return nil, err
	}
	v := &pluginsView{server: s, shown: make(map[string]bool), sent: sentParts{}}
	for _, name := range r.URL.Query()["shown"] {
		v.shown[name] = true
	}
	return v, nil
}

func (v *pluginsView) Pace() time.Duration { return pages.PaceCounts }

func (v *pluginsView) Wants(*fleet.Event) bool { return false }

func (v *pluginsView) Begin(ctx context.Context) (pages.Updates, error) { return v.Look(ctx) }

func (v *pluginsView) Render(context.Context, []fleet.Event) (pages.Updates, error) {
	return pages.Updates{}, nil
}

func (v *pluginsView) Look(ctx context.Context) (u pages.Updates, err error) {
	rows, err := v.server.pluginRows(ctx)
	if err != nil {
		return u, err
	}
	now := make(map[string]bool, len(rows))
	for _, row := range rows {
		now[row.Name] = true
		if !v.shown[row.Name] {
			v.shown[row.Name] = true
			u.Fresh++
		}
		still := row // a row is marked as moved if more than its figures changed
		still.PID, still.Memory, still.CPU = 0, 0, 0
		if err := v.sent.addIf(ctx, &u, row.Name, still.Row(), row.Row()); err != nil {
			return u, err
		}
		if err := v.sent.add(ctx, &u, "figures "+row.Name, row.Figures()); err != nil {
			return u, err
		}
	}
	for name := range v.shown {
		if now[name] {
			continue
		}
		gone := ui.PluginRow{Deleted: true}
		gone.Name = name
		if err := v.sent.add(ctx, &u, name, gone.Row()); err != nil {
			return u, err
		}
	}
	return u, nil
}

// A pluginView follows the page of one plug-in.
type pluginView struct {
	server *Server
	name   string
	sent   sentParts
	lines  []plugin.Line // that the page shows
}

func (s *Server) newPluginView(r *http.Request) (pages.View, error) {
	v := &pluginView{server: s, name: r.URL.Query().Get("name"), sent: sentParts{}}
	_, err := s.Plugins.Plugin(pages.ViewerOf(r.Context()).Actor(), v.name)
	return v, err
}

func (v *pluginView) Pace() time.Duration { return pages.PaceCounts }

func (v *pluginView) Wants(*fleet.Event) bool { return false }

func (v *pluginView) Render(context.Context, []fleet.Event) (pages.Updates, error) {
	return pages.Updates{}, nil
}

// Begin sends the whole log: the page may have missed lines, or have lines of an earlier stream.
func (v *pluginView) Begin(ctx context.Context) (u pages.Updates, err error) {
	if v.lines, err = v.server.Plugins.Lines(pages.ViewerOf(ctx).Actor(), v.name); err != nil {
		return u, err
	}
	u.Patches = append(u.Patches, ui.PluginNews(v.lines).All())
	return u, v.state(ctx, &u)
}

func (v *pluginView) Look(ctx context.Context) (u pages.Updates, err error) {
	lines, err := v.server.Plugins.Lines(pages.ViewerOf(ctx).Actor(), v.name)
	if err = pages.Unless(err, fleet.ErrNotFound); err != nil {
		return u, err
	}
	if more := newLines(v.lines, lines); len(more) > 0 {
		u.Patches = append(u.Patches, ui.PluginNews(more).View())
		v.lines = lines
	}
	return u, v.state(ctx, &u)
}

// newLines returns the lines after the last of those that were shown.
func newLines(shown, all []plugin.Line) []plugin.Line {
	if len(shown) == 0 {
		return all
	}
	for i, l := range slices.Backward(all) {
		if l == shown[len(shown)-1] {
			return all[i+1:]
		}
	}
	return all
}

func (v *pluginView) state(ctx context.Context, u *pages.Updates) error {
	p, err := v.server.Plugins.Plugin(pages.ViewerOf(ctx).Actor(), v.name)
	if errors.Is(err, fleet.ErrNotFound) {
		return v.sent.add(ctx, u, "now", ui.PluginRow{Deleted: true}.Now())
	}
	if err != nil {
		return err
	}
	row, err := v.server.pluginRow(ctx, p)
	if err != nil {
		return err
	}
	if err := v.sent.add(ctx, u, "now", row.Now()); err != nil {
		return err
	}
	return v.sent.add(ctx, u, "use", row.Use())
}
